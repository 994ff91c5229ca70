"""Export: any set as WebDataset archives, its payloads byte for byte.

A member is named `<key>.<field>`, with a suffix that tells the field's kind where the field's name does not:
`0001.jpg` of a field `jpg`, `0001.image.jpg` of a field `image`. Keys come from data, so they are made safe:
no name leads out of the folder that somebody unpacks the archive into. Within an archive no key and no field
comes twice.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import tarfile
from collections.abc import Callable, Container, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dataset import Dataset
from ..errors import ConfigError, SampleError, StorageError
from ..shard.absent import ABSENT
from ..shard.kinds import NUMERIC_KINDS, kind_of, media_suffix

__all__ = ["ExportReport", "export"]

_SUFFIXES = {
    "image": "img", "audio": "snd", "int": "cls", "float": "float", "str": "txt", "json": "json",
    "ndarray": "npy", "bytes": "bin",
}  # fmt: skip
_UNSAFE = re.compile(r'[\\:*?"<>|]')  # some system takes them for more than a letter
_MOST_NAME_BYTES = 200  # of a part of a path: with a suffix, no file system takes much more than that
_MOST_KEY_BYTES = 1000
_MOST_FIELD_LETTERS = 50


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
        SampleError: a value cannot be decoded, or is none that a file can hold.
        StorageError: the disk failed.
    """
    place = Path(folder)
    if place.is_dir() and any(path.suffix == ".tar" for path in place.iterdir()):
        raise ConfigError(f"{place} holds archives; remove them first, or write to another folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        with closing(_Shards(place, shard_bytes)) as shards:
            for number, raw in dataset.raw_records():
                shards.add(number, *_members(dataset, number, raw))
                progress(len(raw))
            return shards.finish()
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{place} cannot be written to: {error.strerror or error}") from error


def _members(dataset: Dataset, number: int, raw: memoryview) -> tuple[str, dict[str, bytes]]:
    """Return the sample's key, and name and bytes of each of its files."""
    key, payloads = dataset.split_record(number, raw)
    members: dict[str, bytes] = {}
    for field, kind in dataset.fields.items():
        payload = payloads[field]
        if payload is ABSENT:  # a default is no part of what is stored
            continue
        data = bytes(payload)
        if _is_value(dataset, field, kind):
            decode = dataset.decoders_of([field])[field]
            value = dataset.decode_field(decode, payload, number, key, field)
            kind, data = _rendered(field, kind, value)
        members[_unused(_member_field(field, kind, data), members)] = data
    return safe_key(key, number), members


def _is_value(dataset: Dataset, field: str, kind: str) -> bool:
    """Tell whether a field's bytes are not those that a file of its kind has."""
    encoding = dataset.encodings.get(field)
    if encoding is None:
        return dataset.kind != "tar" and kind in NUMERIC_KINDS
    return not encoding.startswith("text:")


def safe_key(key: str | None, number: int) -> str:
    """Return a key that is a name within a folder; other keys, and none, become the record's number."""
    return key if key is not None and _is_safe(key) else f"{number:09}"


def _is_safe(key: str) -> bool:
    parts = key.split("/")
    if not key.isprintable() or _UNSAFE.search(key) or len(key.encode()) > _MOST_KEY_BYTES:
        return False
    if any(part in ("", ".", "..") or len(part.encode()) > _MOST_NAME_BYTES for part in parts):
        return False
    return "." not in parts[-1]  # what follows a dot there would become part of the field


def _unused(name: str, names: Container[str]) -> str:
    """Return a name, with a number before it where another has it."""
    found, numbers = name, itertools.count(2)
    while found in names:
        found = f"{next(numbers)}.{name}"
    return found


def _member_field(field: str, kind: str, data: bytes) -> str:
    name = re.sub(r"[^a-z0-9_.-]", "_", field.lower()).strip(".") or "field"
    name = name[-_MOST_FIELD_LETTERS:].strip(".")
    if kind_of(name) == kind:
        return name
    suffix = media_suffix(data) if kind in ("image", "audio") else None
    return f"{name}.{suffix or _SUFFIXES[kind]}"


def _rendered(field: str, kind: str, value: Any) -> tuple[str, bytes]:
    """Return kind and bytes of the file of a value that is not stored as one.

    Raises:
        SampleError: no one file holds such a value.
    """
    if isinstance(value, np.ndarray):
        out = io.BytesIO()
        np.lib.format.write_array(out, value, allow_pickle=False)
        return "ndarray", out.getvalue()
    if isinstance(value, bytes):
        return kind, value
    if kind == "str":
        return kind, str(value).encode()
    if kind in NUMERIC_KINDS:
        return kind, repr(value.item() if isinstance(value, np.generic) else value).encode()
    if isinstance(value, list):
        raise SampleError(
            f"the field {field!r} holds a list, for which archives have no file; ask for other fields with "
            "fields=",
            category="unsupported",
            field=field,
        )
    return kind, json.dumps(value, ensure_ascii=False).encode()


class _Shards:
    """Archives, one after the other."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._archive: tarfile.TarFile | None = None
        self._names: list[str] = []
        self._keys: set[str] = set()  # of the archive that is under way
        self._records = self._bytes = 0

    def add(self, number: int, key: str, members: Mapping[str, bytes]) -> None:
        cost = sum(map(_cost, members.values()))
        if self._archive is not None and self._archive.offset + cost > self._shard_bytes:
            self._end()
        if self._archive is None:
            self._archive = tarfile.open(self._draft, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        stem, marks = key, itertools.chain([f"{number:09}"], itertools.count())
        while key in self._keys:  # of shards that were apart, say
            key = f"{stem}-{next(marks)}"
        self._keys.add(key)
        for name, data in members.items():
            info = tarfile.TarInfo(f"{key}.{name}")
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
        self._keys.clear()
        draft = self._draft
        self._bytes += draft.stat().st_size
        draft.replace(draft.with_suffix(""))
        self._names.append(draft.with_suffix("").name)


def _cost(data: bytes) -> int:
    return tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
