"""The list of what is cached tells what was written, and nothing else, whatever happens to its bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.shard.format import crc32c
from aioload.storage.cachesums import ENTRY_BYTES, GRAIN_BYTES, Entries, Head, parse_entries, render_entries

SIZE = 10 << 20
HEAD = Head("https://example.org/set/a", SIZE, '"tag"', "bytes-01", 1.5)

stretches = st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=40)), max_size=8)


def told(rows: Entries) -> list[tuple[int, int, int]]:
    """Start, length and sum of each."""
    return [tuple(row) for row in rows[["start", "length", "sum"]].tolist()]


@given(stretches)
def test_entries_come_back(parts: list[tuple[int, bytes]]) -> None:
    """Start, length and sum of each stretch, and the list is used up."""
    data = b"".join(render_entries(start, memoryview(part)) for start, part in parts)

    rows, used = parse_entries(data, SIZE)

    assert told(rows) == [(start, len(part), crc32c(part)) for start, part in parts]
    assert used == len(data)


def test_long_stretches_have_several_sums() -> None:
    """No sum is of more than a grain."""
    part = bytes(range(256)) * (GRAIN_BYTES // 256) * 2 + b"end"

    rows, _ = parse_entries(render_entries(7, memoryview(part)), SIZE)

    cuts = [part[:GRAIN_BYTES], part[GRAIN_BYTES : 2 * GRAIN_BYTES], b"end"]
    starts = [7, 7 + GRAIN_BYTES, 7 + 2 * GRAIN_BYTES]
    assert told(rows) == [(start, len(cut), crc32c(cut)) for start, cut in zip(starts, cuts, strict=True)]


@given(stretches, st.integers(0, 300), st.binary(max_size=50), st.integers(0, 300))
def test_damage_hides_entries_and_makes_none(
    parts: list[tuple[int, bytes]], place: int, garbage: bytes, lost: int
) -> None:
    """With bytes replaced, put in or lost, each entry that is read is one that was written."""
    data = b"".join(render_entries(start, memoryview(part)) for start, part in parts)
    damaged = data[:place] + garbage + data[place + lost :]

    rows, used = parse_entries(damaged, SIZE)

    assert set(told(rows)) <= {(start, len(part), crc32c(part)) for start, part in parts}
    assert used <= len(damaged)


@given(stretches, st.binary(min_size=1, max_size=70))
def test_entries_behind_garbage_are_found(parts: list[tuple[int, bytes]], garbage: bytes) -> None:
    """A write that was cut does not cost those after it."""
    data = b"".join(render_entries(start, memoryview(part)) for start, part in parts)

    rows, _ = parse_entries(garbage + data, SIZE)

    assert told(rows) == [(start, len(part), crc32c(part)) for start, part in parts]


@pytest.mark.parametrize("cut", range(1, ENTRY_BYTES))
def test_an_entry_that_is_being_written_is_read_later(cut: int) -> None:
    """Its beginning stays in the list until its end has come."""
    data = render_entries(5, memoryview(b"one")) + render_entries(9, memoryview(b"two"))

    first, used = parse_entries(data[: ENTRY_BYTES + cut], SIZE)
    second, _ = parse_entries(data[used:], SIZE)

    assert [*told(first), *told(second)] == [(5, 3, crc32c(b"one")), (9, 3, crc32c(b"two"))]


def test_entries_beyond_the_end_are_none() -> None:
    """Whoever cached more than the file has did not cache this file."""
    rows, _ = parse_entries(render_entries(SIZE - 2, memoryview(b"abc")), SIZE)

    assert len(rows) == 0


def test_head_comes_back() -> None:
    """With the number of its bytes, behind which the entries begin."""
    data = HEAD.render()

    assert Head.parse(data + b"entries") == (HEAD, len(data))
    assert len(data) % ENTRY_BYTES == 0


@given(st.integers(0, len(HEAD.render()) * 8 - 1))
def test_damaged_head_is_never_another_one(bit: int) -> None:
    """A flipped bit is noticed, unless it is in what fills the last row."""
    data = bytearray(HEAD.render())
    data[bit // 8] ^= 1 << bit % 8

    try:
        head, _ = Head.parse(bytes(data))
    except ValueError:
        return

    assert head == HEAD
