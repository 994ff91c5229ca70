"""Extents say what a plain set of numbers would say."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from aioload.storage.extents import Extents, joined

ranges = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda ends: (min(ends), max(ends)))
changes = st.lists(st.tuples(st.booleans(), ranges), max_size=30)


@given(changes, ranges)
def test_extents_are_a_set_of_bytes(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    """Whatever is put in and taken out, what is in, what covers and what lacks is as with single bytes."""
    extents, model = Extents(), set[int]()

    for put_in, (start, stop) in steps:
        (extents.add if put_in else extents.remove)(start, stop)
        model = model | {*range(start, stop)} if put_in else model - {*range(start, stop)}

    assert {byte for start, stop in extents for byte in range(start, stop)} == model
    assert all(stop < start for (_, stop), (start, _) in pairwise(extents))
    gaps = extents.gaps(*asked)
    assert {byte for start, stop in gaps for byte in range(start, stop)} == {*range(*asked)} - model
    if asked[0] < asked[1]:
        assert extents.covers(*asked) == (not gaps)


@given(st.lists(ranges, max_size=10), st.integers(1, 20))
def test_near_ranges_are_joined(parts: list[tuple[int, int]], distance: int) -> None:
    """Nothing gets lost, and what is left lies apart."""
    found = joined(parts, distance)

    assert all(start - stop >= distance for (_, stop), (start, _) in pairwise(found))
    assert all(any(start <= a and b <= stop for start, stop in found) for a, b in parts)
