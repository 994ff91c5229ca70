"""Any bytes in place of a tar, a table or a value: what was packed or decoded, or an error of ours, soon."""

from __future__ import annotations

import contextlib
import io
import struct
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import aioload
from aioload.packing import find_source, pack

few = settings(max_examples=60)

DAMAGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "zero"]), st.floats(0, 1), st.binary(min_size=1, max_size=8)
    ),
    min_size=1,
    max_size=3,
)


def damaged(data: bytes, damages: list[tuple[str, float, bytes]]) -> bytes:
    """Return bytes with some damage done to them, one after the other."""
    for kind, where, extra in damages:
        at = int(where * len(data))
        rests = {"flip": at + len(extra), "cut": len(data), "insert": at, "zero": at + 600}
        middles = {"flip": extra, "cut": b"", "insert": extra, "zero": bytes(600)}
        data = data[:at] + middles[kind] + data[rests[kind] :]
    return data


def a_tar() -> bytes:
    """Return a WebDataset tar of three samples."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(3):
            for suffix, body in (("txt", b"text"), ("cls", b"%d" % number)):
                info = tarfile.TarInfo(f"{number}.{suffix}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def a_picture(kind: str) -> bytes:
    """Return a small picture as a file of some format."""
    out = io.BytesIO()
    pixels = np.arange(32 * 24 * 3, dtype=np.uint8).reshape(24, 32, 3)
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def a_sound() -> bytes:
    """Return a WAV file of 64 samples."""
    body = np.arange(64, dtype="<i2").tobytes()
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    head = struct.pack("<4sI4s", b"RIFF", 36 + len(body), b"WAVE")
    return head + form + b"data" + struct.pack("<I", len(body)) + body


def an_array() -> bytes:
    """Return a .npy file."""
    out = io.BytesIO()
    np.save(out, np.arange(12, dtype=np.float32).reshape(3, 4))
    return out.getvalue()


@few
@given(DAMAGES)
def test_a_damaged_tar_is_packed_or_refused(damages: list[tuple[str, float, bytes]]) -> None:
    """Packing it either ends well or with an error of ours, and then leaves nothing that looks complete."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "some.tar").write_bytes(damaged(a_tar(), damages))
        try:
            report = pack(find_source([folder / "some.tar"]), folder / "set", num_workers=1)
        except aioload.AioloadError:
            assert not (folder / "set" / "manifest.json").exists()
        else:
            assert len(aioload.Dataset(folder / "set")) == report.records


@few
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: ("path,label\n" + text).encode()))
def test_any_table_is_packed_or_refused(table: bytes) -> None:
    """A CSV file of anything: an error of ours, as the pictures it names are not there."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.csv"
        path.write_bytes(table)

        with pytest.raises(aioload.AioloadError):
            pack(find_source([path], kind="csv"), Path(name) / "set", num_workers=1)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (aioload.decode.Image(max_pixels=1 << 20), a_picture("jpeg")),
        (aioload.decode.Image(max_pixels=1 << 20), a_picture("png")),
        (aioload.decode.Image(max_pixels=1 << 20), a_picture("gif")),
        (aioload.decode.Audio(), a_sound()),
        (aioload.decode.NDArray(), an_array()),
        (aioload.decode.Json(), b'{"a": [1, 2, {"b": null}]}'),
    ],
    ids=["jpeg", "png", "gif", "wav", "npy", "json"],
)
@few
@given(damages=DAMAGES)
def test_a_damaged_value_decodes_or_is_refused(
    decode: Callable[[memoryview], object], data: bytes, damages: list[tuple[str, float, bytes]]
) -> None:
    """A decoder gives a value or a SampleError, whatever the bytes are."""
    with contextlib.suppress(aioload.SampleError):
        decode(memoryview(damaged(data, damages)))
