"""Sound: WAV in every width, other formats through soundfile, damage as errors."""

from __future__ import annotations

import io
import struct
import sys
from typing import Any

import numpy as np
import pytest
import soundfile

from aioload.decode import Audio
from aioload.errors import SampleError

RATE = 8000
SOUND = np.stack([np.sin(np.arange(100) / 7), np.linspace(-1, 0.999, 100)], axis=1)  # (samples, channels)
EXTENSIBLE_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def written(kind: str, subtype: str, sound: np.ndarray = SOUND) -> bytes:
    """Write a sound as soundfile does."""
    file = io.BytesIO()
    soundfile.write(file, sound, RATE, format=kind, subtype=subtype)
    return file.getvalue()


def read(data: bytes) -> np.ndarray:
    """Read a sound as soundfile does."""
    return soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].T


def chunk(name: bytes, body: bytes) -> bytes:
    """Make one RIFF chunk, padded to an even length."""
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def riff(*chunks: bytes) -> bytes:
    """Make a WAV file of chunks."""
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def layout(code: int = 1, channels: int = 1, bits: int = 16, tail: bytes = b"") -> bytes:
    """Make a fmt chunk."""
    frame = channels * ((bits + 7) // 8)
    return chunk(b"fmt ", struct.pack("<HHIIHH", code, channels, RATE, RATE * frame, frame, bits) + tail)


DATA = chunk(b"data", struct.pack("<3h", 0, 16384, -32768))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
def test_wav_reads_as_soundfile_reads_it(kind: str, subtype: str) -> None:
    """Every width, plain and extensible, gives soundfile's own float32 samples, one row a channel."""
    data = written(kind, subtype)

    sound = Audio()(memoryview(data))

    assert sound["rate"] == RATE
    assert sound["samples"].dtype == np.float32
    assert sound["samples"].shape == (2, 100)
    assert np.array_equal(sound["samples"], read(data))


def test_samples_may_be_written_to() -> None:
    """The result is contiguous memory of its own, also where the file holds float32 of one channel."""
    data = bytearray(written("WAV", "FLOAT", SOUND[:, :1]))

    samples = Audio()(memoryview(data))["samples"]
    data[:] = bytes(len(data))

    assert samples.flags.c_contiguous
    assert samples.flags.writeable
    assert samples[0, 10] == np.float32(SOUND[10, 0])


def test_wav_needs_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain WAV is read without soundfile."""
    monkeypatch.setitem(sys.modules, "soundfile", None)

    sound = Audio()(riff(layout(), DATA))

    assert sound["samples"].tolist() == [[0.0, 0.5, -1.0]]


@pytest.mark.parametrize(
    "chunks",
    [
        (chunk(b"LIST", b"odd"), layout(), DATA),
        (layout(), chunk(b"fact", b"1234"), chunk(b"LIST", b"a"), DATA),
        (layout(), DATA, chunk(b"LIST", b"INFO")),
        (layout(0xFFFE, tail=struct.pack("<HHIH", 22, 16, 4, 1) + EXTENSIBLE_TAIL), DATA),
        (layout(bits=12), DATA),
        (layout(), DATA, b"\0\0\0"),
        (layout(), b"data\xff\xff\xff\xff" + DATA[8:]),
    ],
    ids=["odd LIST first", "between", "behind", "extensible", "12 bits", "trailing", "streamed"],
)
def test_other_chunks_are_passed_over(chunks: tuple[bytes, ...]) -> None:
    """Chunks that are neither format nor data, of odd lengths too, change nothing."""
    data = riff(*chunks)

    sound = Audio()(data)

    assert sound["samples"].tolist() == [[0.0, 0.5, -1.0]]


def test_a_wav_without_samples_is_empty() -> None:
    """No samples are no error."""
    sound = Audio()(riff(layout(channels=2), chunk(b"data", b"")))

    assert sound["samples"].shape == (2, 0)


def test_a_wav_cut_anywhere_is_an_error() -> None:
    """Cut at any byte before its end, a WAV file gives an error, never fewer samples."""
    data = riff(layout(), DATA)

    results = [_category(data[:stop]) for stop in range(len(data))]

    assert set(results[12:]) == {"truncated"}
    assert None not in results


@pytest.mark.parametrize(
    ("data", "category"),
    [
        (b"", "unidentified"),
        (b"<!doctype html>", "unidentified"),
        (riff(DATA), "broken"),
        (riff(chunk(b"fmt ", b"\1\0\1\0"), DATA), "broken"),
        (riff(layout(channels=0), DATA), "broken"),
        (riff(layout()), "truncated"),
        (riff(layout(channels=2), DATA), "truncated"),
        (b"fLaC" + bytes(60), "broken"),
    ],
)
def test_damage_has_a_category(data: bytes, category: str) -> None:
    """Whatever is wrong, it is a SampleError that tells what kind of wrong."""
    assert _category(data) == category


@pytest.mark.parametrize(("kind", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("WAV", "ULAW")])
def test_other_formats_go_through_soundfile(kind: str, subtype: str) -> None:
    """FLAC, OGG and compressed WAV are read where soundfile is installed."""
    data = written(kind, subtype)

    sound = Audio()(memoryview(data))

    assert sound["rate"] == RATE
    assert np.array_equal(sound["samples"], read(data))


def test_a_cut_flac_is_an_error() -> None:
    """A FLAC file without its end is an error, never fewer samples."""
    data = written("FLAC", "PCM_16", np.random.default_rng(1).uniform(-1, 1, (20_000, 1)))

    results = [_category(data[: len(data) * part // 10]) for part in range(1, 10)]

    assert None not in results


def test_without_soundfile_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that needs the extra names it."""
    data = written("FLAC", "PCM_16")
    monkeypatch.setitem(sys.modules, "soundfile", None)

    with pytest.raises(SampleError, match=r"torch-aioload\[audio\]") as caught:
        Audio()(data)

    assert caught.value.category == "unsupported"


def _category(data: bytes) -> Any:
    """Return the category of the error, or None where there is none."""
    try:
        Audio()(data)
    except SampleError as error:
        return error.category
    return None
