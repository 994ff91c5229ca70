"""Decoders that draw random numbers, and those that write straight into the batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import png

import aioload
from aioload import Loader
from aioload.decode import Image

RECORDS = 40


@dataclass(frozen=True)
class Noise:
    """A user's decoder that draws."""

    draws = True

    def __call__(self, data: memoryview, *, rng: np.random.Generator) -> np.ndarray:
        return rng.random(3)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack pictures of noise."""
    random = np.random.default_rng(4)
    folder = tmp_path_factory.mktemp("pictures") / "set"
    with aioload.Writer(folder, fields={"image": "image", "other": "image", "n": "int"}) as writer:
        for n in range(RECORDS):
            pixels = random.integers(0, 256, (24, 30, 3), dtype=np.uint8)
            writer.write({"image": png(pixels), "other": png(pixels), "n": n})
    return folder


def crops(layout: Any = "HWC") -> Image:
    """Make a decoder that draws."""
    return Image(size=16, crop="random_resized", flip=True, layout=layout)


def epochs(path: Path, count: int = 1, **options: Any) -> list[dict[str, np.ndarray]]:
    """Return all records of some epochs, in the order of the file."""
    found = []
    with Loader(path, batch_size=7, **options).sync() as loader:
        for _ in range(count):
            batches = list(loader)
            arrays = [name for name, column in batches[0].items() if not isinstance(column, list)]
            columns = {name: np.concatenate([batch[name].numpy() for batch in batches]) for name in arrays}
            by_number = np.argsort(columns["n"])
            found.append({name: column[by_number] for name, column in columns.items()})
    return found


@pytest.mark.parametrize("decoder", [crops(), crops("CHW"), Noise()])
def test_what_is_drawn_depends_on_seed_epoch_and_record_alone(pictures: Path, decoder: Any) -> None:
    """Not on workers, order, batch or how records are read; each epoch draws anew."""
    decode = {"image": decoder, "other": "raw"}
    expected = epochs(pictures, 2, decode=decode, num_workers=0)

    others = [
        epochs(pictures, 2, decode=decode, num_workers=2, shuffle="full"),
        epochs(pictures, 2, decode=decode, num_workers=1, reads="file"),
    ]
    seeded = epochs(pictures, decode=decode, num_workers=0, seed=1)

    for found in others:
        for ours, theirs in zip(found, expected, strict=True):
            assert np.array_equal(ours["image"], theirs["image"])
    assert not np.array_equal(expected[0]["image"], expected[1]["image"])
    assert not np.array_equal(expected[0]["image"], seeded[0]["image"])


def test_fields_draw_apart(pictures: Path) -> None:
    """Two fields with the same bytes and the same decoder get crops of their own."""
    (found,) = epochs(pictures, decode={"image": crops(), "other": crops()}, num_workers=1)

    assert not np.array_equal(found["image"], found["other"])


def test_straight_into_the_batch_or_not_is_the_same(pictures: Path) -> None:
    """A transform keeps decoders from writing into the batch; what comes out does not show it."""
    decode = {"image": crops(), "other": Image(size=(8, 9))}

    (straight,) = epochs(pictures, decode=decode, num_workers=2)
    (around,) = epochs(pictures, decode=decode, num_workers=2, transform=_same)

    assert all(np.array_equal(straight[name], around[name]) for name in straight)


def _same(sample: dict[str, Any]) -> dict[str, Any]:
    del sample["__key__"]
    return sample


def test_a_foreseen_make_that_is_not_met_is_no_error(pictures: Path) -> None:
    """A decoder whose example is of another make than its results: the batch is made the long way."""
    (found,) = epochs(pictures, decode={"image": Liar(), "other": "raw"}, num_workers=2)

    assert found["image"].shape == (RECORDS, 2)


class Liar:
    """Says that it gives one number."""

    example = 0

    def __call__(self, data: memoryview) -> np.ndarray:
        return np.array([len(data), 1])
