"""Sound: WAV by a small parser of our own, other formats through the optional soundfile package."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SampleError

__all__ = ["Audio"]

Samples = npt.NDArray[np.float32]

_CHUNK = struct.Struct("<4sI")
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_SUBTYPE_TAIL = bytes.fromhex("000000001000800000aa00389b71")  # of every subtype that is a plain format code
_UNKNOWN_LENGTH = 0xFFFFFFFF  # written by programs that stream to a pipe: the data goes on to the end


@dataclass(frozen=True, slots=True)
class Audio:
    """Decode a sound to `{"samples": float32 (channels, n), "rate": int}`, full scale being 1.

    WAV in 8, 16, 24 and 32 bits and in 32- and 64-bit floats needs nothing else; FLAC, OGG, MP3 and rarer
    kinds of WAV need the soundfile package (`torch-aioload[audio]`).
    """

    def __call__(self, data: bytes | memoryview) -> dict[str, Any]:
        """Decode one sound.

        Raises:
            SampleError: with `category` "truncated", "unidentified", "broken" or "unsupported".
        """
        if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
            return _wav(memoryview(data))
        return _foreign(data)


@dataclass(frozen=True, slots=True)
class _Format:
    """What a fmt chunk says."""

    code: int
    channels: int
    rate: int
    frame_bytes: int
    sample_bytes: int


def _wav(data: memoryview) -> dict[str, Any]:
    """Decode a WAV file; what is neither format nor data is passed over."""
    layout: _Format | None = None
    for name, start, stop in _chunks(data):
        if name == b"fmt ":
            layout = _format(data[start:stop])
        if name == b"data":
            break
    else:
        raise _fault("this WAV file has no data chunk", "truncated")
    if layout is None:
        raise _fault("this WAV file has no format before its data", "broken")

    kind = (layout.code, layout.sample_bytes)
    if kind not in _READERS:
        return _foreign(data)
    if (stop - start) % layout.frame_bytes:
        raise _fault(f"the data of this WAV file, {stop - start} bytes, end inside a sample", "truncated")
    values = _READERS[kind](data[start:stop])
    return {"samples": _planes(values, layout.channels), "rate": layout.rate}


def _chunks(data: memoryview) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and stop of each chunk; they lie at even places, and a chunk may not pass the end."""
    place = 12
    while place + 8 <= len(data):
        name, size = _CHUNK.unpack_from(data, place)
        start = place + 8
        if name == b"data" and size == _UNKNOWN_LENGTH:
            size = len(data) - start
        if start + size > len(data):
            what = f"chunk {name.decode('latin-1')!r} of this WAV file"
            raise _fault(
                f"{what} ends at byte {start + size}, but the file at {len(data)}", "truncated", len(data)
            )
        yield name, start, start + size
        place = start + size + size % 2


def _format(chunk: memoryview) -> _Format:
    """Read a fmt chunk."""
    if len(chunk) < 16:
        raise _fault(f"the format of this WAV file has {len(chunk)} bytes, not 16", "broken")
    code, channels, rate, _, frame_bytes, bits = _FORMAT.unpack_from(chunk)
    if code == _EXTENSIBLE and len(chunk) >= 40 and chunk[26:40] == _SUBTYPE_TAIL:
        code = int.from_bytes(chunk[24:26], "little")
    sample_bytes = (bits + 7) // 8  # values of 12 or 20 bits stand in the high bits of whole bytes
    if code in (_PCM, _FLOAT) and not 0 < frame_bytes == channels * sample_bytes:
        shape = f"{channels} channels of {bits} bits in {frame_bytes} bytes"
        raise _fault(f"the format of this WAV file contradicts itself: {shape}", "broken")
    return _Format(code, channels, rate, frame_bytes, sample_bytes)


def _read_8(data: memoryview) -> npt.NDArray[Any]:
    """Read unsigned bytes, 128 being silence."""
    return (np.frombuffer(data, np.uint8) - np.float32(128)) * np.float32(1 / 128)


def _read_16(data: memoryview) -> npt.NDArray[Any]:
    """Read 16-bit integers."""
    return np.frombuffer(data, "<i2") * np.float32(1 / (1 << 15))


def _read_24(data: memoryview) -> npt.NDArray[Any]:
    """Read 24-bit integers, by putting them into the high bytes of 32."""
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return _read_32(wide.data.cast("B"))


def _read_32(data: memoryview) -> npt.NDArray[Any]:
    """Read 32-bit integers, which round in float32."""
    return np.frombuffer(data, "<i4").astype(np.float32) * np.float32(1 / (1 << 31))


def _read_float(data: memoryview) -> npt.NDArray[Any]:
    """Read 32-bit floats."""
    return np.frombuffer(data, "<f4")


def _read_double(data: memoryview) -> npt.NDArray[Any]:
    """Read 64-bit floats."""
    return np.frombuffer(data, "<f8")


_READERS = {
    (_PCM, 1): _read_8,
    (_PCM, 2): _read_16,
    (_PCM, 3): _read_24,
    (_PCM, 4): _read_32,
    (_FLOAT, 4): _read_float,
    (_FLOAT, 8): _read_double,
}


def _planes(values: npt.NDArray[Any], channels: int) -> Samples:
    """Part interleaved samples into one contiguous row a channel, in memory of their own."""
    planes: Samples = np.array(values.reshape(-1, channels).T, np.float32, order="C")
    return planes


def _foreign(data: bytes | memoryview) -> dict[str, Any]:
    """Decode through soundfile."""
    try:
        import soundfile  # late: an optional package, and a library to load
    except ImportError as error:
        raise SampleError(
            f"a sound that begins with {bytes(data[:4])!r} is not plain WAV; to read it: "
            "pip install 'torch-aioload[audio]'",
            category="unsupported",
            cause=str(error),
        ) from error

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            values = file.read(dtype="float32", always_2d=True)
            if len(values) < file.frames:
                raise _fault(f"this sound has {len(values)} samples of {file.frames}", "truncated")
            return {"samples": _planes(values, file.channels), "rate": int(file.samplerate)}
    except soundfile.LibsndfileError as error:
        known = data[:4] in (b"fLaC", b"OggS", b"RIFF", b"FORM") or data[:3] == b"ID3"
        raise _fault(f"this sound cannot be read: {error}", "broken" if known else "unidentified") from error


def _fault(reason: str, category: str, offset: int | None = None) -> SampleError:
    """Make the error for damaged bytes."""
    cure = "pack it again from its source, or pass on_error='skip'"
    return SampleError(f"{reason}; {cure}", category=category, offset=offset)
