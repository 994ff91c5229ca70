"""Crops, sizes, flips and layouts of the image decoder, on all of its roads."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from pictures import apart, encoded, made, opened
from PIL import Image as Pillow

from aioload.decode import Image
from aioload.errors import ConfigError

TRAIN = {"size": 64, "crop": "random_resized", "flip": True}
BACKENDS = ("pillow", "fast")


def seeded(number: int) -> np.random.Generator:
    """Make what a loader gives to each call."""
    return np.random.default_rng(number)


def colours() -> Pillow.Image:
    """Make a picture that tells at each pixel where it is: red by column, green by row."""
    rows, columns = np.mgrid[0:200, 0:250]
    return Pillow.fromarray(np.stack([columns, rows, 0 * rows], -1).astype(np.uint8))


def places(pixels: np.ndarray) -> tuple[float, float, float, float]:
    """Return left, top, width and height of what is seen of `colours`; the width is negative after a flip."""
    step = (pixels[5:-5, -6, 0].mean() - pixels[5:-5, 5, 0].mean()) / (pixels.shape[1] - 11)
    down = (pixels[-6, 5:-5, 1].mean() - pixels[5, 5:-5, 1].mean()) / (pixels.shape[0] - 11)
    left = pixels[5:-5, 5, 0].mean() + 0.5 - 5.5 * step
    top = pixels[5, 5:-5, 1].mean() + 0.5 - 5.5 * down
    return left, top, step * pixels.shape[1], down * pixels.shape[0]


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"size": 40, "crop": "center"}, (40, 40, 3)),
        ({"size": (30, 50), "crop": "center", "layout": "CHW"}, (3, 30, 50)),
        ({"size": (30, 50)}, (30, 50, 3)),
        ({"size": (30, 50), "mode": "L", "layout": "CHW"}, (30, 50)),
        ({"size": 40, "mode": "RGBA", **TRAIN}, (64, 64, 4)),
        ({"size": (30, 50), "mode": "I;16"}, (30, 50)),
        ({"size": np.int64(40)}, None),
        ({"flip": True}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_static_shapes_are_those_of_results(
    options: dict[str, Any], shape: tuple[int, ...] | None, backend: Any
) -> None:
    """The shape that a decoder tells beforehand is that of each result, or None where pictures decide."""
    decode = Image(backend=backend, **options)
    kind = "L" if decode.mode == "I;16" else "RGB"
    data = encoded(made(0).convert(kind))

    pixels = decode(data, rng=seeded(0))

    assert decode.static_shape == shape
    assert shape in (None, pixels.shape)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("size", "shape"),
    [(150, (150, 200, 3)), (8, (8, 10, 3)), (600, (600, 800, 3)), ((10, 700), (10, 700, 3))],
)
def test_without_a_crop_the_whole_picture_is_resized(
    backend: Any, size: int | tuple[int, int], shape: tuple[int, ...]
) -> None:
    """One number is the shorter side of the result, a pair is both of its sides."""
    data = encoded(made(1))

    upright = Image(size=size, backend=backend)(data)
    turned = Image(size=size, backend=backend)(encoded(made(1), orientation=6))

    height, width, _ = shape
    assert upright.shape == shape
    assert turned.shape == ((width, height, 3) if isinstance(size, int) else shape)
    assert apart(upright, np.asarray(opened(data).resize((width, height), 2))).mean() < 2


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("value", [1, 2, 5, 6, 8])
def test_the_centre_is_that_of_the_upright_picture(kind: str, value: int) -> None:
    """A central crop takes the middle of what one sees, whichever way its file lies."""
    data = encoded(made(2), kind, value)
    whole = opened(data)
    side = min(whole.size)
    left, top = (whole.width - side) // 2, (whole.height - side) // 2

    pixels = Image(size=96, crop="center")(data)

    expected = whole.resize((96, 96), Pillow.Resampling.BILINEAR, (left, top, left + side, top + side))
    assert apart(pixels, np.asarray(expected)).mean() < 1


@pytest.mark.parametrize("antialias", [True, False])
def test_crops_are_the_same_on_all_roads(antialias: bool) -> None:
    """Box and flip of a picture depend on the random numbers alone, not on format, backend or turn."""
    decode = {
        backend: Image(backend=backend, antialias=antialias, size=80, crop="random_resized", flip=True)
        for backend in BACKENDS
    }
    files = {"PNG": encoded(colours(), "PNG"), "JPEG": encoded(colours(), quality=100, subsampling=0)}
    lying = encoded(
        colours().transpose(Pillow.Transpose.ROTATE_90), quality=100, subsampling=0, orientation=6
    )

    for seed in range(12):
        found = [
            decode[backend](data, rng=seeded(seed))
            for data in (*files.values(), lying)
            for backend in BACKENDS
        ]

        boxes = [places(pixels) for pixels in found]
        assert np.ptp(boxes, axis=0).max() < 3, seed  # what rounded colours cannot tell


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_crops_have_their_range_of_areas(backend: Any) -> None:
    """Areas and forms of what is seen in the results keep to `scale` and `ratio`, and spread over them."""
    decode = Image(size=(48, 64), crop="random_resized", scale=(0.2, 0.5), ratio=(0.5, 2), backend=backend)
    data = encoded(colours(), quality=100, subsampling=0)

    boxes = np.array([places(decode(data, rng=seeded(seed))) for seed in range(150)])

    area = boxes[:, 2] * boxes[:, 3] / (200 * 250)
    form = np.log2(boxes[:, 2] / boxes[:, 3])
    assert 0.18 < area.min() < 0.24
    assert 0.46 < area.max() < 0.52
    assert -1.05 < form.min() < -0.8
    assert 0.8 < form.max() < 1.05


@pytest.mark.parametrize(("flip", "share"), [(True, 0.5), (False, 0), (0.2, 0.2), (1.0, 1)])
def test_flips_are_as_frequent_as_asked(flip: bool | float, share: float) -> None:
    """A flip exchanges left and right with its probability, and nothing else."""
    decode = Image(flip=flip, backend="fast")
    data = encoded(made(3).resize((24, 16)))
    straight = Image()(data)

    found = [decode(data, rng=seeded(seed)) for seed in range(400)]

    flipped = [np.array_equal(pixels, straight[:, ::-1]) for pixels in found]
    same = [np.array_equal(pixels, straight) for pixels in found]
    assert sum(flipped) + sum(same) == 400
    assert abs(sum(flipped) - 400 * share) <= 4 * math.sqrt(400 * share * (1 - share))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_numbers_make_the_same_picture(backend: Any) -> None:
    """A result depends on bytes and generator alone, and each call takes as many numbers as any other."""
    decode = Image(backend=backend, **TRAIN)
    wide, high = encoded(made(4)), encoded(made(5).resize((20, 300)), "PNG")
    one, other = seeded(1), seeded(1)

    first = decode(wide, rng=one)
    decode(high, rng=other)

    assert np.array_equal(first, decode(wide, rng=seeded(1)))
    assert not np.array_equal(first, decode(wide, rng=seeded(2)))
    assert one.bit_generator.state == other.bit_generator.state


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_numbers_nothing_is_random(backend: Any) -> None:
    """Called without a generator, a random crop is the central one, and nothing is flipped."""
    data = encoded(made(6))

    looked_at = Image(backend=backend, size=64, crop="random_resized", flip=1.0)(data)

    assert np.array_equal(looked_at, Image(backend=backend, size=64, crop="center")(data))


def test_a_decoder_says_whether_it_draws() -> None:
    """Generators need be made only for decoders whose results depend on them."""
    assert Image(**TRAIN).draws
    assert Image(flip=0.1).draws
    assert not Image(size=64, crop="center", flip=0).draws
    assert not Image().draws


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize(
    ("kind", "mode", "value"),
    [
        ("JPEG", "RGB", 1),
        ("JPEG", "L", 1),
        ("JPEG", "RGB", 7),
        ("JPEG", "L", 6),
        ("PNG", "RGBA", 1),
        ("TIFF", "RGB", 8),
        ("JPEG", "I;16", 1),
    ],
)
@pytest.mark.parametrize(
    "options", [TRAIN, {}, {"size": 50}, {"flip": 1.0}], ids=lambda options: str(list(options))
)
def test_straight_into_a_place(
    kind: str, mode: Any, value: int, layout: Any, backend: Any, options: dict[str, Any]
) -> None:
    """What is decoded into a row of a batch is what a call returns, and rows beside it are left alone."""
    picture = made(7).convert("L") if mode == "I;16" else made(7)
    data = encoded(picture, kind, value)
    decode = Image(mode=mode, layout=layout, backend=backend, **options)
    called = decode(data, rng=seeded(3))
    batch = np.full((3, *called.shape), 77, called.dtype)

    done = decode.into(memoryview(data), batch[1], rng=seeded(3))

    assert done
    assert np.array_equal(batch[1], called)
    assert (batch[[0, 2]] == 77).all()
    assert called.flags.c_contiguous
    assert called.flags.writeable


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "place",
    [
        np.empty((375, 500), np.uint8),
        np.empty((500, 375, 3), np.uint8),
        np.empty((375, 500, 3), np.int8),
        np.empty((1, 375, 500, 3), np.uint8),
    ],
    ids=lambda place: f"{place.shape} {place.dtype}",
)
def test_a_place_that_does_not_fit_is_told(backend: Any, place: np.ndarray) -> None:
    """A place of another shape or type is refused; nothing is converted, cut or repeated to fit."""
    decode = Image(backend=backend)

    done = decode.into(encoded(made(8)), place)

    assert not done


def test_all_frames_have_the_layout_asked_for() -> None:
    """Frames of an animation come in planes, too."""
    frames = [made(9).resize((40, 30)), made(9).resize((40, 30)).rotate(180)]
    data = encoded(frames[0], "PNG", save_all=True, append_images=frames[1:])

    planes = Image(all_frames=True, layout="CHW")(data)

    assert planes.shape == (2, 3, 30, 40)
    assert np.array_equal(planes[1].transpose(1, 2, 0), np.asarray(frames[1]))


def test_16_bits_are_resized_in_16_bits() -> None:
    """A resize keeps what 16-bit gray holds beyond 8 bits."""
    values = np.linspace(0, 65535, 400).astype(np.uint16).reshape(1, 400).repeat(100, 0)

    pixels = Image(mode="I;16", size=(50, 200))(encoded(Pillow.fromarray(values), "PNG"))

    assert pixels.dtype == np.uint16
    assert apart(pixels, values.reshape(100, 200, 2).mean(2).astype(np.uint16)[:50])[:, 1:-1].max() <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "center"}, "crop='center' needs a size"),
        ({"crop": "five", "size": 4}, "crop must be one of random_resized, center, None"),
        ({"size": 0}, "size must be positive"),
        ({"size": (4, -1)}, "size must be positive"),
        ({"size": True}, "size must be positive"),
        ({"size": 1.5}, "size must be a whole number or a pair"),
        ({"size": (1, 2, 3)}, "size must be a whole number or a pair"),
        ({**TRAIN, "scale": (0.5, 0.1)}, "scale must be positive, and its first number not above"),
        ({**TRAIN, "scale": (0, 1)}, "scale must be positive"),
        ({**TRAIN, "scale": (0.5, 2)}, "scale is a share of the picture"),
        ({**TRAIN, "ratio": (2, 1)}, "ratio must be positive"),
        ({**TRAIN, "ratio": 1}, "ratio must be a pair"),
        ({**TRAIN, "ratio": (1, float("nan"))}, "ratio must be positive"),
        ({"size": 4, "scale": (0.5, 1)}, "scale and ratio are those of a random crop"),
        ({"flip": 1.5}, "flip must be True, False or a probability"),
        ({"flip": "left"}, "flip must be True, False or a probability"),
        ({"flip": float("nan")}, "flip must be True, False or a probability"),
        ({"layout": "NCHW"}, "layout must be one of HWC, CHW"),
        ({"backend": "opencv"}, "backend must be one of auto, pillow, fast"),
        ({"all_frames": True, "size": 4}, "all_frames=True decodes frames as they are"),
        ({"all_frames": True, "flip": True}, "all_frames=True decodes frames as they are"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_said_at_once(options: dict[str, Any], message: str) -> None:
    """Options that mean nothing, alone or together, are an error when the decoder is made."""
    with pytest.raises(ConfigError, match=message):
        Image(**options)


def test_decoders_travel() -> None:
    """A decoder equals its copy on the other side of a process border, and decodes the same."""
    decode = Image(size=[30, 40], crop="random_resized", flip=True, layout="CHW", scale=(0.5, 1))
    data = encoded(made(10))

    copy = pickle.loads(pickle.dumps(decode))

    assert copy == decode
    assert hash(copy) == hash(decode)
    assert copy.size == (30, 40)
    assert np.array_equal(copy(data, rng=seeded(0)), decode(data, rng=seeded(0)))
