"""Defaults: values that samples have where their records lack a field."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import foreign_sets
import numpy as np
import protos
import pytest
from conftest import TinySet, png
from shard.tars import by_tarfile

from aioload import Concat, ConfigError, Dataset, Loader, Mix, SampleError, ShardError, decode
from aioload.packing import export

WITH = (0, 1, 4, 5, 7, 9)  # numbers of the samples that have the field
COUNT = 10


@pytest.fixture(params=["tar", "tfrecord"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a shard of ten samples `n`, of which some lack the field `cls`; in others it is ten times `n`."""
    path = tmp_path / f"x.{request.param}"
    path.write_bytes(an_archive() if request.param == "tar" else records())
    return path


def an_archive() -> bytes:
    """Return an archive."""
    files = ((f"{n:02}.n.cls", b"%d" % n) for n in range(COUNT))
    more = {n: (f"{n:02}.cls", b"%d" % (10 * n)) for n in WITH}
    return by_tarfile(each for n, file in enumerate(files) for each in (file, more.get(n)) if each)


def records() -> bytes:
    """Return a TFRecord file."""
    return protos.framed(
        *(
            protos.example(
                **{"n.cls": protos.feature("int64", [n])},
                cls=protos.feature("int64", [10 * n]) if n in WITH else b"",
            )
            for n in range(COUNT)
        )
    )


FIELDS = {"n.cls": "int", "cls": "int"}


def labels(dataset: Any, **options: Any) -> dict[int, int]:
    """Return the label of each sample by its number, as a loader gives them."""
    with Loader(dataset, **({"batch_size": 3, "num_workers": 0} | options)).sync() as batches:
        return {
            n: cls for b in batches for n, cls in zip(b["n.cls"].tolist(), b["cls"].tolist(), strict=True)
        }


EXPECTED = {n: 10 * n if n in WITH else -1 for n in range(COUNT)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 1, "batch_size": 10, "shuffle": True},
        {"transform": dict, "shuffle": "full"},
        {"reads": "mmap", "num_workers": 1},
    ],
)
def test_samples_whose_records_lack_a_field_have_its_default(path: Path, options: dict[str, Any]) -> None:
    """In workers and without, shuffled, in rows and one by one, beside the values of the others."""
    dataset = Dataset(path, fields=FIELDS, defaults={"cls": -1})

    assert labels(dataset, **options) == EXPECTED


def test_by_number_and_through_pickle(path: Path) -> None:
    """One record by its number has the default too, and so has a copy of the set in another process."""
    dataset = Dataset(path, fields=FIELDS, defaults={"cls": -1})

    for each in (dataset, pickle.loads(pickle.dumps(dataset)), dataset.select(range(COUNT))):
        assert [each[n]["cls"] for n in range(COUNT)] == list(EXPECTED.values())


def test_without_a_default_it_is_an_error(path: Path) -> None:
    """It names the field, and says that a default can be given."""
    dataset = Dataset(path, fields=FIELDS)

    with pytest.raises((ShardError, SampleError), match=r"'cls'.*defaults=\{'cls': …\}") as caught:
        labels(dataset)

    assert (caught.value.record, caught.value.facts["category"]) == (2, "missing")


def test_a_run_goes_on_with_other_defaults(path: Path) -> None:
    """Defaults are no part of what a state knows of the data, as fields are none."""
    plain, other = (Dataset(path, fields=FIELDS, defaults={"cls": value}) for value in (-1, -2))
    with Loader(plain, batch_size=3, num_workers=0).sync() as batches:
        next(iter(batches))
        state = batches.state_dict()

    with Loader(other, batch_size=3, num_workers=0).sync() as batches:
        batches.load_state_dict(state)
        rest = [value for batch in batches for value in batch["cls"].tolist()]

    assert rest == [-2 if value == -1 else value for value in list(EXPECTED.values())[3:]]


def test_what_is_there_but_empty_is_no_default(tmp_path: Path) -> None:
    """A file of no bytes, an empty text and an empty list are values; a number of no digits is an error."""
    (tmp_path / "x.tar").write_bytes(by_tarfile([("0.txt", b""), ("0.cls", b""), ("1.txt", b"t")]))
    (tmp_path / "x.tfrecord").write_bytes(
        protos.framed(
            protos.example(t=protos.feature("bytes", [b""]), i=protos.feature("int64", [])), protos.example()
        )
    )
    texts = Dataset(tmp_path / "x.tar", fields={"txt": "str"}, defaults={"txt": "?"})
    numbers = Dataset(tmp_path / "x.tar", defaults={"cls": 7})
    lists = Dataset(
        tmp_path / "x.tfrecord", fields={"t": "str", "i": "example:int64"}, defaults={"t": "?", "i": [7]}
    )

    assert [texts[n]["txt"] for n in range(2)] == ["", "t"]
    with pytest.raises(SampleError, match="no whole number"):
        numbers[0]
    assert numbers[1]["cls"] == 7
    assert [(lists[n]["t"], lists[n]["i"].tolist()) for n in range(2)] == [("", []), ("?", [7])]


KINDS: dict[str, tuple[str, Any, Any]] = {
    "i": ("int", np.int8(-5), -5),
    "f": ("float", 3, 3.0),
    "s": ("str", "ü", "ü"),
    "b": ("bytes", bytearray(b"q"), b"q"),
    "j": ("json", {"a": (1, None)}, {"a": [1, None]}),
    "a": ("ndarray", np.ones((2, 2), np.float16), np.ones((2, 2), np.float16)),
    "p": ("image", np.zeros((2, 3, 3), np.uint8), np.zeros((2, 3, 3), np.uint8)),
    "li": ("example:int64", [-1, 2**40], np.array([-1, 2**40])),
    "lf": ("example:float", np.ones(2), np.ones(2, np.float32)),
    "lb": ("example:bytes", [b"", b"q"], [b"", b"q"]),
}


def test_defaults_are_of_the_make_that_decoders_give(tmp_path: Path) -> None:
    """A whole number for a float field becomes a float, a list an array of the field's type."""
    (tmp_path / "x.tfrecord").write_bytes(protos.framed(protos.example(z=protos.feature("bytes", [b"z"]))))
    fields = {name: kind for name, (kind, _, _) in KINDS.items()}
    sound = {"samples": np.zeros((1, 4)), "rate": 8000}
    dataset = Dataset(
        tmp_path / "x.tfrecord",
        fields={**fields, "w": "audio"},
        defaults={**{name: value for name, (_, value, _) in KINDS.items()}, "w": sound},
    )

    sample = dataset[0]

    assert (sample["w"]["samples"].dtype, sample["w"]["rate"]) == (np.float32, 8000)
    for name, (_, _, expected) in KINDS.items():
        assert type(sample[name]) is type(expected)
        assert np.array_equal(sample[name], expected) if isinstance(expected, np.ndarray) else True
        assert getattr(sample[name], "dtype", None) == getattr(expected, "dtype", None)
        assert protos.plain(sample[name]) == protos.plain(expected)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "5"), ("int", None), ("int", 2**63), ("int", 0.5), ("float", "1"), ("str", b"bytes"),
        ("bytes", "text"), ("json", {1, 2}), ("ndarray", [1]), ("ndarray", np.array([{}], object)),
        ("image", b"\xff\xd8\xff"), ("image", np.zeros(3)), ("audio", np.zeros(3)), ("audio", {"samples": 1}),
        ("example:int64", [0.5]), ("example:int64", 3), ("example:int64", [2**63]),
        ("example:bytes", b"not a list"), ("example:bytes", ["text"]), ("example:float", ["text"]),
    ],
)  # fmt: skip
def test_a_default_that_does_not_fit_is_refused_at_once(tmp_path: Path, kind: str, default: Any) -> None:
    """Before a process starts or a record is read, by number as in a loader; the field is named."""
    (tmp_path / "x.tfrecord").write_bytes(records())
    dataset = Dataset(tmp_path / "x.tfrecord", fields={"n.cls": "int", "f": kind}, defaults={"f": default})

    with pytest.raises(ConfigError, match="default of field 'f'"):
        dataset[0]
    with (
        pytest.raises(ConfigError, match="default of field 'f'"),
        Loader(dataset, batch_size=1).sync() as loader,
    ):
        next(iter(loader))


def test_names_and_values_are_checked(path: Path) -> None:
    """A default for no field lists those that there are; what cannot be copied to workers is refused."""
    with pytest.raises(ConfigError, match=r"\['clas'\].*n\.cls, cls"):
        len(Dataset(path, fields=FIELDS, defaults={"clas": 1}))
    with pytest.raises(ConfigError, match="'cls' cannot be copied"):
        Dataset(path, fields=FIELDS, defaults={"cls": lambda: 1})
    with pytest.raises(ConfigError, match="defaults map"):
        Dataset(path, fields=FIELDS, defaults=["cls"])  # type: ignore[arg-type] - what is tested


@pytest.mark.parametrize("workers", [0, 1])
def test_each_sample_has_a_copy_of_its_own(tmp_path: Path, workers: int) -> None:
    """A transform that writes to a default changes it in no other sample, nor does who gave it."""
    (tmp_path / "x.tfrecord").write_bytes(records())
    given = np.zeros(1, np.int64)
    dataset = Dataset(
        tmp_path / "x.tfrecord", fields={"n.cls": "int", "a": "example:int64"}, defaults={"a": given}
    )
    given += 5

    def add(sample: dict[str, Any]) -> dict[str, Any]:
        sample["a"] += 1
        return sample

    with Loader(dataset, batch_size=4, num_workers=workers, transform=add, collate=list).sync() as batches:
        values = [sample["a"].tolist() for batch in batches for sample in batch]

    assert values == [[1]] * COUNT


def test_decoders_of_the_users_get_what_is_there(path: Path) -> None:
    """Where one is given, any default is what the sample has, and the decoder is not asked."""
    dataset = Dataset(path, fields=FIELDS, defaults={"cls": "none"})
    own = {"cls": lambda data: "some" if len(data) else 1 / 0}

    with Loader(dataset, batch_size=COUNT, num_workers=1, decode=own).sync() as batches:
        (batch,) = batches

    assert batch["cls"] == ["some" if n in WITH else "none" for n in range(COUNT)]


def test_decoders_that_draw_go_on_drawing(tmp_path: Path) -> None:
    """A default beside pictures that are cropped at random is stacked with them."""
    picture = png(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3))
    (tmp_path / "x.tar").write_bytes(
        by_tarfile(
            [("0.png", picture), ("0.txt", b"0"), ("1.txt", b"1"), ("2.png", picture), ("2.txt", b"2")]
        )
    )
    blank = np.full((4, 4, 3), 255, np.uint8)
    dataset = Dataset(tmp_path / "x.tar", defaults={"png": blank})
    crop = decode.Image(size=4, crop="random_resized")

    with Loader(dataset, batch_size=3, num_workers=1, decode={"png": crop}).sync() as batches:
        first, second = [batch["png"].numpy() for _ in range(2) for batch in batches]

    assert (first[1] == blank).all()
    assert (second[1] == blank).all()
    assert (first[0] != second[0]).any()


def test_sets_of_several_share_their_defaults(tmp_path: Path) -> None:
    """Sets that go together may have defaults for other fields, but no two for one."""
    for name in "ab":
        (tmp_path / f"{name}.tfrecord").write_bytes(records())
    plain, other, none = (
        Dataset(tmp_path / f"{name}.tfrecord", fields=FIELDS, defaults=defaults)
        for name, defaults in (("a", {"cls": -1}), ("b", {"cls": -2}), ("b", {"n.cls": 0}))
    )

    both = Concat([plain, none])

    assert both.defaults == {"cls": -1, "n.cls": 0}
    assert labels(Concat([plain, plain])) == EXPECTED
    assert set(labels(Mix([(plain, 1.0), (plain, 1.0)])).items()) <= set(EXPECTED.items())
    with pytest.raises(SampleError, match="'cls'"):
        labels(both)
    with pytest.raises(ConfigError, match="different defaults for the field 'cls'"):
        Concat([plain, other])


def test_records_that_have_all_fields_need_none(tmp_path: Path, tiny_set: TinySet) -> None:
    """Sets of the own format and of MDS take defaults for fields that they have, and never use them."""
    folder = foreign_sets.make_mds(tmp_path / "mds", [range(3)])

    assert Dataset(tiny_set.path, defaults={"label": 9})[1]["label"] == 1
    assert type(Dataset(tiny_set.path, defaults={"label": 9}).decoders["label"]) is decode.Int
    assert Dataset(folder, defaults={"cls": 9})[1]["cls"] == 1
    with pytest.raises(ConfigError, match=r"\['x'\].*image, label, name"):
        len(Dataset(tiny_set.path, defaults={"x": 9}))
    with pytest.raises(ConfigError, match=r"\['x'\].*bin, cls"):
        len(Dataset(folder, defaults={"x": 9}))


def test_exports_have_what_is_stored(path: Path, tmp_path: Path) -> None:
    """A default is no part of the data: where a record lacks a field, the archive does too."""
    export(Dataset(path, fields=FIELDS, defaults={"cls": -1}), tmp_path / "out")

    back = Dataset(tmp_path / "out", defaults={"cls": -3})

    assert [back[n]["cls"] for n in range(COUNT)] == [
        -3 if value == -1 else value for value in EXPECTED.values()
    ]
