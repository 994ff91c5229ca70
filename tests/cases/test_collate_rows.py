"""Case rows C01, C02, C04 and C05 behind the loader; test_collate.py has them value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import counted, take_sync
from torch.utils.data import default_collate

from aioload import Loader, SampleError, collate


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten records."""
    return counted(tmp_path_factory.mktemp("ten") / "set", 10)


UNIFORM = {
    "float32": np.float32(1),
    "float64": np.zeros(2),
    "uint8": np.zeros(2, np.uint8),
    "int64": np.zeros(2, np.int64),
    "bool": np.zeros(2, bool),
    "int": 1,
    "float": 1.5,
    "python_bool": True,
}


@pytest.mark.parametrize("name", UNIFORM)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_c01_uniform_dtypes(ten: Path, name: str, num_workers: int) -> None:
    """C01: a field of one dtype comes as torch's default_collate makes it."""
    value = UNIFORM[name]
    expected = default_collate([value] * 10)

    batch = take_sync(Loader(ten, batch_size=10, num_workers=num_workers, transform=lambda _: {"x": value}))[
        0
    ]

    assert batch["x"].dtype == expected.dtype
    assert torch.equal(batch["x"], expected)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("odd", range(4))
def test_c01_mixed_dtypes(ten: Path, num_workers: int, odd: int) -> None:
    """C01: a float32 among uint8 makes its batch float32, wherever it stands, and no other batch."""

    def transform(sample: Any) -> Any:
        return {"x": np.full(2, sample["n"], np.float32 if sample["n"] == odd else np.uint8)}

    found = take_sync(Loader(ten, batch_size=4, num_workers=num_workers, transform=transform))

    assert [batch["x"].dtype for batch in found] == [torch.float32, torch.uint8, torch.uint8]
    assert torch.cat([batch["x"][:, 0].int() for batch in found]).tolist() == list(range(10))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_c02_strings_and_bytes(ten: Path, num_workers: int) -> None:
    """C02: str, bytes and np.str_ become lists in order, deep in a sample too."""

    def transform(sample: Any) -> Any:
        text = sample["text"]
        return {"a": {"str": text, "bytes": text.encode(), "numpy": np.str_(text)}}

    found = take_sync(Loader(ten, batch_size=6, num_workers=num_workers, transform=transform))

    texts = [f"t{record}" for record in range(10)]
    assert [text for batch in found for text in batch["a"]["str"]] == texts
    assert [text for batch in found for text in batch["a"]["numpy"]] == texts
    assert [data for batch in found for data in batch["a"]["bytes"]] == [text.encode() for text in texts]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [2, 10])
def test_c02_none(ten: Path, num_workers: int, batch_size: int) -> None:
    """C02: a None in one sample of a nested dict is an error with the field's path and the record's key."""

    def transform(sample: Any) -> Any:
        return {"meta": {"boxes": [sample["n"], None if sample["n"] == 5 else 1]}}

    with pytest.raises(SampleError, match="None") as caught:
        take_sync(Loader(ten, batch_size=batch_size, num_workers=num_workers, transform=transform))

    assert caught.value.field == "meta.boxes[1]"
    assert "k5" in str(caught.value)
    assert caught.value.records == ("record 'k5'",)
    assert caught.value.step == 5 // batch_size


def test_c02_none_in_a_list_if_so_configured(ten: Path) -> None:
    """C02: who wants None asks for a list."""

    def transform(sample: Any) -> Any:
        return {"x": None if sample["n"] == 5 else sample["n"]}

    lists = collate.by_field({"x": collate.as_list})
    found = take_sync(Loader(ten, batch_size=10, num_workers=1, transform=transform, collate=lists))

    assert found[0]["x"] == [0, 1, 2, 3, 4, None, 6, 7, 8, 9]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [2, 10])
def test_c04_different_shapes(ten: Path, num_workers: int, batch_size: int) -> None:
    """C04: (3, 4) and (3, 5) in a batch are an error with path, both shapes, both keys, and the way out."""

    def transform(sample: Any) -> Any:
        return {"image": {"pixels": np.zeros((3, 5 if sample["n"] == 7 else 4))}}

    with pytest.raises(SampleError, match="shapes differ") as caught:
        take_sync(Loader(ten, batch_size=batch_size, num_workers=num_workers, transform=transform))

    other = 7 // batch_size * batch_size
    assert caught.value.field == "image.pixels"
    assert "(3, 4)" in str(caught.value)
    assert "(3, 5)" in str(caught.value)
    assert f"k{other}" in str(caught.value)
    assert "k7" in str(caught.value)
    assert "as_list" in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_c04_one_sample_a_batch(ten: Path, num_workers: int) -> None:
    """C04: with batches of one sample any shape is fine."""

    def transform(sample: Any) -> Any:
        return {"x": np.zeros((3, sample["n"]))}

    found = take_sync(Loader(ten, batch_size=1, num_workers=num_workers, transform=transform))

    assert [tuple(batch["x"].shape) for batch in found] == [(1, 3, n) for n in range(10)]


def test_c04_a_list_by_request(ten: Path) -> None:
    """C04: the way out that the message names works."""

    def transform(sample: Any) -> Any:
        return {"x": np.zeros((3, sample["n"])), "n": sample["n"]}

    lists = collate.by_field({"x": collate.as_list})
    batch = take_sync(Loader(ten, batch_size=10, num_workers=1, transform=transform, collate=lists))[0]

    assert [tuple(value.shape) for value in batch["x"]] == [(3, n) for n in range(10)]
    assert batch["n"].tolist() == list(range(10))


VIEWS = {
    "reversed": lambda a: a[::-1],
    "transposed": lambda a: a.T,
    "sliced": lambda a: a[:, ::2],
    "one row reversed": lambda a: a[:1][::-1],
    "fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[0], (4, 6)),
    "big endian": lambda a: a.astype(">f4"),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_c05_flipped_and_sliced_arrays(ten: Path, name: str, num_workers: int) -> None:
    """C05: arrays that do not lie in a row are stacked as `np.stack` does, in every epoch."""
    view = VIEWS[name]
    arrays = [np.arange(24, dtype=np.float32).reshape(4, 6) + record for record in range(10)]
    expected = np.stack([view(array) for array in arrays])

    def transform(sample: Any) -> Any:
        return {"x": view(np.arange(24, dtype=np.float32).reshape(4, 6) + np.float32(sample["n"]))}

    with Loader(ten, batch_size=4, num_workers=num_workers, transform=transform).sync() as loader:
        epochs = [torch.cat([batch["x"] for batch in loader]).numpy() for _ in range(2)]

    assert [np.array_equal(epoch, expected) for epoch in epochs] == [True, True]


def test_c05_the_users_arrays_are_untouched(ten: Path) -> None:
    """C05: an array that the transform keeps for itself is neither changed nor what the batch shares."""
    kept = np.arange(6, dtype=np.float32)

    batch = take_sync(Loader(ten, batch_size=10, num_workers=0, transform=lambda _: {"x": kept[::-1]}))[0]
    batch["x"].zero_()

    assert kept.tolist() == [0, 1, 2, 3, 4, 5]
