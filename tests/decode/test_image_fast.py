"""The fast road: as near to Pillow as promised, as wary of damage, and no trace in the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from pictures import apart, encoded, made, opened, photographs
from PIL import Image as Pillow

from aioload.decode import Image, _fast, _pillow
from aioload.decode._jpeg import read_head
from aioload.errors import SampleError

CROPS = {"size": 224, "crop": "random_resized", "flip": True}
WRITTEN: dict[str, dict[str, Any]] = {
    "420": {},
    "422": {"subsampling": 1},
    "444": {"subsampling": 0},
    "rgb": {"keep_rgb": True},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "turned": {"orientation": 6},
    "mirrored": {"orientation": 7},
    "upside down": {"orientation": 3},
}


def outcome(backend: Any, data: bytes, seed: int = 0, **options: Any) -> np.ndarray | tuple[str, str]:
    """Decode, or return the category and the text of the error."""
    try:
        return Image(backend=backend, **options)(data, rng=np.random.default_rng(seed))
    except SampleError as error:
        return error.category, str(error)


@pytest.fixture
def pillow_decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Whatever the Pillow road is asked to decode from now on."""
    asked: list[bytes] = []
    decode = _pillow.decode

    def noted(data: bytes, **options: Any) -> Any:
        asked.append(bytes(data))
        return decode(data, **options)

    monkeypatch.setattr(_pillow, "decode", noted)
    return asked


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("how", WRITTEN)
def test_whole_pictures_are_those_of_pillow(how: str, mode: Any, pillow_decoded: list[bytes]) -> None:
    """Where nothing is resized, all pixels of all plain JPEGs are Pillow's, and Pillow was not asked."""
    data = encoded(made(0), **WRITTEN[how])
    expected = Image(mode=mode, backend="pillow")(data)
    pillow_decoded.clear()

    pixels = Image(mode=mode, backend="fast")(data)

    assert np.array_equal(pixels, expected)
    assert pillow_decoded == []


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize(
    "options",
    [
        CROPS,
        {**CROPS, "size": 64},
        {"size": 200},
        {"size": (90, 300), "layout": "CHW"},
        {**CROPS, "mode": "L"},
    ],
    ids=str,
)
def test_antialiased_pixels_are_near_those_of_pillow(how: str, options: dict[str, Any]) -> None:
    """Resized pixels keep within the bound that the decoder's text gives, for all ways to write a JPEG."""
    data = encoded(made(1), **WRITTEN[how])

    far = [
        apart(outcome("fast", data, seed, **options), outcome("pillow", data, seed, **options))
        for seed in range(4)
    ]

    assert np.mean([values.mean() for values in far]) < 1
    assert max(values.mean() for values in far) < 3
    assert max(values.max() for values in far) < 40


@pytest.mark.parametrize("size", [224, 96, 32])
@pytest.mark.parametrize("enlarged", [1, 3])
def test_photographs_are_near_those_of_pillows_own_calls(size: int, enlarged: int) -> None:
    """The bound holds against a plain decode and `resize`, also where libjpeg decodes at a fraction."""
    files = photographs()
    if enlarged > 1:
        sizes = [opened(file).size for file in files]
        larger = [(width * enlarged - 1, height * enlarged + 1) for width, height in sizes]
        files = tuple(encoded(opened(file).resize(to)) for file, to in zip(files, larger, strict=True))

    far = []
    for file in files:
        whole = opened(file)
        for share in (1, 0.9, 0.6, 0.3):
            side = round(min(whole.size) * share)
            left, top = (whole.width - side) // 2, (whole.height - side) // 2
            part = encoded(whole.crop((left, top, left + side, top + side)), subsampling=0, quality=100)
            expected = opened(part).resize((size, size), Pillow.Resampling.BILINEAR)
            far.append(apart(Image(size=size, crop="center", backend="fast")(part), np.asarray(expected)))

    assert np.mean([values.mean() for values in far]) < 1
    assert max(values.mean() for values in far) < 3
    assert max(values.max() for values in far) < 40


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize(("size", "bound"), [(300, 1), (128, 1), (40, 5)])
def test_without_antialias_pixels_are_those_of_pillow(how: str, size: int, bound: int) -> None:
    """Four nearest pixels, rounded: a step at most, and some between the pixels of a smaller decode."""
    data = encoded(made(2), **WRITTEN[how])
    options = {**CROPS, "size": size, "antialias": False}

    far = [
        apart(outcome("fast", data, seed, **options), outcome("pillow", data, seed, **options))
        for seed in range(6)
    ]

    assert max(values.max() for values in far) <= bound


@pytest.mark.parametrize("how", ["420", "422", "444", "progressive", "restarts"])
@pytest.mark.parametrize("height", [1, 15, 16, 17, 100, 372, 373, 374])
def test_rows_left_out_change_nothing(how: str, height: int) -> None:
    """The rows of a part at the top are the picture's own, whether those below were decoded or not."""
    data = encoded(made(3), **WRITTEN[how])
    head = read_head(data)
    assert head is not None

    part, box = _fast._part(data, head, (0, 0, 500, height), 1, "RGB")

    assert box == (0, 0, 500, height)
    assert np.array_equal(part, np.asarray(opened(data))[:height])


@pytest.mark.parametrize(
    "data",
    [
        encoded(made(4).convert("CMYK")),
        encoded(made(4), "PNG"),
        encoded(made(4), "WEBP"),
        encoded(made(4).convert("L"), "TIFF"),
        encoded(made(4)) + b"\0" * 9,
    ],
    ids=["cmyk", "png", "webp", "tiff", "padded"],
)
def test_all_else_is_cut_by_pillow(data: bytes) -> None:
    """Pictures that are not plain come out of both backends the same, cropped as asked."""
    pixels = [outcome(backend, data, 5, **CROPS) for backend in ("fast", "pillow")]

    assert pixels[0].shape == (224, 224, 3)
    assert apart(*pixels).mean() < 1


@pytest.mark.parametrize("how", ["420", "progressive", "restarts", "turned"])
@pytest.mark.parametrize("options", [{}, CROPS, {**CROPS, "size": 32}], ids=["whole", "crops", "small"])
def test_a_truncated_file_is_an_error(how: str, options: dict[str, Any]) -> None:
    """Cut anywhere, a file is the error that Pillow makes of it; never a picture filled up with gray."""
    data = encoded(made(5), **WRITTEN[how])
    stops = np.linspace(0, len(data) - 3, 60).astype(int)

    for stop in stops:
        found = outcome("fast", data[:stop], stop, **options)
        assert isinstance(found, tuple), stop
        assert found == outcome("pillow", data[:stop], stop, **options)


@pytest.mark.parametrize("damage", ["byte", "head", "marker", "gap", "zeros"])
def test_damage_is_judged_as_pillow_judges_it(damage: str) -> None:
    """Whatever bytes are wrong, both backends give the same error, or the same pixels within a step."""
    rng = np.random.default_rng(17)
    whole = [encoded(made(6), **options) for options in WRITTEN.values()]

    for number in range(80):
        data = bytearray(whole[number % len(whole)])
        at = int(rng.integers(2, 700 if damage == "head" else len(data) - 300))
        if damage in ("byte", "head"):
            data[at] ^= int(rng.integers(1, 256))
        elif damage == "marker":
            data[at : at + 2] = bytes([0xFF, int(rng.integers(256))])
        elif damage == "gap":
            del data[at : at + int(rng.integers(1, 200))]
        else:
            data[at : at + 200] = bytes(200)
        fast, slow = (
            outcome(backend, bytes(data), number, **{**CROPS, "antialias": False})
            for backend in ("fast", "pillow")
        )

        assert type(fast) is type(slow), (number, fast, slow)
        if isinstance(fast, tuple):
            assert fast == slow
        else:
            assert apart(fast, slow).max() <= 1, number


def test_pictures_over_the_limit_are_refused_before_they_are_decoded() -> None:
    """The limit on pixels holds on the fast road, in the words of the other one."""
    data = encoded(made(7))

    category, text = outcome("fast", data, max_pixels=500 * 375 - 1, **CROPS)

    assert category == "too_many_pixels"
    assert "500 x 375 pixels, over the limit of 187499" in text


def test_a_place_is_written_by_the_codec_itself() -> None:
    """A whole picture is decoded into its place, without memory of its own between."""
    data = encoded(made(8).resize((3000, 2000)))
    place = np.zeros((2000, 3000, 3), np.uint8)
    _fast._local.__dict__.clear()

    done = Image(backend="fast").into(data, place)

    assert done
    assert np.array_equal(place, np.asarray(opened(data)))
    assert _fast._local.__dict__ == {}


def test_memory_that_is_kept_is_bounded() -> None:
    """What is kept between pictures is a few megabytes, however large one was."""
    data = encoded(made(9).resize((4000, 3000)))

    Image(backend="fast", size=2000, crop="center")(data)

    assert sum(len(memory) for memory in _fast._local.__dict__.values()) <= 3 * _fast._KEPT_BYTES


def test_results_do_not_share_memory() -> None:
    """A picture keeps its values when the next one is decoded."""
    decode = Image(backend="fast", **CROPS, layout="CHW")
    first = decode(encoded(made(10)), rng=np.random.default_rng(0))
    before = first.copy()

    decode(encoded(made(11)), rng=np.random.default_rng(1))

    assert np.array_equal(first, before)
    assert first.flags.owndata


def test_settings_of_opencv_stay() -> None:
    """The number of OpenCV's threads is the user's to set, before and after."""
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(2)

        Image(backend="fast", **CROPS)(encoded(made(12)))

        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


@pytest.mark.parametrize("missing", ["cv2", "simplejpeg"])
def test_without_the_extra_pillow_does_it_all(missing: str) -> None:
    """Where a package is missing, "auto" is Pillow, and asking for "fast" says what to install."""
    script = f"""
import sys
sys.modules[{missing!r}] = None
from pathlib import Path
from aioload.decode import Image
from aioload.errors import ConfigError
data = sys.stdin.buffer.read()
options = dict(size=64, crop="center")
assert (Image(**options)(data) == Image(backend="pillow", **options)(data)).all()
try:
    Image(backend="fast")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=encoded(made(13)),
        capture_output=True,
        check=True,
        cwd=Path(__file__).parent.parent.parent,
    )

    assert b"pip install 'torch-aioload[fast]'" in done.stdout


def test_shrinking_beyond_all_taps_is_pillows() -> None:
    """A thumbnail far smaller than libjpeg can decode is made by Pillow, with the same meaning."""
    data = encoded(made(14).resize((3000, 2000)))

    pixels = outcome("fast", data, size=(20, 20))

    assert np.array_equal(pixels, outcome("pillow", data, size=(20, 20)))
