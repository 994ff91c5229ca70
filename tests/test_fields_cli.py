"""Fields on the command line: which are wanted, of what kind, and how their values and faults are shown."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import protos
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import TinySet, png
from shard.tars import by_tarfile
from typer.testing import CliRunner, Result

from aioload import ConfigError, Dataset, Loader
from aioload.cli._app import app

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes and unpacked files go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))


def aio(*arguments: object, status: int = 0) -> Result:
    """Run a command in this process, which must end with this status."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def told(*arguments: object, status: int = 0) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    return json.loads(aio(*arguments, "--json", status=status).stdout)  # type: ignore[no-any-return]


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Write a TFRecord file whose second record lacks the field `n`, and whose `t` is text."""
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(
            protos.example(n=protos.feature("int64", [3]), t=protos.feature("bytes", [b"one"])),
            protos.example(t=protos.feature("bytes", [b"two"])),
        )
    )
    return tmp_path / "x.tfrecord"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write an archive whose second sample lacks the field `cls`."""
    files = [("0.cls", b"3"), ("0.dat", b"one"), ("1.dat", b"two")]
    (tmp_path / "x.tar").write_bytes(by_tarfile(files))
    return tmp_path / "x.tar"


@pytest.mark.parametrize("name", ["records", "archive"])
def test_fields_are_chosen_for_every_command(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With those that all records have, each command ends well; without, what lacks a field is told."""
    source, field = request.getfixturevalue(name), {"records": "t", "archive": "dat"}[name]
    chosen = ["--field", f"{field}=str"]

    aio("verify", source, "--quiet", status=1)
    assert told("verify", source, *chosen)["ok"] is True
    assert told("index", source, *chosen)["fields"] == {field: "str"}
    shown = told("inspect", source, *chosen)
    assert shown["fields"] == {field: "str"}
    assert [record["fields"] for record in shown["first"]] == [{field: "one"}, {field: "two"}]
    assert told("inspect", source, "--record", 1, *chosen)["fields"][field]["value"] == "two"
    aio("pack", source, tmp_path / "own", *chosen, "--quiet")
    assert [Dataset(tmp_path / "own")[n][field] for n in range(2)] == ["one", "two"]
    report = told("export", source, tmp_path / "tars", *chosen)
    with tarfile.open(tmp_path / "tars" / report["shards"][0]) as tar:
        assert len(tar.getnames()) == 2


def test_several_fields_keep_their_order_and_kinds(records: Path, tmp_path: Path) -> None:
    """Each is given again; names may have anything in them, as kinds have no equals sign."""
    (tmp_path / "y.tfrecord").write_bytes(
        protos.framed(
            protos.example(**{"a=b": protos.feature("int64", [1]), "c": protos.feature("int64", [2])})
        )
    )

    shown = told("inspect", tmp_path / "y.tfrecord", "--field", "c=int", "--field", "a=b=example:int64")

    assert list(shown["fields"].items()) == [("c", "int"), ("a=b", "ndarray")]
    assert shown["first"][0]["fields"] == {"c": 2, "a=b": "int64 [1]"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--field", "t"], 2, "NAME=KIND"),
        (["--field", "=str"], 2, "NAME=KIND"),
        (["--field", "t="], 2, "NAME=KIND"),
        (["--field", "t=str", "--field", "t=bytes"], 2, "given twice"),
        (["--field", "t=text"], 1, "unknown kind 'text'"),
        (["--field", "gone=str"], 1, "'gone'"),
    ],
)
def test_fields_that_cannot_be(records: Path, arguments: list[str], status: int, words: str) -> None:
    """What is no field or kind is refused with a word on what is."""
    output = aio("inspect", records, "--record", 0, *arguments, status=status).output

    assert words in output


def test_fields_of_sets_that_know_theirs(tiny_set: TinySet, tmp_path: Path) -> None:
    """A packed set, a folder of images and a table of paths take none."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(png(np.zeros((2, 2, 3), np.uint8)))
    (tmp_path / "x.csv").write_text("path\npictures/a.png\n")

    for command in ("verify", "inspect"):
        assert "fields" in aio(command, tiny_set.path, "--field", "label=int", status=1).stderr
    for source in ("pictures", "x.csv"):
        refused = aio("pack", tmp_path / source, tmp_path / "own", "--field", "image=image", status=1)
        assert "leave them out" in refused.stderr


def test_advice_is_the_command_lines(records: Path, archive: Path, tmp_path: Path) -> None:
    """What a loader's user should pass is no help here: a packer is told of --field and --skip-bad."""
    packed = aio("pack", records, tmp_path / "own", status=1).output.replace("\n", " ")
    shown = aio("inspect", archive).output
    one = aio("export", records, tmp_path / "out", status=1).output.replace("\n", " ")
    tar = aio("pack", archive, tmp_path / "own", status=1).output.replace("\n", " ")

    for output in (packed, shown, one, tar):
        assert "--field NAME=KIND" in output
        assert "fields=" not in output
        assert "on_error" not in output
    assert "--skip-bad" in packed
    assert "record 1 (x.tfrecord): this record has no value for field 'n'; it has t" in packed


def test_values_that_do_not_decode_tell_all(tmp_path: Path) -> None:
    """Field, encoding, shard, record and key, for who packs as for who loads."""
    (tmp_path / "x.tar").write_bytes(by_tarfile([("a/k.cls", b"seven")]))
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(
            protos.sequence({}, {"s": [protos.feature("int64", [1]), protos.feature("float", [1])]})
        )
    )
    words = {
        "x.tar": "record 0 (key 'a/k', x.tar): field 'cls' (text:int): ",
        "x.tfrecord": "record 0 (x.tfrecord): field 's' (example:list:int64): ",
    }
    fields = {"x.tar": {"cls": "int"}, "x.tfrecord": {"s": "example:list:int64"}}

    for name, expected in words.items():
        dataset = Dataset(tmp_path / name, fields=fields[name])
        with pytest.raises(Exception, match="field") as caught:
            dataset[0]
        assert str(caught.value).startswith(expected)
        with pytest.raises(Exception, match="field") as caught:
            load(dataset)
        assert str(caught.value).startswith(expected)
    packed = aio(
        "pack", tmp_path / "x.tfrecord", tmp_path / "own", "--field", "s=example:list:int64", status=1
    )
    assert words["x.tfrecord"] in packed.output.replace("\n", " ")


def load(dataset: Dataset) -> None:
    """Load an epoch."""
    with Loader(dataset, batch_size=1, num_workers=0).sync() as batches:
        for _ in batches:
            pass


# inspect


def test_inspect_shows_values_and_sums(records: Path) -> None:
    """A label is shown as such and not as so many bytes; TFRecord is said to have sums of its own."""
    text = aio("inspect", records).stdout
    said = told("inspect", records)

    assert "n: int64 [3]" in text
    assert "sums of its own" in text
    assert said["sums"] is True
    assert "n  int  8 bytes  3" in aio("inspect", records, "--field", "n=int", "--record", 0).stdout
    assert "int64 [3]" in aio("inspect", records, "--record", 0).stdout


def test_inspect_of_rows_gives_numbers(tmp_path: Path) -> None:
    """Numbers of numpy's types are numbers in JSON too, and files of encoded values are no .npy."""
    source = shutil.copytree(FIXTURES / "mds" / "all", tmp_path / "mds")

    first = told("inspect", source)["first"][0]["fields"]
    saved = told("inspect", source, "--record", 0, "--save", tmp_path / "saved")["saved"]

    assert first["uint16"] == Dataset(source)[0]["uint16"]
    assert type(first["float32"]) is float
    suffixes = {Path(path).stem.partition("-")[2]: Path(path).suffix for path in saved}
    assert suffixes["array_typed"] == suffixes["uint16"] == ".bin"


def test_saved_digits_are_text(archive: Path, tmp_path: Path) -> None:
    """A number that stands in an archive as digits is saved as such."""
    saved = told("inspect", archive, "--record", 0, "--save", tmp_path / "saved")["saved"]

    assert {Path(path).suffix: Path(path).read_bytes() for path in saved} == {".txt": b"3", ".bin": b"one"}


def test_pickle_is_refused_by_column_and_set(tmp_path: Path) -> None:
    """Other columns are shown and packed; a decoder of the user's reads the column, if they trust it."""
    source = shutil.copytree(FIXTURES / "mds" / "pickled", tmp_path / "mds")

    shown = told("inspect", source)["first"][0]["fields"]
    refused = aio("pack", source, tmp_path / "none", status=1).stderr
    aio("pack", source, tmp_path / "own", "--field", "id=int", "--quiet")

    assert shown["id"] == 1
    assert "'object'" in shown["object"]
    assert f"field 'object' of {source}: values of the MDS encoding 'pkl'" in refused.replace("\n", " ")
    assert Dataset(tmp_path / "own")[0]["id"] == 1
    with pytest.raises(ConfigError, match=r"'object'.*decode=\{"):
        load(Dataset(source))
    with Loader(source, batch_size=1, num_workers=0, decode={"object": len}).sync() as batches:
        assert [batch["object"].tolist() for batch in batches] == [[21]]


def test_kinds_are_called_by_their_names(tmp_path: Path) -> None:
    """An option's value is shown as it is typed."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.txt").write_text("x")

    for source in ("folder", "x.txt"):
        message = aio("pack", tmp_path / source, tmp_path / "own", "--kind", "mds", status=1).stderr
        assert "Kind" not in message
    assert (
        "'folder'" in aio("pack", tmp_path / "x.txt", tmp_path / "own", "--kind", "folder", status=1).stderr
    )


# names of classes


def a_table(path: Path, names: list[str], numbers: list[int]) -> Path:
    """Write a table as the Hub's library does, whose metadata has a list feature beside the labels."""
    features = {
        "label": {"names": names, "_type": "ClassLabel"},
        "parts": [{"dtype": "int64", "_type": "Value"}],
        "sound": {"_type": "Audio"},
        "tags": {"feature": {"names": ["x", "y"], "_type": "ClassLabel"}, "_type": "Sequence"},
    }
    columns = {
        "label": pa.array(numbers, pa.int64()),
        "parts": pa.array([[1]] * len(numbers), pa.list_(pa.int64())),
        "sound": pa.array([{"bytes": b"RIFF", "path": None}] * len(numbers)),
        "tags": pa.array([[0, 1]] * len(numbers), pa.list_(pa.int64())),
    }
    told = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(told), path)
    return path


def test_names_of_classes_are_kept(tmp_path: Path) -> None:
    """What the numbers of a label column mean stands in the manifest, and is shown."""
    path = a_table(tmp_path / "x.parquet", ["cat", "dög"], [1, 0])

    aio("pack", path, tmp_path / "own", "--quiet")
    dataset = Dataset(tmp_path / "own")

    assert dataset.metadata == {"class_names": {"label": ["cat", "dög"], "tags": ["x", "y"]}}
    assert dataset.fields == {"label": "int", "parts": "ndarray", "sound": "audio", "tags": "ndarray"}
    assert "label  int      2 classes: cat, dög" in aio("inspect", tmp_path / "own").stdout


def test_tables_whose_numbers_mean_other_classes_are_refused(tmp_path: Path) -> None:
    """Two tables of the same columns, one of which counts its classes otherwise, make no set."""
    one = a_table(tmp_path / "1.parquet", ["cat", "dog"], [1])
    other = a_table(tmp_path / "2.parquet", ["dog", "cat"], [1])

    refused = aio("pack", one, other, tmp_path / "own", status=1)

    assert "other names of classes" in refused.stderr
    assert not (tmp_path / "own" / "manifest.json").exists()


def test_names_of_folders_are_shown(tmp_path: Path) -> None:
    """Folders of images keep theirs as before; they are shown with the label."""
    for name in ("ant", "bee"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "a.png").write_bytes(png(np.zeros((2, 2, 3), np.uint8)))

    aio("pack", tmp_path / "src", tmp_path / "own", "--quiet")

    assert "2 classes: ant, bee" in aio("inspect", tmp_path / "own").stdout
