"""Commands over shards of others: indexes, checks, looks, packing and exporting, and how each ends."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import shlex
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import cramjam
import foreign_sets
import numpy as np
import protos
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import png
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard.tars import by_tarfile
from typer.testing import CliRunner, Result

from aioload import ConfigError, Dataset, SampleError, Writer
from aioload.cli._app import app
from aioload.packing import export
from aioload.packing.export import safe_key

CASES = Path(__file__).parent / "cases" / "files"
FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes and unpacked files go to a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache-home"))
    return tmp_path / "cache-home"


def aio(*arguments: object, status: int = 0) -> Result:
    """Run a command in this process, which must end with this status."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="aioload")
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def told(*arguments: object, status: int = 0) -> dict[str, Any]:
    """Return what a command prints as JSON."""
    return json.loads(aio(*arguments, "--json", status=status).stdout)  # type: ignore[no-any-return]


def case(folder: Path, path: str) -> Path:
    """Copy a file of the cases."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(CASES / path, folder))


def read_back(*paths: Path) -> dict[str, dict[str, bytes]]:
    """Return the samples of archives as WebDataset reads them, with nothing of aioload's."""
    found: dict[str, dict[str, bytes]] = {}
    for path in paths:
        last, seen = None, set()
        with tarfile.open(path) as archive:
            for member in archive:
                assert member.isfile()
                folder, _, name = member.name.rpartition("/")
                stem, _, field = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != last:
                    assert key not in seen
                    seen.add(key)
                    found[f"{path.name}:{key}"] = {}
                last = key
                sample = found[f"{path.name}:{key}"]
                assert field not in sample
                file = archive.extractfile(member)
                assert file is not None
                sample[field] = file.read()
    return found


def exported(source: Path, folder: Path, *options: object) -> list[dict[str, bytes]]:
    """Export a set; return its samples in order."""
    report = told("export", source, folder, *options)
    return list(read_back(*(folder / name for name in report["shards"])).values())


# index


def test_index_makes_what_the_first_use_would(tmp_path: Path) -> None:
    """The index lies beside the shards, its numbers are printed, and again it costs nothing."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(7)))

    said = told("index", tmp_path / "x.tar")
    text = aio("index", tmp_path / "x.tar").stdout

    assert {name: said[name] for name in ("format", "records", "shards", "sums", "damage", "fields")} == {
        "format": "tar", "records": 7, "shards": 1, "sums": False, "damage": {},
        "fields": {"bin": "bytes", "cls": "int"},
    }  # fmt: skip
    assert said["index_bytes"] <= 32 * 7 + 100
    assert "7 records" in text
    assert len(list(tmp_path.glob(".aioload-*.index"))) == 1
    assert aio("index", tmp_path, "--quiet").output == ""


def test_index_takes_several_shards_and_sums(tmp_path: Path) -> None:
    """Sums that are asked for are made, also where there was an index without."""
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(foreign_sets.make_tar([number]))
    paths = [tmp_path / f"{number}.tar" for number in range(2)]

    assert told("index", *paths)["sums"] is False
    assert told("index", *paths, "--checksums")["sums"] is True
    assert told("index", tmp_path)["sums"] is True


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_index_of_damaged_shards_ends_with_1(tmp_path: Path, quiet: list[str]) -> None:
    """What cannot be read to its end is named, with --quiet too, and the status says so."""
    path = case(tmp_path / "x", "tar/cut_in_data.tar")

    output = aio("index", path, *quiet, status=1).stdout

    assert "cut_in_data.tar" in output
    assert told("index", path, status=1)["damage"].keys() == {"cut_in_data.tar"}


@pytest.mark.parametrize("name", ["tar/interleaved.tar", "manifest.json"])
def test_index_of_what_is_none_ends_with_1(tmp_path: Path, name: str) -> None:
    """What is no set is one line on stderr."""
    result = aio("index", case(tmp_path / "x", name), status=1)

    assert result.stderr.startswith("aioload: ")
    assert Path(name).name in result.stderr


def test_index_of_a_packed_set_has_nothing_to_do(tmp_path: Path) -> None:
    """A set of aioload's own has its index: that is told, with status 1."""
    with Writer(tmp_path / "own", fields={"n": "int"}) as writer:
        writer.write({"n": 1})

    assert "packed set" in aio("index", tmp_path / "own", status=1).stderr


# verify


@pytest.mark.parametrize(
    ("path", "record", "words"),
    [
        ("tar/interleaved.tar", None, ["0.json"]),
        ("tar/cut_in_data.tar", 2, ["byte 4096"]),
        ("tar/cut_in_header.tar", 2, ["byte 4096"]),
        ("tfrecord/data_crc.tfrecord", 1, ["checksum"]),
        ("tfrecord/cut_data.tfrecord", 2, ["truncated"]),
        ("tfrecord/cut_len.tfrecord", None, ["truncated"]),
    ],
)
def test_verify_names_what_is_damaged(
    tmp_path: Path, path: str, record: int | None, words: list[str]
) -> None:
    """T02, T09, F01, F03: status 1, and a line with shard, record, byte, and how many records there are."""
    source = case(tmp_path / "x", path)

    said = told("verify", source, status=1)
    output = aio("verify", source, status=1).stdout

    assert said["ok"] is False
    (problem,) = said["problems"]
    assert problem["shard"] == Path(path).name
    if record is not None:
        assert problem["record"] == record
        assert f"record {record}" in output
    assert problem["offset"] is not None
    assert f"byte {problem['offset']}" in output
    assert "record" in output.splitlines()[-2 if "not checked" in output else -1]
    assert all(word in output for word in words)


def test_verify_says_what_it_cannot_see(tmp_path: Path) -> None:
    """Of archives without sums it says so; with sums it says nothing, and finds a changed byte."""
    path = tmp_path / "x.tar"
    data = bytearray(foreign_sets.make_tar(range(5)))
    path.write_bytes(data)
    plain = aio("verify", path).stdout
    aio("index", path, "--checksums", "--quiet")
    summed = aio("verify", path).stdout
    status = path.stat()
    data[data.index(b"payload 3")] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    damaged = aio("verify", path, "--quiet", status=1).stdout

    assert "all well; 5 records" in plain
    assert "not checked: " in plain
    assert "--checksums" in plain
    assert "not checked" not in summed
    assert "record 3" in damaged


def test_verify_passes_over_a_leftover_index(tmp_path: Path) -> None:
    """An `index.aioi` without a manifest, beside archives, does not make a packed set of them."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(4)))
    (tmp_path / "index.aioi").write_bytes(b"left behind")

    assert "all well; 4 records" in aio("verify", tmp_path).stdout


def test_verify_of_what_is_not_there_ends_with_1(tmp_path: Path) -> None:
    """A path without anything is one line on stderr, and a folder without a set a problem."""
    assert aio("verify", tmp_path / "no.tar", status=1).stderr.startswith("aioload: ")
    (tmp_path / "empty").mkdir()
    assert "1 problem" in aio("verify", tmp_path / "empty", status=1).stdout


def test_commands_take_stars_and_what_describes_a_set(tmp_path: Path) -> None:
    """A quoted pattern, which no shell has expanded, and an index.json, wherever a set may be named."""
    for number in range(2):
        (tmp_path / f"x-{number}.tar").write_bytes(foreign_sets.make_tar([number]))
    pattern = tmp_path / "x-*.tar"
    rows = foreign_sets.make_mds(tmp_path / "rows", [range(3)]) / "index.json"

    for name, source, records in (("tar", pattern, 2), ("mds", rows, 3)):
        assert told("index", source)["records"] == records
        assert told("verify", source)["records"] == records
        assert told("inspect", source)["records"] == records
        assert len(exported(source, tmp_path / f"{name}-out")) == records
    assert told("pack", pattern, tmp_path / "own")["records"] == 2
    assert "no file has a name like" in aio("pack", tmp_path / "y-*.tar", tmp_path / "no", status=1).stderr


# inspect


@pytest.mark.parametrize(
    ("path", "kind", "records", "fields"),
    [
        ("tar/plain.tar", "tar", 2, {"jpg": "image", "json": "json"}),
        ("tfrecord/plain.tfrecord", "tfrecord", None, None),
        ("mds/plain", "mds", 3, {"id": "int", "img": "bytes", "text": "str"}),
    ],
)
def test_inspect_shows_any_set(
    tmp_path: Path, path: str, kind: str, records: int | None, fields: dict[str, str] | None
) -> None:
    """Format, counts, fields and first records are shown, and the bytes of a record's fields saved."""
    source = tmp_path / "x" / Path(path).name
    source.parent.mkdir()
    shutil.copytree(CASES / path, source) if (CASES / path).is_dir() else shutil.copy(CASES / path, source)

    said = told("inspect", source)
    text = aio("inspect", source).stdout
    saved = told("inspect", source, "--record", 1, "--save", tmp_path / "saved")

    assert said["format"] == kind
    assert records is None or said["records"] == records
    assert fields is None or said["fields"] == fields
    assert f"({kind})" in text
    assert saved["saved"]
    assert all(Path(path).parent == tmp_path / "saved" for path in saved["saved"])


# pack


def test_pack_of_records_keeps_payloads(tmp_path: Path) -> None:
    """TFRecord files become a set: bytes as they were, lists of numbers as arrays."""
    for number in range(2):
        (tmp_path / f"x-{number}.tfrecord").write_bytes(
            foreign_sets.make_tfrecord(range(number * 5, number * 5 + 5))
        )

    report = told("pack", tmp_path / "x-{0..1}.tfrecord", tmp_path / "own")
    dataset = Dataset(tmp_path / "own")

    assert report["records"] == 10
    assert dataset.fields == {"bin": "bytes", "cls": "ndarray"}
    assert foreign_sets.numbers(dataset) == list(range(10))
    assert dataset[3]["cls"].dtype == np.int64
    aio("verify", tmp_path / "own", "--quiet")


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: bytes(cramjam.zstd.compress(data)),
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
}


@pytest.mark.parametrize("codec", PACKERS)
def test_pack_of_compressed_archives(tmp_path: Path, codec: str) -> None:
    """The command that the refusal names packs them, beside plain ones too; damage is named and left out."""
    for number in range(3):
        data = foreign_sets.make_tar(range(number * 4, number * 4 + 4))
        (tmp_path / f"{number}.tar.{codec}").write_bytes(data if number == 1 else PACKERS[codec](data))
    refusal = aio("index", tmp_path / f"0.tar.{codec}", status=1).stderr.replace("\n", " ")
    command = shlex.split(re.search(r"`aioload (.*?) OUT`", refusal)[1])  # type: ignore[index]  # it is there

    aio(*command, tmp_path / "one", "--quiet")
    aio("pack", tmp_path / f"{{0..2}}.tar.{codec}", tmp_path / "all", "--quiet")
    aio("pack", tmp_path, tmp_path / "folder", "--quiet")
    (tmp_path / f"2.tar.{codec}").write_bytes((tmp_path / f"2.tar.{codec}").read_bytes()[:-20])
    result = aio("pack", tmp_path / f"{{0..2}}.tar.{codec}", tmp_path / "some", "--skip-bad", "--quiet")

    assert foreign_sets.numbers(Dataset(tmp_path / "one")) == list(range(4))
    assert foreign_sets.numbers(Dataset(tmp_path / "all")) == list(range(12))
    assert foreign_sets.numbers(Dataset(tmp_path / "folder")) == list(range(12))
    assert foreign_sets.numbers(Dataset(tmp_path / "some")) == list(range(8))
    assert f"2.tar.{codec} cannot be unpacked" in result.stderr


def test_pack_says_which_extra_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package for zstd, the error names the extra that brings it."""
    (tmp_path / "x.tar.zst").write_bytes(PACKERS["zst"](foreign_sets.make_tar(range(3))))
    monkeypatch.setitem(sys.modules, "cramjam", None)

    assert "torch-aioload[mds]" in aio("pack", tmp_path / "x.tar.zst", tmp_path / "own", status=1).stderr


@pytest.mark.parametrize("codec", ["gz", "zstd", "br", "bz2"])
def test_pack_of_rows_keeps_values(tmp_path: Path, codec: str) -> None:
    """MDS folders, also compressed ones, become a set of the same values, numbers among them."""
    rows = Dataset(shutil.copytree(FIXTURES / "mds" / codec, tmp_path / "mds"))

    aio("pack", tmp_path / "mds", tmp_path / "own", "--quiet")
    own = Dataset(tmp_path / "own")

    assert own.fields == rows.fields
    assert len(own) == len(rows) == 6
    for number in range(6):
        one, other = rows[number], own[number]
        assert (one["id"], one["text"]) == (other["id"], other["text"])
        assert (one["weights"] == other["weights"]).all()
        assert one["weights"].dtype == other["weights"].dtype


def test_pack_and_export_of_all_encodings_of_rows(tmp_path: Path) -> None:
    """Every MDS encoding that is one value has a place in an archive; lists are a typed error."""
    source = shutil.copytree(FIXTURES / "mds" / "all", tmp_path / "mds")
    every = Dataset(source)
    lists = [name for name in every.fields if name.startswith(("list_", "jpeg_", "jpegarray"))]
    plain = {name: kind for name, kind in every.fields.items() if name not in lists}
    some = Dataset(source, fields=plain)

    export(some, tmp_path / "tars")
    # of numbers beyond 64 bits the digits are there
    digits = dict.fromkeys(("str_int.cls", "uint64.cls"), "str")
    back = Dataset(tmp_path / "tars", fields=Dataset(tmp_path / "tars").fields | digits)

    assert len(back) == len(every) == 5
    for number in range(5):
        one, other = some[number], back[number]
        other = {name.partition(".")[0]: value for name, value in other.items()}
        for name in plain:
            value = other[name]
            if plain[name] == "float":
                value = type(one[name])(value)
            assert str(one[name]) == str(value), name
    for name in lists:
        with pytest.raises(SampleError, match=name):
            export(Dataset(source, fields={name: "bytes"}), tmp_path / f"no-{name}")
    assert "list" in aio("pack", source, tmp_path / "own", status=1).stderr


def test_pack_names_damaged_records_and_leaves_them_out_if_asked(tmp_path: Path) -> None:
    """A record that fails its sum is named with its shard; with --skip-bad all others are packed."""
    shard = case(tmp_path / "records", "tfrecord/data_crc.tfrecord")

    refused = aio("pack", shard, tmp_path / "none", "--check", "none", status=1)
    aio("pack", shard, tmp_path / "some", "--check", "none", "--skip-bad")

    assert "record 1 (data_crc.tfrecord)" in refused.output.replace("\n", " ")
    assert [sample["name"] for sample in map(Dataset(tmp_path / "some").__getitem__, range(2))] == [
        b"s0",
        b"s2",
    ]
    assert len(Dataset(tmp_path / "some")) == 2


def test_pack_of_a_hub_table(tmp_path: Path) -> None:
    """Images and sounds of a Hugging Face table keep their bytes; which is which, its metadata says."""
    pictures = [png(np.full((4, 5, 3), number, np.uint8)) for number in range(3)]
    sounds = [b"RIFF" + bytes([number]) * 9 for number in range(3)]
    features = {"image": {"_type": "Image"}, "audio": {"_type": "Audio"}, "label": {"_type": "ClassLabel"}}
    table = pa.table(
        {
            "image": [{"bytes": data, "path": "a.png"} for data in pictures],
            "audio": [{"bytes": data, "path": None} for data in sounds],
            "label": pa.array([2, 1, 0], pa.int64()),
            "score": pa.array([0.5, 1.5, -2], pa.float32()),
            "text": ["a", "é", ""],
            "blob": pa.array([b"\0", b"", b"\xff"], pa.binary()),
            "box": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32())),
            "tags": [["x"], [], ["y", "z"]],
            "yes": [True, False, True],
        }
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)

    aio("pack", tmp_path / "x.parquet", tmp_path / "own", "--check", "none", "--quiet")
    dataset = Dataset(tmp_path / "own")
    payloads = [dataset.format.split(raw)[1] for _, raw in dataset.raw_records()]

    assert dataset.fields == {
        "image": "image", "audio": "audio", "label": "int", "score": "float", "text": "str", "blob": "bytes",
        "box": "ndarray", "tags": "json", "yes": "int",
    }  # fmt: skip
    assert [bytes(payload["image"]) for payload in payloads] == pictures
    assert [bytes(payload["audio"]) for payload in payloads] == sounds
    assert [bytes(payload["blob"]) for payload in payloads] == [b"\0", b"", b"\xff"]
    labels = Dataset(tmp_path / "own")
    assert [labels.decoders["label"](payload["label"]) for payload in payloads] == [2, 1, 0]
    assert [labels.decoders["tags"](payload["tags"]) for payload in payloads] == [["x"], [], ["y", "z"]]
    assert labels.decoders["box"](payloads[0]["box"]).dtype == np.float32


@pytest.mark.parametrize(
    ("column", "word"),
    [
        (pa.array([1, None], pa.int64()), "'c' is empty"),
        (pa.array([{"bytes": b"x", "path": "x"}, None]), "'c' is empty"),
        (pa.array([{"bytes": b"x", "path": "x"}, {"bytes": None, "path": "x"}]), "only a path"),
        (pa.array(["a", None]), "'c' is empty"),
        (pa.array([b"a", None]), "'c' is empty"),
        (pa.array([[1], [None]], pa.list_(pa.int64())), "'c' cannot be read"),
        (pa.array([1, 1 << 63], pa.uint64()), "c"),
    ],
)
def test_pack_of_rows_with_nulls(tmp_path: Path, column: pa.Array, word: str) -> None:
    """A cell without a value is an error that names row and column, before anything looks complete."""
    pq.write_table(pa.table({"c": column}), tmp_path / "x.parquet")

    result = aio("pack", tmp_path / "x.parquet", tmp_path / "own", "--check", "none", status=1)

    assert word in result.stderr
    assert not (tmp_path / "own" / "manifest.json").exists()


def test_pack_of_what_is_no_table(tmp_path: Path) -> None:
    """Bytes that are no Parquet, and tables whose columns differ, are one line on stderr."""
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and no more")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "b.parquet")

    assert "x.parquet" in aio("pack", tmp_path / "x.parquet", tmp_path / "o", status=1).stderr
    assert (
        "other columns"
        in aio("pack", tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "o", status=1).stderr
    )


# export, and round trips


def test_own_to_tar_to_own(tmp_path: Path) -> None:
    """A set that is exported and packed again has the same keys, and all payloads byte for byte."""
    array = io.BytesIO()
    np.lib.format.write_array(array, np.arange(6).reshape(2, 3), version=(2, 0))
    files = [
        (f"dir.v1/{number:03}.{name}", data)
        for number in range(9)
        for name, data in {
            "jpg": b"\xff\xd8\xff" + bytes([number]),
            "cls": b"%d" % (number - 4),
            "txt": "naïve 零".encode(),
            "json": b'{ "a" :\t[1,2.50], "b": "\\u00e9" }',
            "npy": array.getvalue(),
            "what": bytes(range(number)),
        }.items()
    ]
    (tmp_path / "x.tar").write_bytes(by_tarfile(files, tarfile.PAX_FORMAT))

    aio("pack", tmp_path / "x.tar", tmp_path / "own", "--check", "none", "--quiet")
    aio("export", tmp_path / "own", tmp_path / "tars", "--shard-size", "16KiB", "--quiet")
    aio("pack", tmp_path / "tars", tmp_path / "again", "--check", "none", "--quiet")

    paths = sorted((tmp_path / "tars").glob("*.tar"))
    found = read_back(*paths)
    assert len(paths) > 1
    assert [key.partition(":")[2] for key in found] == [f"dir.v1/{number:03}" for number in range(9)]
    assert [(key.partition(":")[2], fields) for key, fields in found.items()] == [
        (key.partition(":")[2], fields) for key, fields in read_back(tmp_path / "x.tar").items()
    ]
    one, other = Dataset(tmp_path / "own"), Dataset(tmp_path / "again")
    assert one.table.fingerprint() == other.table.fingerprint()


def test_records_to_own_to_tar(tmp_path: Path) -> None:
    """TFRecords that are packed and exported keep their bytes; lists of numbers are arrays."""
    (tmp_path / "x.tfrecord").write_bytes(foreign_sets.make_tfrecord(range(6)))
    aio("pack", tmp_path / "x.tfrecord", tmp_path / "own", "--quiet")

    direct = exported(tmp_path / "x.tfrecord", tmp_path / "direct")
    through = exported(tmp_path / "own", tmp_path / "through")

    assert direct == through
    assert [sample["bin"] for sample in direct] == [foreign_sets.sample_bytes(n) for n in range(6)]
    assert [np.load(io.BytesIO(sample["cls.npy"])).tolist() for sample in direct] == [[n] for n in range(6)]


def test_tar_to_tar_is_byte_for_byte(tmp_path: Path) -> None:
    """What stands in an archive is exported as it stands there, digits and spaces of numbers too."""
    (tmp_path / "x.tar").write_bytes(by_tarfile([("a.cls", b" 007\n"), ("a.json", b"{ }"), ("a.bin", b"")]))

    assert exported(tmp_path / "x.tar", tmp_path / "out") == [{"cls": b" 007\n", "json": b"{ }", "bin": b""}]


@pytest.mark.filterwarnings(  # that package leaves files open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_webdataset_decodes_what_is_exported(tmp_path: Path) -> None:
    """Numbers, texts, JSON and arrays come out of the real package as they are, all bytes as bytes."""
    import webdataset

    fields = {
        "label": "int", "score": "float", "odd.cls": "float", "caption": "str", "id": "str", "meta": "json",
        "box": "ndarray", "index": "bytes", "pyd": "bytes", "blob.bin": "bytes", "../up/jpg": "str",
    }  # fmt: skip
    sample = {
        "label": -(2**63), "score": 0.1 + 0.2, "odd.cls": 5e-324, "caption": "naïve 零", "id": "007",
        "meta": {"a": [1, 2.5, None]}, "box": np.float32([[1, 2]]), "index": b"not 7", "pyd": b"no pickle",
        "blob.bin": b"\0", "../up/jpg": "no picture",
    }  # fmt: skip
    with Writer(tmp_path / "own", fields=fields) as writer:
        writer.write(sample, key="k")
        writer.write(sample | {"score": float("inf"), "odd.cls": float("nan")}, key="../../k")

    (name,) = export(Dataset(tmp_path / "own"), tmp_path / "out").shards
    one, other = webdataset.WebDataset(str(tmp_path / "out" / name), shardshuffle=False).decode()

    assert (one["__key__"], other["__key__"]) == ("k", "000000001")
    found = {key: value for key, value in one.items() if not key.startswith("__")}
    assert (found.pop("box.npy") == sample["box"]).all()
    assert found == {
        "label.cls": -(2**63), "score.json": 0.1 + 0.2, "odd.cls.json": 5e-324, "caption.txt": "naïve 零",
        "id.txt": "007", "meta.json": {"a": [1, 2.5, None]}, "index.bin": b"not 7", "pyd.bin": b"no pickle",
        "blob.bin": b"\0", "_up_jpg.txt": "no picture",
    }  # fmt: skip
    assert other["score.json"] == float("inf")
    assert np.isnan(other["odd.cls.json"])
    back = Dataset(tmp_path / "out", fields={"score.json": "float", "label.cls": "int"})
    assert back[0]["score.json"] == sample["score"]


def test_keys_and_fields_stay_apart(tmp_path: Path) -> None:
    """Keys that come twice, and fields whose names become the same, each have a file of their own."""
    for name in ("0.tar", "1.tar"):
        (tmp_path / name).write_bytes(by_tarfile([("k.bin", name.encode()), ("000000003.bin", b"x")]))
    with Writer(
        tmp_path / "own", fields={"Im": "bytes", "im": "bytes", "i m": "bytes", "i_m": "bytes"}
    ) as writer:
        for key in ("../x", "000000000", "../y", "000000000"):
            writer.write({"Im": b"1", "im": b"2", "i m": b"3", "i_m": b"4"}, key=key)

    found = exported(tmp_path / "own", tmp_path / "b")
    shards = exported(tmp_path / "{0..1}.tar", tmp_path / "c")

    assert len(found) == 4
    assert all(sorted(sample.values()) == [b"1", b"2", b"3", b"4"] for sample in found)
    assert [sample["bin"] for sample in shards] == [b"0.tar", b"x", b"1.tar", b"x"]
    assert len(Dataset(tmp_path / "b")) == len(Dataset(tmp_path / "c")) == 4


EVIL = [
    "../../x", "/etc/x", "", ".", "..", "a/../b", "a//b", "/", "a/", "x.y", ".hidden", "a\0b", "a\nb",
    "\x1b[2J", "a\\..\\b", "C:x", "x" * 300, "/".join(["deep"] * 400), "con|cat", "what?", "\u202eevil",
    "a/./b",
]  # fmt: skip


def test_evil_keys_never_leave_the_folder(tmp_path: Path) -> None:
    """Keys from data are names within the folder into which somebody unpacks, or the record's number."""
    with Writer(tmp_path / "own", fields={"bin": "bytes"}) as writer:
        for number, key in enumerate(EVIL):
            writer.write({"bin": b"%d" % number}, key=key)
        writer.write({"bin": b"good"}, key="good/naïve key 零")

    (name,) = export(Dataset(tmp_path / "own"), tmp_path / "out").shards
    path = tmp_path / "out" / name
    with tarfile.open(path) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "unpacked", filter="data")

    assert names[:-1] == [f"{number:09}.bin" for number in range(len(EVIL))]
    assert names[-1] == "good/naïve key 零.bin"
    assert len(list((tmp_path / "unpacked").rglob("*.bin"))) == len(EVIL) + 1
    assert [sample["bin"] for sample in read_back(path).values()] == [
        *(b"%d" % number for number in range(len(EVIL))), b"good"
    ]  # fmt: skip


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("./\\\0\n:"), max_size=30))
def test_no_key_leads_elsewhere(key: str) -> None:
    """Whatever a key is, its file lies under the folder, and its key is read back."""
    name = safe_key(key, 7)

    path = os.path.normpath(f"/folder/{name}.bin")

    assert path == f"/folder/{name}.bin"
    assert name in (key, "000000007")
    assert "." not in name.rpartition("/")[2]


def test_export_does_not_write_over_anything(tmp_path: Path) -> None:
    """A folder with archives is refused; a set that is damaged leaves only whole archives."""
    path = case(tmp_path / "x", "tar/cut_in_data.tar")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.tar").write_bytes(b"")

    with pytest.raises(ConfigError, match="holds archives"):
        export(Dataset(path), tmp_path / "out")
    assert "cut_in_data.tar" in aio("export", path, tmp_path / "new", status=1).stderr
    assert [each.name for each in (tmp_path / "new").iterdir()] == []


def test_lists_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """A field that holds lists of bytes is a typed error that names it, in exporting as in packing."""
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(protos.example(w=protos.feature("bytes", [b"a", b"b"]), n=protos.feature("int64", [1])))
    )

    assert "'w'" in aio("export", tmp_path / "x.tfrecord", tmp_path / "a", status=1).stderr
    assert "'w'" in aio("pack", tmp_path / "x.tfrecord", tmp_path / "b", status=1).stderr
