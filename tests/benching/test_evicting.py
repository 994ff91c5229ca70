"""Ranges that the kernel is asked to forget."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import TinySet

from aioload import Dataset
from aioload.benching import Setup, evicting
from aioload.benching.evicting import evict
from aioload.benching.pattern import Ranges, ranges_of
from aioload.benching.shape import access_of, plan_of
from aioload.storage import MemoryStorage


def reads(dataset: Dataset) -> Ranges:
    """Return all reads of an epoch in order."""
    setup = Setup(4, 0, shuffle=False)
    return ranges_of(plan_of(dataset, setup), access_of(dataset, setup))


@pytest.mark.parametrize(("kept", "forgot"), [(False, True), (True, False)])
def test_it_is_told_whether_the_kernel_forgot(
    tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch, kept: bool, forgot: bool
) -> None:
    """Whole pages of just these ranges are named, and then it is looked whether they are there still."""
    dataset, asked = Dataset(tiny_set.path), list[tuple[int, int]]()
    own = reads(dataset)
    monkeypatch.setattr(evicting, "_is_there", lambda fd, place: kept)
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, start, length, how: asked.append((start, start + length))
    )

    found = evict(dataset, own)

    assert found is forgot
    assert len(asked) == len(own)
    assert all(place % evicting.mmap.PAGESIZE == 0 for range_ in asked for place in range_)
    assert all(
        first <= start < stop <= last
        for (first, last), start, stop in zip(
            sorted(asked), np.sort(own.start), np.sort(own.stop), strict=True
        )
    )


def test_without_files_there_is_nothing_to_ask(tiny_set: TinySet) -> None:
    """What is in a storage of the user's has no page cache here; and no ranges need none."""
    files = {path.name: path.read_bytes() for path in Path(tiny_set.path).iterdir()}
    here, there = Dataset(tiny_set.path), Dataset(MemoryStorage(files))

    assert evict(there, reads(there)) is None
    assert evict(here, reads(here).first(0)) is None
