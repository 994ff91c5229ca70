"""Zones: what works at a limit works at any larger one, and the least is known to the page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload._pipeline.needs import Need
from aioload._pipeline.zones import Zones, divide, least
from aioload.errors import ConfigError

NEEDS = st.builds(Need, st.integers(0, 1 << 34), st.none() | st.integers(0, 1 << 34))
RESERVED = st.integers(0, 1 << 16)
SIZES = st.integers(0, 1 << 34)


@given(NEEDS, RESERVED, SIZES, SIZES)
def test_the_least_limit_is_enough_and_so_is_any_larger_one(
    need: Need, reserved: int, more: int, window: int
) -> None:
    """The head's zone holds what a batch needs and half of the limit; the others share what is left."""
    limit = least(need, reserved=reserved) + more

    zones = divide(limit, need, window=window, reserved=reserved)

    assert need.run < zones.head <= zones.shared <= limit - reserved
    assert zones.head >= min(limit // 2 - 4096, limit - reserved - 12288)
    assert zones.shared == zones.head or limit - zones.shared >= limit // 4


@given(NEEDS, RESERVED, st.integers(1, 1 << 34))
def test_a_limit_below_the_least_is_refused_and_the_least_is_named(
    need: Need, reserved: int, less: int
) -> None:
    """Nothing smaller is tried in vain."""
    enough = least(need, reserved=reserved)

    with pytest.raises(ConfigError, match="memory_limit") as caught:
        divide(enough - less, need, reserved=reserved)

    assert caught.value.needed == enough  # type: ignore[attr-defined]  # a fact
    assert enough - need.run <= reserved + 4 * 4096


@given(st.integers(0, 1 << 34), RESERVED, SIZES)
def test_what_a_batch_tells_later_is_enough_too(run: int, reserved: int, more: int) -> None:
    """A limit that is divided before anything is known leaves the head what the least then has."""
    limit = least(Need(run), reserved=reserved, told=True) + more

    assert divide(limit, Need(), reserved=reserved).head > run


@given(st.integers(8192, 1 << 34), SIZES, SIZES)
def test_a_window_takes_nothing_from_the_head(limit: int, window: int, run: int) -> None:
    """Whether there is a window changes nothing for the run that is needed next."""
    need = Need(min(run, limit - 12288) if limit > 12288 else 0)

    heads = {divide(limit, need, window=size).head for size in (0, window)}

    assert len(heads) == 1


def test_a_window_that_does_not_fit_is_none() -> None:
    """A window has its whole size or none; a quarter of the limit is left for what all runs share."""
    assert divide(1 << 20, Need(), window=1 << 18) == Zones(1 << 20, 1 << 19, 3 << 18)
    assert divide(1 << 20, Need(), window=(1 << 18) + 4096) == Zones(1 << 20, 1 << 19, 1 << 19)
