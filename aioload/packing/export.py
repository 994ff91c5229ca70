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
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..dataset import Dataset
from ..errors import SampleError, StorageError
from ..shard.absent import ABSENT
from ..shard.kinds import NUMERIC_KINDS, kind_of, media_suffix
from .archives import Archives, archives_at

if TYPE_CHECKING:
    from typing_extensions import Buffer  # Python 3.12 has it

__all__ = ["ExportReport", "export"]

_SUFFIXES = {
    "image": "img", "audio": "snd", "int": "cls", "float": "json", "str": "txt", "json": "json",
    "ndarray": "npy", "bytes": "bin",
}  # fmt: skip
# of files that webdataset decodes by their suffix, though here they are bytes
_DECODED = frozenset({
    "text", "transcript", "cls2", "class", "count", "index", "inx", "id", "jsn", "pkl", "pickle", "pyd",
    "pth", "pt", "ten", "tb", "mp", "msg", "npz", "cbor",
})  # fmt: skip
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
    storage_options: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write a set as archives `shard-000000.tar` and so on, each of which appears when it is whole.

    Args:
        dataset: any set.
        folder: made if it is not there, or an address in a bucket; there must be no archive in it.
        shard_bytes: how large an archive may become; a sample is in one whole.
        progress: told of so many more bytes of records.
        storage_options: of a bucket that is written to, as `Writer` takes them.

    Raises:
        ConfigError: the folder holds archives.
        ShardError: a record is damaged.
        SampleError: a value cannot be decoded, or is none that a file can hold.
        StorageError: the disk failed, or the bucket.
    """
    place = archives_at(folder, shard_bytes, storage_options)
    try:
        with closing(_Shards(place, shard_bytes)) as shards:
            for number, raw in dataset.raw_records():
                shards.add(number, *_members(dataset, number, raw))
                progress(len(raw))
            return shards.finish()
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise place.translated(error) from error


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
        name = _member_field(field, kind, data, keep=dataset.kind == "tar")
        members[_unused(name, members)] = data
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


def _member_field(field: str, kind: str, data: bytes, *, keep: bool) -> str:
    """Return the name of a field's file, without its key.

    Args:
        field: its name.
        kind: its kind.
        data: the file.
        keep: whether the name is that of such a file already.
    """
    name = re.sub(r"[^a-z0-9_.-]", "_", field.lower()).strip(".") or "field"
    name = name[-_MOST_FIELD_LETTERS:].strip(".")
    if kind_of(name) == kind and (keep or name.rpartition(".")[2] not in _DECODED):
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
    if kind in NUMERIC_KINDS:  # JSON has every digit of a float, too
        return kind, json.dumps(value.item() if isinstance(value, np.generic) else value).encode()
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

    def __init__(self, place: Archives, shard_bytes: int) -> None:
        self._place = place
        self._shard_bytes = shard_bytes
        self._archive: tarfile.TarFile | None = None
        self._file: _Counted
        self._names: list[str] = []
        self._keys: set[str] = set()  # of the archive that is under way
        self._records = self._bytes = 0

    def add(self, number: int, key: str, members: Mapping[str, bytes]) -> None:
        cost = sum(map(_cost, members.values()))
        if self._archive is not None and self._archive.offset + cost > self._shard_bytes:
            self._end()
        if self._archive is None:
            self._archive = self._begin()
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
        if self._archive is not None:
            self._end()
        return ExportReport(self._records, tuple(self._names), self._bytes)

    def close(self) -> None:
        """Give up the archive that is under way, if one is."""
        if self._archive is not None:
            with suppress(OSError):  # what it still holds back; the first error matters more
                self._file.inner.close()
            self._place.give_up(self._name)

    @property
    def _name(self) -> str:
        return f"shard-{len(self._names):06}.tar"

    def _begin(self) -> tarfile.TarFile:
        self._file = _Counted(self._place.begin(self._name))
        return tarfile.TarFile(mode="w", fileobj=self._file, format=tarfile.PAX_FORMAT)

    def _end(self) -> None:
        assert self._archive is not None, "one is under way"
        self._archive.close()
        name = self._name
        self._place.finish(self._file.inner, name)
        self._archive = None
        self._keys.clear()
        self._bytes += self._file.tell()
        self._names.append(name)


class _Counted(io.RawIOBase):
    """A file that says how far it is, also one in a bucket, which takes bytes one after the other."""

    def __init__(self, inner: BinaryIO) -> None:
        super().__init__()
        self.inner = inner
        self._place = 0

    def write(self, data: Buffer, /) -> int:
        """Pass bytes on."""
        count = self.inner.write(data)
        self._place += count
        return count

    def tell(self) -> int:
        """Return how many came."""
        return self._place


def _cost(data: bytes) -> int:
    return tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
