"""Detect: what a shard is, told by its first bytes; pure."""

from __future__ import annotations

import bz2
import shlex
import zlib

from ..errors import ConfigError, ShardError
from ..shard.format import SHARD_HEADER
from ..shard.tarheader import BLOCK, header_sums
from ..shard.tfrecord import begins_record
from .names import format_of, way_out

__all__ = ["HEAD_BYTES", "Told", "tell"]

HEAD_BYTES = 4096
"""So many bytes from the beginning of a file are enough to tell."""

Told = tuple[str, str | None]
"""The format, `tar` or `tfrecord`, and how the file is compressed as a whole."""

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
_ELSEWHERE = {
    b"PAR1": "a Parquet file: pack it with `aioload pack` (extra: torch-aioload[parquet])",
    b"PK\x03\x04": "a zip archive: unpack it, or store its files in a tar",
    b"\x89HDF": "an HDF5 file: write its samples with aioload.Writer",
    SHARD_HEADER.magic: "a shard of a packed set: give the folder that it lies in",
}


def tell(head: bytes, name: str) -> Told:
    """Return what a file is.

    Args:
        head: its first `HEAD_BYTES` bytes, or all of them.
        name: of the file, which decides where it is empty, and for the error.

    Raises:
        ShardError: it is nothing that is read here; says what it seems to be, and the way out.
    """
    if not head:
        return format_of(name) or "tar", None
    plain = _format_of(head)  # first: the length of a record, or a member's name, may look like any magic
    if plain is not None:
        return plain, None
    for magic, what in _ELSEWHERE.items():
        if head.startswith(magic):
            raise _unknown(name, f"is {what}")
    codec = _codec_of(head)
    if codec is None:
        raise _unknown(name, "is neither a tar archive nor a TFRecord file, or damaged at its very beginning")
    inner = _inflated(head, codec)
    found = _format_of(inner) if inner else None
    if found is None:
        found = format_of(name)  # what cannot be looked into is told by its name
    if found is None:
        raise _unknown(name, f"is compressed ({codec}), and holds neither a tar archive nor TFRecords")
    return found, codec


def _codec_of(head: bytes) -> str | None:
    for magic, codec in _COMPRESSED.items():
        if head.startswith(magic):
            return codec
    is_zlib = (
        len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and not (head[0] << 8 | head[1]) % 31
    )
    return "zlib" if is_zlib else None


def _inflated(head: bytes, codec: str) -> bytes:
    """Return as much of the beginning as can be had without other packages."""
    try:
        if codec in ("gzip", "zlib"):
            return zlib.decompressobj(wbits=47).decompress(head, BLOCK)
        if codec == "bzip2":
            return bz2.BZ2Decompressor().decompress(head, BLOCK)
    except (zlib.error, OSError):
        pass
    return b""


def _format_of(head: bytes) -> str | None:
    if begins_record(head):
        return "tfrecord"
    return "tar" if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    """Tell whether a header stands there, damaged or not, or the end mark of an empty archive."""
    block = head[:BLOCK]
    if len(block) < BLOCK:
        return False
    if not any(block) or block[257:262] == b"ustar":
        return True
    try:
        expected = int(block[148:156].strip(b" \0"), 8)
    except ValueError:
        return False
    return expected in header_sums(block)


def _unknown(name: str, what: str) -> ShardError:
    hint = way_out([name])
    return ShardError(f"{name} {what}{f'; {hint}' if hint else ''}", shard=name, offset=0)


def refuse_compressed_tar(name: str, codec: str, where: str | None = None) -> ConfigError:
    """Make the error of an archive that can only be read from front to back.

    Args:
        name: of the file.
        codec: how it is compressed.
        where: its path or address, for the command that packs it; None: its name.
    """
    return ConfigError(
        f"{name} is a tar archive compressed as a whole ({codec}): nothing in it can be reached without "
        "unpacking all before it, so it can be neither shuffled nor resumed. Pack it once with "
        f"`aioload pack {shlex.quote(where or name)} OUT`, or unpack it and give the plain .tar",
        shard=name,
        codec=codec,
    )
