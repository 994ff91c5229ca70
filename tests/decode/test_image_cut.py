"""What is cut out of a picture: areas, forms and places of crops, turns, heads of JPEGs, smoothing."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from aioload.decode._cut import NUMBERS, STRAIGHT, TURNS, Turn, centre_box, random_box, reduction
from aioload.decode._jpeg import read_head
from aioload.decode._smooth import WIDEST, taps

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
sides = st.integers(1, 5000)
shares = st.floats(0, 1, exclude_max=True)


def boxes(width: int, height: int, count: int = 4000) -> np.ndarray:
    """Draw many random boxes."""
    rng = np.random.default_rng(11)
    drawn = [random_box(rng.random(NUMBERS).tolist(), width, height, SCALE, RATIO) for _ in range(count)]
    return np.array(drawn, float)


def head_of(picture: Pillow.Image, **options: object) -> object:
    """Write a JPEG and read its head."""
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    return read_head(memoryview(file.getvalue()))


@given(st.lists(shares, min_size=NUMBERS, max_size=NUMBERS), sides, sides)
def test_random_boxes_lie_inside(numbers: list[float], width: int, height: int) -> None:
    """Whatever is drawn, a box has at least one pixel, all of them the picture's, and whole numbers."""
    left, top, columns, rows = random_box(numbers, width, height, SCALE, RATIO)

    assert 0 <= left < left + columns <= width
    assert 0 <= top < top + rows <= height
    assert all(isinstance(edge, int) for edge in (left, top, columns, rows))


def test_areas_are_uniform_and_forms_are_too_on_a_logarithmic_scale() -> None:
    """In a picture where nearly all boxes fit, areas and forms spread over their ranges as promised."""
    _, _, columns, rows = boxes(1000, 1000).T

    area = columns * rows / 1e6
    form = np.log(columns / rows) / math.log(4 / 3)

    small, large = np.percentile(area[area < 0.7], [25, 75])
    assert small == pytest.approx(0.08 + 0.62 / 4, abs=0.02)
    assert large == pytest.approx(0.08 + 0.62 * 3 / 4, abs=0.02)
    assert np.percentile(form[area < 0.7], [25, 50, 75]) == pytest.approx([-0.5, 0, 0.5], abs=0.06)
    assert np.abs(form).max() == pytest.approx(1, abs=0.02)


def test_places_are_uniform() -> None:
    """A box is as likely at one edge as at the other, and touches both."""
    left, top, columns, rows = boxes(500, 375).T

    across, down = left / np.maximum(500 - columns, 1), top / np.maximum(375 - rows, 1)

    assert np.percentile(across[columns < 400], [25, 50, 75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.04)
    assert np.percentile(down[rows < 300], [25, 50, 75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.04)
    assert {left.min(), (left + columns).max()} == {0, 500}
    assert {top.min(), (top + rows).max()} == {0, 375}


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13)), (1, 1, (0, 0, 1, 1))],
)
def test_a_box_that_never_fits_is_the_central_one(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    """Where ten draws find nothing, the largest central part of an allowed form is taken."""
    never = [0.999] * NUMBERS

    found = random_box(never, width, height, SCALE, RATIO)

    assert found == box


@given(sides, sides, st.floats(0.1, 10))
def test_central_boxes_are_as_large_as_fits(width: int, height: int, ratio: float) -> None:
    """A central box touches two edges, is in the middle to a pixel, and has the form, to a pixel."""
    left, top, columns, rows = centre_box(width, height, ratio)

    assert columns == width or rows == height
    assert 0 <= width - columns - 2 * left <= 1
    assert 0 <= height - rows - 2 * top <= 1
    assert columns == pytest.approx(min(width, height * ratio), abs=1)
    assert rows == pytest.approx(min(height, width / ratio), abs=1)


@pytest.mark.parametrize("turn", [STRAIGHT, *TURNS.values()])
def test_a_box_turns_with_its_picture(turn: Turn) -> None:
    """Cutting and then turning gives the pixels that turning and then cutting gives."""
    stored = np.arange(7 * 5).reshape(5, 7)
    upright = stored.T if turn.transpose else stored
    upright = upright[:, ::-1] if turn.left_right else upright
    upright = upright[::-1] if turn.top_bottom else upright

    height, width = upright.shape
    left, top, columns, rows = map(int, turn.stored((1, 2, 3, 2), width, height))

    assert turn.size(7, 5) == (width, height)
    assert set(stored[top : top + rows, left : left + columns].flat) == set(upright[2:4, 1:4].flat)


@given(sides, sides, sides, sides)
def test_twice_the_size_is_kept(columns: int, rows: int, width: int, height: int) -> None:
    """A JPEG is decoded smaller as far as possible while twice the size asked for remains."""
    factor = reduction((0, 0, columns, rows), width, height)

    assert factor in (1, 2, 4, 8)
    assert factor == 1 or min(columns / width, rows / height) >= 2 * factor
    assert factor == 8 or min(columns / width, rows / height) < 4 * factor


@pytest.mark.parametrize(
    ("options", "one_stream"),
    [
        ({}, True),
        ({"subsampling": 0}, True),
        ({"progressive": True}, False),
        ({"restart_marker_rows": 1}, False),
    ],
    ids=["baseline", "444", "progressive", "restarts"],
)
def test_heads_of_plain_jpegs(options: dict[str, object], one_stream: bool) -> None:
    """The head tells the size, the orientation, and whether rows follow one another without a break."""
    exif = Pillow.Exif()
    exif[0x0112] = 6

    head = head_of(Pillow.new("RGB", (50, 30)), exif=exif, icc_profile=b"x" * 70_000, **options)

    assert (head.width, head.height, head.orientation) == (50, 30, 6)
    assert (head.height_at is not None) == one_stream


def test_other_heads_are_nobodys_business() -> None:
    """CMYK, tags in two segments, other formats, and whatever ends too early give no head, and no error."""
    file = io.BytesIO()
    Pillow.new("RGB", (50, 30)).save(file, "JPEG", exif=Pillow.Exif().tobytes() + bytes(20))
    plain = file.getvalue()
    size = 2 + int.from_bytes(plain[4:6], "big")
    exif = plain.index(b"\xff\xe1")
    segment = plain[exif : exif + 2 + int.from_bytes(plain[exif + 2 : exif + 4], "big")]
    scan = plain.index(b"\xff\xda")

    heads = [read_head(plain[:stop]) for stop in range(scan + 4)]

    assert set(heads) == {None}
    assert read_head(plain) is not None
    assert read_head(plain[: 2 + size] + segment + plain[2 + size :]) is None
    assert head_of(Pillow.new("CMYK", (5, 3))) is None
    assert read_head(b"\x89PNG" + bytes(40)) is None


@given(st.floats(0.01, WIDEST))
def test_smoothing_keeps_brightness(shrink: float) -> None:
    """Taps sum to one, are the same to both sides, and are as many as the shrinking needs."""
    weights = taps(shrink * 1000, 1000)

    assert weights.sum() == pytest.approx(1, abs=1e-5)
    assert np.array_equal(weights, weights[::-1])
    assert len(weights) == (1 if round(shrink * 64) <= 64 else 2 * math.ceil(round(shrink * 64) / 64) + 1)
    assert weights.max() == weights[len(weights) // 2]
