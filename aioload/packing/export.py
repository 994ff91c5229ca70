"""Export: any set as WebDataset archives, its payloads byte for byte.

A member is named `<key>.<field>`, with a suffix that tells the field's kind where the field's name does not:
`0001.jpg` of a field `jpg`, `0001.image.jpg` of a field `image`. Keys come from data, so they are made safe:
no name leads out of the folder that somebody unpacks the archive into.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset import Dataset
from ..errors import ConfigError, StorageError
from ..shard.kinds import kind_of

__all__ = ["ExportReport", "export"]

_SUFFIXES = {
    "image": "img", "audio": "snd", "int": "cls", "float": "float", "str": "txt", "json": "json",
    "ndarray": "npy", "bytes": "bin",
}  # fmt: skip
_MAGIC = (
    (b"\xff\xd8\xff", "jpg"), (b"\x89PNG", "png"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"II*\0", "tif"),
    (b"MM\0*", "tif"), (b"fLaC", "flac"), (b"OggS", "ogg"), (b"ID3", "mp3"), (b"\xff\xfb", "mp3"),
)  # fmt: skip
_UNSAFE = re.compile(r"[^\w\-+=,@ /]", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written."""

    records: int
    """Samples."""
    shards: tuple[str, ...]
    """Archives."""
    data_bytes: int
    """Bytes of all archives."""


def export(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    shard_bytes: int = 256 << 20,
    progress: Callable[[int], object] = int,
) -> ExportReport:
    """Write a set as archives `shard-000000.tar` and so on, each of which appears when it is whole.

    Args:
        dataset: any set.
        folder: made if it is not there; it must hold no archive.
        shard_bytes: how large an archive may become; a sample is in one whole.
        progress: told of so many more bytes of records.

    Raises:
        ConfigError: the folder holds archives.
        ShardError: a record is damaged.
        StorageError: the disk failed.
    """
    place = Path(folder)
    if place.is_dir() and any(path.suffix == ".tar" for path in place.iterdir()):
        raise ConfigError(f"{place} holds archives; remove them first, or write to another folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with closing(_Shards(place, shard_bytes)) as shards:
            for number, raw in dataset.raw_records():
                shards.add(_members(dataset, number, raw))
                progress(len(raw))
            return shards.finish()
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{place} cannot be written to: {error.strerror or error}") from error


def _members(dataset: Dataset, number: int, raw: memoryview) -> list[tuple[str, bytes]]:
    """Return name and bytes of each file of a sample."""
    key, payloads = dataset.split_record(number, raw)
    stem = safe_key(key, number)
    members = []
    for field, kind in dataset.fields.items():
        data = bytes(payloads[field])
        if field in dataset.encodings or (dataset.kind == "aioload" and kind in ("int", "float")):
            data = _rendered(kind, dataset.decoders[field](payloads[field]))
        members.append((f"{stem}.{_member_field(field, kind, data)}", data))
    return members


def safe_key(key: str | None, number: int) -> str:
    """Return a key that is a name within a folder; other keys, and none, become the record's number."""
    text = f"{number:09}" if key is None else key
    parts = text.split("/")
    sound = all(part not in ("", ".", "..") and "." not in part for part in parts)
    return text if sound and not _UNSAFE.search(text) else f"{number:09}"


def _member_field(field: str, kind: str, data: bytes) -> str:
    name = re.sub(r"[^a-z0-9_.-]", "_", field.lower()).strip(".") or "field"
    if kind_of(name) == kind:
        return name
    suffix = next((suffix for magic, suffix in _MAGIC if data.startswith(magic)), _SUFFIXES[kind])
    if data[:4] == b"RIFF":
        suffix = "webp" if data[8:12] == b"WEBP" else "wav"
    return f"{name}.{suffix if kind in ('image', 'audio') else _SUFFIXES[kind]}"


def _rendered(kind: str, value: Any) -> bytes:
    """Return the file of a value that is not stored as one."""
    if isinstance(value, np.ndarray):
        out = io.BytesIO()
        np.lib.format.write_array(out, value, allow_pickle=False)
        return out.getvalue()
    if isinstance(value, bytes):
        return value
    if kind == "str":
        return str(value).encode()
    if kind in ("int", "float"):
        return repr(value.item() if isinstance(value, np.generic) else value).encode()
    return json.dumps(value, ensure_ascii=False).encode()


class _Shards:
    """Archives, one after the other."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._archive: tarfile.TarFile | None = None
        self._names: list[str] = []
        self._records = self._bytes = 0

    def add(self, members: list[tuple[str, bytes]]) -> None:
        cost = sum(_cost(data) for _, data in members)
        if self._archive is not None and self._archive.offset + cost > self._shard_bytes:
            self._end()
        if self._archive is None:
            self._archive = tarfile.open(self._draft, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            self._archive.addfile(info, io.BytesIO(data))
        self._records += 1

    def finish(self) -> ExportReport:
        self._end()
        return ExportReport(self._records, tuple(self._names), self._bytes)

    def close(self) -> None:
        """Remove the archive that is under way, if one is."""
        if self._archive is not None:
            self._archive.close()
            self._draft.unlink(missing_ok=True)

    @property
    def _draft(self) -> Path:
        return self._folder / f"shard-{len(self._names):06}.tar.tmp"

    def _end(self) -> None:
        if self._archive is None:
            return
        self._archive.close()
        self._archive = None
        draft = self._draft
        self._bytes += draft.stat().st_size
        draft.replace(draft.with_suffix(""))
        self._names.append(draft.with_suffix("").name)


def _cost(data: bytes) -> int:
    return tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
