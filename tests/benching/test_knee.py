"""The knee: the least that is as good as the best, whatever rates waver."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.benching import Point, find_knee

rates = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=5).map(tuple)
curves = st.dictionaries(st.integers(0, 64), rates, min_size=1, max_size=8).map(
    lambda found: [Point(value, each) for value, each in found.items()]
)


@given(curves)
def test_the_knee_is_never_beyond_the_best(points: list[Point]) -> None:
    """It is one of the settings, no larger than the best one, and no slower than the tolerance and noise."""
    knee = find_knee(points)

    found = next(point for point in points if point.value == knee.value)
    best = next(point for point in points if point.value == knee.best)
    assert knee.value <= knee.best
    assert best.rate == max(point.rate for point in points)
    assert found.rate >= best.rate * 0.95 - math.hypot(found.error, best.error)


@given(curves, st.randoms())
def test_the_order_of_points_does_not_matter(points: list[Point], random: object) -> None:
    """Points may come as they were measured."""
    shuffled = list(points)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert find_knee(shuffled) == find_knee(points)


@given(curves, st.floats(0.01, 1000))
def test_the_unit_does_not_matter(points: list[Point], factor: float) -> None:
    """The same curve in other units has its knee at the same place, but for rounding."""
    # given steps that are far from the tolerance
    steps = [Point(point.value, (float(2**place),)) for place, point in enumerate(points)]

    scaled = [Point(point.value, (point.rate * factor,)) for point in steps]

    assert find_knee(scaled).value == find_knee(steps).value


@pytest.mark.parametrize(
    ("by_value", "expected"),
    [
        ({1: [100], 2: [200], 4: [395], 8: [400]}, 4),
        ({1: [100], 2: [200], 4: [300], 8: [400]}, 8),
        ({1: [400], 2: [390], 4: [300]}, 1),
        ({1: [370], 2: [400]}, 2),
        ({1: [381], 2: [400]}, 1),
    ],
    ids=["saturates", "scales", "one is best", "seven percent less", "within the tolerance"],
)
def test_known_curves(by_value: dict[int, list[float]], expected: int) -> None:
    """Five percent decide, where nothing wavers."""
    knee = find_knee([Point(value, tuple(each)) for value, each in by_value.items()])

    assert knee.value == expected
    assert knee.is_clear


def test_a_difference_within_the_noise_is_none() -> None:
    """Rates that overlap do not ask for more workers, and it is told that they are not clear."""
    points = [Point(1, (300.0, 370.0, 440.0)), Point(2, (330.0, 400.0, 470.0))]

    knee = find_knee(points)

    assert (knee.value, knee.best) == (1, 2)
    assert not knee.is_clear
    assert knee.noise > 0.05


@pytest.mark.parametrize("points", [[], [Point(1, ())]])
def test_without_a_measurement_there_is_no_knee(points: list[Point]) -> None:
    """Nothing is made up."""
    with pytest.raises(ValueError, match="measurement"):
        find_knee(points)
