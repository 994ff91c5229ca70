"""Pictures: the public faults of others as cases, and the choices that the expected values stand on."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageFile, ImageOps

from aioload.decode import Image
from aioload.errors import ConfigError, SampleError

FILES = Path(__file__).parent.parent / "cases" / "files"
CASES = [
    case
    for case in json.loads((FILES / "manifest.json").read_text("utf-8"))["files"]
    if case["kind"] == "image"
]
SOUND = [case for case in CASES if case["expect"]["outcome"] == "ok"]
BAD = [case for case in CASES if case["expect"]["outcome"] == "error"]
TURNED = [case for case in CASES if "stored_size" in case]
ALPHA = [case for case in CASES if "rgba_alpha_probes" in case]
WHOLE = [
    "plain.jpg",
    "cmyk_adobe.jpg",
    "exif_o6.jpg",
    "anim.gif",
    "palette_trns.png",
    "gray16.png",
    "rgba.png",
]


def name(case: dict[str, Any]) -> str:
    """Name a case as its file is named."""
    return Path(case["path"]).name


def stored(file: str) -> bytes:
    """Read one case file."""
    return (FILES / "images" / file).read_bytes()


def photo() -> Pillow.Image:
    """Make a smooth picture, in which no two turns look alike."""
    rng = np.random.default_rng(7)
    return Pillow.fromarray(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8)).resize((64, 48))


def encoded(picture: Pillow.Image, kind: str, **options: Any) -> bytes:
    """Write a picture in some format."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def orientation(value: int) -> Pillow.Exif:
    """Make EXIF tags that say how a picture lies."""
    exif = Pillow.Exif()
    exif[0x0112] = value
    return exif


def as_pillow(data: bytes) -> np.ndarray:
    """Decode as a careful user of Pillow would."""
    return np.asarray(ImageOps.exif_transpose(Pillow.open(io.BytesIO(data))).convert("RGB"))


@pytest.mark.parametrize("case", SOUND, ids=name)
def test_i03_i04_i06_i07_i10_i14_sound_pictures(case: dict[str, Any]) -> None:
    """I03 I04 I06 I07 I10 I14: shape, mean and probes are as the case's manifest says."""
    expect = case["expect"]
    width, height = expect["rgb_size"]
    columns, rows, colours = zip(*expect["probes"], strict=True)

    pixels = Image()(memoryview((FILES / case["path"]).read_bytes()))

    assert pixels.shape == (height, width, 3)
    assert pixels.dtype == np.uint8
    assert pixels.mean((0, 1)) == pytest.approx(expect["rgb_mean"], abs=expect["tol_mean"])
    assert pixels[rows, columns].astype(int) == pytest.approx(np.array(colours), abs=expect["tol_px"])


@pytest.mark.parametrize("case", BAD, ids=name)
def test_i01_i13_bad_pictures_are_one_typed_error(case: dict[str, Any]) -> None:
    """I01 I13: whatever Pillow raises, it is a SampleError with the category of the manifest."""
    data = (FILES / case["path"]).read_bytes()

    with pytest.raises(SampleError) as caught:
        Image()(data)

    assert caught.value.category == case["expect"]["category"]
    assert pickle.loads(pickle.dumps(caught.value)).category == case["expect"]["category"]


@pytest.mark.parametrize("file", WHOLE)
def test_i01_a_cut_picture_is_an_error_or_whole(file: str) -> None:
    """I01: cut at any byte, a file gives an error or all its pixels, never gray ones."""
    data = stored(file)
    whole = Image()(data)

    results = [_pixels_or_none(Image(), data[:stop]) for stop in range(len(data))]

    decoded = [pixels for pixels in results if pixels is not None]
    assert len(decoded) < len(results)
    assert all(np.array_equal(pixels, whole) for pixels in decoded)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"progressive": True}),
        ("WEBP", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("BMP", {}),
        ("PPM", {}),
    ],
    ids=["progressive", "webp", "tiff", "bmp", "ppm"],
)
def test_i01_other_formats_are_never_filled_up(kind: str, options: dict[str, Any]) -> None:
    """I01: the same for other formats, at a hundred places."""
    data = encoded(photo(), kind, **options)

    results = [_pixels_or_none(Image(), data[:stop]) for stop in range(0, len(data), len(data) // 100)]

    assert not [pixels for pixels in results if pixels is not None]


def test_i01_a_cut_animation_is_an_error() -> None:
    """I01: all frames means all: an animation cut anywhere is an error, not a shorter animation."""
    data = stored("anim.gif")

    results = [_pixels_or_none(Image(all_frames=True), data[:stop]) for stop in range(len(data))]

    assert not [pixels for pixels in results if pixels is not None]


def test_i01_i13_pillows_switches_stay() -> None:
    """I01 I13: nothing that is decoded or refused changes what Pillow does elsewhere in the process."""
    before = (ImageFile.LOAD_TRUNCATED_IMAGES, Pillow.MAX_IMAGE_PIXELS, list(warnings.filters))

    results = [_pixels_or_none(Image(), (FILES / case["path"]).read_bytes()) for case in CASES]

    assert len(results) == len(CASES)
    assert before == (False, Pillow.MAX_IMAGE_PIXELS, list(warnings.filters))
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_i03_gray_of_16_bits_is_scaled_and_rounded() -> None:
    """I03: 16-bit gray becomes round(value / 257); all of black, white and between."""
    values = np.linspace(0, 65535, 48 * 64).astype(np.uint16).reshape(48, 64)
    data = encoded(Pillow.fromarray(values), "PNG")

    pixels = Image(mode="L")(data)

    assert np.array_equal(pixels, np.round(values / 257).astype(np.uint8))


def test_i03_a_16_bit_mode_leaves_values_as_they_are() -> None:
    """I03: asked for, 16-bit gray comes as stored; gray of 8 bits is scaled up; colours are refused."""
    values = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
    decode = Image(mode="I;16")

    pixels = decode(encoded(Pillow.fromarray(values), "TIFF"))
    scaled = decode(encoded(Pillow.new("L", (2, 1), 255), "PNG"))

    assert pixels.dtype == np.uint16
    assert np.array_equal(pixels, values)
    assert scaled.tolist() == [[65535, 65535]]
    with pytest.raises(SampleError, match="mode RGB have no fixed range"):
        decode(stored("plain.jpg"))


@pytest.mark.parametrize("case", ALPHA, ids=name)
def test_i06_rgba_keeps_alpha_exactly(case: dict[str, Any]) -> None:
    """I06: alpha of palette entries and of pixels arrives where RGBA is asked for."""
    columns, rows, colours = zip(*case["expect"]["probes"], strict=True)

    pixels = Image(mode="RGBA")((FILES / case["path"]).read_bytes())

    assert pixels[rows, columns, 3].tolist() == case["rgba_alpha_probes"]
    assert pixels[rows, columns, :3].tolist() == [list(colour) for colour in colours]


def test_i06_no_warning_gets_out(recwarn: pytest.WarningsRecorder) -> None:
    """I06: palettes with alpha and damaged EXIF, of which Pillow warns, are decoded in silence."""
    exif = orientation(6)
    exif[0x010F] = "a camera's name"
    damaged = encoded(photo(), "JPEG", exif=exif.tobytes().replace(b"\x00\x00\x00\x10", b"\x00\x00\x7f\xff"))

    Image()(damaged)
    Image()(stored("palette_trns.png"))
    Image()(encoded(photo(), "TIFF", exif=exif))

    assert list(recwarn) == []


@pytest.mark.parametrize("case", TURNED, ids=name)
def test_i07_without_orientation_pixels_lie_as_stored(case: dict[str, Any]) -> None:
    """I07: with orientation off, width and height are those of the file."""
    width, height = case["stored_size"]

    pixels = Image(orient=False)((FILES / case["path"]).read_bytes())

    assert pixels.shape == (height, width, 3)


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_i07_every_orientation_is_turned_upright(kind: str, value: int) -> None:
    """I07: all eight orientations, in all formats that carry them, come out as Pillow itself turns them."""
    data = encoded(photo(), kind, exif=orientation(value))

    pixels = Image()(data)

    assert np.array_equal(pixels, as_pillow(data))


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_i07_every_orientation_can_be_left(kind: str, value: int) -> None:
    """I07: with orientation off, pixels are the stored ones, also where Pillow turns by itself."""
    data = encoded(photo(), kind, exif=orientation(value))

    pixels = Image(orient=False)(data)

    assert np.array_equal(pixels, np.asarray(photo()))


@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"\0" * 40]
)
def test_i07_damaged_tags_turn_nothing(exif: bytes) -> None:
    """I07: tags that make no sense leave the picture as it is."""
    data = encoded(photo(), "JPEG", exif=exif)

    pixels = Image()(data)

    assert np.array_equal(pixels, as_pillow(encoded(photo(), "JPEG")))


def test_i10_all_frames_only_when_asked() -> None:
    """I10: an animation is its first frame, or all of them in a fourth axis."""
    data = stored("anim.gif")

    first = Image()(data)
    frames = Image(all_frames=True)(data)

    assert first.shape == (48, 64, 3)
    assert frames.shape == (3, 48, 64, 3)
    assert np.array_equal(frames[0], first)
    assert frames[:, 0, 0].tolist() == [[200, 40, 40], [40, 180, 60], [40, 60, 200]]


def test_i13_frames_count_against_the_limit() -> None:
    """I13: an animation of small frames is held against the limit as a whole."""
    decode = Image(all_frames=True, max_pixels=2 * 64 * 48)

    with pytest.raises(SampleError, match="more than 2 frames") as caught:
        decode(stored("anim.gif"))

    assert caught.value.category == "too_many_pixels"


def test_i13_the_limit_is_an_option() -> None:
    """I13: the limit may be lower or higher than Pillow's, and names itself in the error."""
    with pytest.raises(SampleError, match=re.escape("over the limit of 3071; ")):
        Image(max_pixels=64 * 48 - 1)(stored("plain.jpg"))

    with pytest.raises(SampleError, match="cut short"):
        Image(max_pixels=10**10)(stored("bomb.png")[:40])

    assert Image(max_pixels=64 * 48)(stored("plain.jpg")).shape == (48, 64, 3)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the peak of memory")
def test_i13_bombs_take_no_memory() -> None:
    """I13: refusing pictures of gigapixels raises the peak of a fresh process by less than 200 MB."""
    script = """
        import sys
        from pathlib import Path
        from aioload.decode import Image
        from aioload.errors import SampleError

        def peak():
            return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

        Image()(Path(sys.argv[1], "plain.jpg").read_bytes())
        before = peak()
        for bomb in ("bomb.png", "bomb.jpg"):
            try:
                Image()(Path(sys.argv[1], bomb).read_bytes())
            except SampleError as error:
                print(error.category)
        print(peak() - before < 200_000)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(FILES / "images")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ,
    )

    assert done.stdout.split() == ["too_many_pixels", "too_many_pixels", "True"]


def test_i14_the_first_picture_is_taken() -> None:
    """I14: further pictures and padding behind a JPEG change nothing."""
    plain = Image()(stored("plain.jpg"))
    several = encoded(photo(), "MPO", save_all=True, append_images=[photo().rotate(180)])

    padded = Image()(stored("trailing_zeros.jpg"))
    first = Image(all_frames=True)(several)

    assert np.array_equal(padded, plain)
    assert first.shape == (1, 48, 64, 3)
    assert np.array_equal(first[0], as_pillow(several))


@pytest.mark.parametrize("colours", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize(("mode", "shape"), [("RGB", (48, 64, 3)), ("RGBA", (48, 64, 4)), ("L", (48, 64))])
def test_all_colours_become_all_modes(colours: str, mode: Any, shape: tuple[int, ...]) -> None:
    """Whatever a picture is stored in, the mode asked for decides the shape; pixels equal Pillow's."""
    data = encoded(photo().convert(colours), "TIFF")

    pixels = Image(mode=mode)(data)

    assert pixels.shape == shape
    assert np.array_equal(pixels, np.asarray(Pillow.open(io.BytesIO(data)).convert(mode)))


def test_pictures_without_a_range_are_refused() -> None:
    """Floats and 32-bit integers have no white: an error says so instead of clipping."""
    data = encoded(Pillow.new("F", (4, 4), 0.5), "TIFF")

    with pytest.raises(SampleError, match="mode F have no fixed range") as caught:
        Image()(data)

    assert caught.value.category == "unsupported"


def test_postscript_is_never_run() -> None:
    """EPS, which Pillow hands to another program, is no picture here."""
    data = encoded(photo(), "EPS")

    with pytest.raises(SampleError) as caught:
        Image()(data)

    assert caught.value.category == "unidentified"


def test_pixels_may_be_written_to() -> None:
    """The result is the user's: contiguous, writable memory of its own."""
    pixels = Image()(stored("plain.jpg"))

    pixels[:] = 0

    assert pixels.flags.c_contiguous
    assert pixels.flags.owndata


def test_wide_pictures_come_out_whole() -> None:
    """A row larger than Pillow's own buffer is copied out like any other."""
    values = np.arange(3 * 40_000, dtype=np.uint32).astype(np.uint8).reshape(1, 40_000, 3).repeat(2, axis=0)

    pixels = Image()(encoded(Pillow.fromarray(values), "PNG"))

    assert np.array_equal(pixels, values)


def test_options_are_checked_at_once() -> None:
    """Mistakes show when the decoder is made."""
    with pytest.raises(ConfigError, match="mode must be one of"):
        Image(mode="BGR")  # type: ignore[arg-type]  # what a user might try
    with pytest.raises(ConfigError, match="max_pixels must be positive"):
        Image(max_pixels=0)


def _pixels_or_none(decode: Image, data: bytes) -> np.ndarray | None:
    """Decode, or return None for the one error that is allowed."""
    try:
        return decode(data)
    except SampleError:
        return None
