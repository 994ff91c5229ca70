"""Held records: drawn from all of a set, and the same as there."""

from __future__ import annotations

from pathlib import Path

import foreign_sets
import numpy as np
import pytest
from conftest import TinySet
from hypothesis import given
from hypothesis import strategies as st

from aioload import Dataset, Loader
from aioload.benching.held import hold, some_records
from aioload.storage import LocalStorage


@given(st.integers(1, 10**7), st.integers(1, 10**8), st.integers(0, 5))
def test_records_are_drawn_from_everywhere(records: int, mean: int, seed: int) -> None:
    """They are different ones, ascending, not too many, and reach from the first part to the last."""
    drawn = some_records(records, records * mean, seed=seed)

    assert len(drawn) >= min(records, 256)
    assert len(drawn) <= 16_384
    assert drawn[0] >= 0
    assert drawn[-1] < records
    assert (np.diff(drawn) > 0).all()
    assert drawn[0] <= records / 64 + 1
    assert drawn[-1] >= records - records / 64 - 2


def test_held_records_are_those_of_the_set(tiny_set: TinySet) -> None:
    """A loader over them gives the samples that one over the set gives."""
    dataset = Dataset(tiny_set.path)

    with hold(dataset) as held, Loader(held, batch_size=24, num_workers=0).sync() as batches:
        [batch] = batches
    with Loader(dataset, batch_size=24, num_workers=0).sync() as batches:
        [expected] = batches

    assert batch["name"] == expected["name"]
    assert (batch["image"] == expected["image"]).all()


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_records_of_others_are_held_too(tmp_path: Path, kind: str) -> None:
    """Of a foreign set, samples come as from the set itself."""
    make = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    (tmp_path / f"x.{kind}").write_bytes(make(range(9)))
    dataset = Dataset(tmp_path / f"x.{kind}")

    with hold(dataset) as held:
        assert held.fields == dataset.fields
        with Loader(held, batch_size=9, num_workers=0).sync() as batches:
            [batch] = batches

    assert np.ravel(batch["cls"]).tolist() == list(range(9))


def test_nothing_is_left_of_held_records(tiny_set: TinySet) -> None:
    """Their file goes with the block."""
    with hold(Dataset(tiny_set.path)) as held:
        storage = held.open_storage()
        assert isinstance(storage, LocalStorage)
        path = Path(storage.path("held"))
        assert path.is_file()

    assert not path.parent.exists()
