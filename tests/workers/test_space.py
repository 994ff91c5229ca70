"""Space: leases never overlap, nothing is lost, and what is in use stays at the bottom."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from aioload._workers.space import ALIGNMENT, Space, Span

SIZE = 64 * ALIGNMENT


class SpaceMachine(RuleBasedStateMachine):
    """Leases and releases in any order, compared with a plain list of what is out."""

    leased = Bundle("leased")

    def __init__(self) -> None:
        super().__init__()
        self.space = Space(SIZE)
        self.out: list[Span] = []

    @rule(target=leased, size=st.integers(0, SIZE))
    def lease(self, size: int) -> object:
        largest = self.space.largest
        span = self.space.lease(size)
        assert (span is not None) == (max(size, 1) <= largest)
        if span is None:
            return multiple()
        assert size <= len(span) < size + 2 * ALIGNMENT
        self.out.append(span)
        return span

    @rule(
        target=leased,
        size=st.integers(0, SIZE),
        bounds=st.tuples(st.integers(-9, SIZE), st.integers(0, SIZE + 9)),
    )
    def lease_within(self, size: int, bounds: tuple[int, int]) -> object:
        span = self.space.lease(size, within=bounds)
        if span is None:
            return multiple()
        assert bounds[0] <= span.start
        assert span.stop <= bounds[1]
        self.out.append(span)
        return span

    @rule(span=consumes(leased))
    def release(self, span: Span) -> None:
        self.space.release(span)
        self.out.remove(span)

    @invariant()
    def spans_never_overlap(self) -> None:
        edges = [
            edge for span in sorted(self.out, key=lambda span: span.start) for edge in (span.start, span.stop)
        ]
        assert edges == sorted(edges)
        assert all(edge % ALIGNMENT == 0 and 0 <= edge <= SIZE for edge in edges)

    @invariant()
    def bytes_add_up(self) -> None:
        assert self.space.used == sum(map(len, self.out))
        assert self.space.used + self.space.free == self.space.size
        assert self.space.largest <= self.space.free
        assert len(self.space) == len(self.out)

    def teardown(self) -> None:
        for span in self.out:
            self.space.release(span)
        assert self.space.free == self.space.largest == SIZE


TestSpace = SpaceMachine.TestCase


def test_lease_takes_the_lowest_place_that_fits() -> None:
    """A hole near the bottom is used again before anything above it."""
    space = Space(SIZE)
    first, second, third = space.lease(128), space.lease(64), space.lease(64)
    assert first
    assert second
    assert third

    space.release(first)

    assert space.lease(100) == first
    assert space.lease(64) == Span(third.stop, third.stop + 64)


def test_neighbours_that_are_free_become_one_span() -> None:
    """Spans released in any order can be leased again as one."""
    space = Space(3 * ALIGNMENT)
    spans = [space.lease(ALIGNMENT) for _ in range(3)]

    space.release(spans[0])  # type: ignore[arg-type]  # leased from an empty space: never None
    space.release(spans[2])  # type: ignore[arg-type]  # as above
    space.release(spans[1])  # type: ignore[arg-type]  # as above

    assert space.lease(3 * ALIGNMENT) == Span(0, 3 * ALIGNMENT)


def test_lease_within_bounds_leaves_the_rest_alone() -> None:
    """A caller can keep a zone for itself: others are given room outside it only."""
    space = Space(SIZE)

    above = space.lease(64, within=(1024, SIZE))
    below = space.lease(64)

    assert above == Span(1024, 1088)
    assert below == Span(0, 64)
    assert space.lease(2048, within=(1024, 2048)) is None


def test_lease_within_bounds_rounds_them_inwards() -> None:
    """Bounds that are no multiples of the alignment are kept to all the same."""
    space = Space(SIZE)

    span = space.lease(64, within=(1, 200))

    assert span == Span(64, 128)
    assert space.lease(64, within=(1, 191)) is None


def test_full_space_gives_none() -> None:
    """No room is an answer, not an error."""
    space = Space(SIZE)

    whole = space.lease(SIZE)

    assert whole == Span(0, SIZE)
    assert space.lease(0) is None
    assert space.largest == 0


def test_second_release_is_an_error() -> None:
    """A span given back twice is noticed, and the space is as before."""
    space = Space(SIZE)
    span = space.lease(100)
    assert span
    space.release(span)

    with pytest.raises(ValueError, match="not leased"):
        space.release(span)

    assert space.free == SIZE


def test_release_of_a_part_is_an_error() -> None:
    """Only what was leased can be given back, not a piece of it."""
    space = Space(SIZE)
    span = space.lease(128)
    assert span

    with pytest.raises(ValueError, match="not leased"):
        space.release(Span(span.start, span.start + 64))

    assert space.used == 128


def test_size_is_rounded_down_to_whole_spans() -> None:
    """Bytes at the end that no aligned span could hold are not counted as room."""
    space = Space(200)

    assert space.size == space.free == space.largest == 192
    assert space.lease(193) is None


def test_repr_shows_the_state() -> None:
    """Whoever looks at a space sees how full it is."""
    space = Space(SIZE)

    space.lease(64)

    assert repr(space) == "<Space used=64 free=4032 leases=1 free_spans=1>"


@pytest.mark.parametrize("size", [-1, 0, ALIGNMENT - 1])
def test_space_without_room_is_refused(size: int) -> None:
    """A space that could not hold one span is a mistake of its maker."""
    with pytest.raises(ValueError, match="size must be at least 64"):
        Space(size)


def test_negative_lease_is_refused() -> None:
    """A negative size is a mistake, not an empty lease."""
    space = Space(SIZE)

    with pytest.raises(ValueError, match="must not be negative"):
        space.lease(-1)
