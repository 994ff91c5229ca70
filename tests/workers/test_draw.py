"""Draw: numbers that depend on the name alone."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from aioload._workers.draw import Draw, generator

names = st.lists(st.integers(0, 2**70), min_size=1, max_size=5)


@given(first=names, second=names, drawn=st.integers(0, 9))
def test_numbers_depend_on_the_name_alone(first: list[int], second: list[int], drawn: int) -> None:
    """Whatever was drawn for other names before, halves of 64-bit words among it."""
    draw = Draw()
    expected = draw.at(*first).random(4).tolist()
    draw.at(*second).integers(0, 10, drawn, dtype=np.uint32)

    assert draw.at(*first).random(4).tolist() == expected


def test_names_have_streams_of_their_own() -> None:
    """Neighbouring records, and the places of a number in the name, share nothing."""
    draw = Draw()

    rows = [draw.at(0, epoch, record, 0, 0).random(50) for epoch in range(20) for record in range(20)]

    assert len({row.tobytes() for row in rows}) == len(rows)
    assert abs(np.mean(rows) - 0.5) < 0.01
    assert np.abs(np.corrcoef(np.array(rows[:40])) - np.eye(40)).max() < 0.7


@given(names)
def test_a_generator_is_the_one_of_numpy(words: list[int]) -> None:
    """Words of any size seed the same generator as numpy makes of them."""
    expected = np.random.default_rng(words)

    assert generator(*words).bit_generator.state == expected.bit_generator.state
