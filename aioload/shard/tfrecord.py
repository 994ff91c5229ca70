"""TFRecord: framed records with a sum for each length and one for each record's bytes.

A record is 8 bytes of length, 4 of the length's sum, the bytes, and 4 of their sum; sums are CRC-32C, turned
and shifted by a constant. The length's sums are checked when a shard is scanned, both when a record is split.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, SampleError, ShardError
from .absent import ABSENT
from .example import ENCODINGS, PAYLOADS, Payload, entries, learn, sniff
from .features import Cut
from .kinds import Fields, check_fields
from .scan import Scanned, Scanner
from .wire import Malformed

__all__ = ["TFRecordFormat", "begins_record", "frame", "scan"]

_MESSAGES = {"example": "Example", "sequence": "SequenceExample"}

_HEAD = struct.Struct("<QI")
_SUM = struct.Struct("<I")
_FRAME_BYTES = _HEAD.size + _SUM.size
_EMPTY_BYTES = 2  # of an example whose features are there, but none

_WINDOW_BYTES = 4 << 20  # read at a time where records are small
_HOP_BYTES = 64 << 10  # read at a head where they are large: heads of small records behind it come along
_LARGE_BYTES = 256 << 10  # from here on a hop costs less than reading what it passes over
_MOST_REST = 1 << 20  # of a damaged shard's rest: its last record need not be read whole to be refused
_MOST_LEARNT = 64 << 20  # a record that is larger tells its fields only if no other does
_MOST_MESSAGE = 2 << 30  # what protobuf allows: a larger record is none
_LEARN_RECORDS = 8  # whose fields are tried, where the first ones are damaged or hold no field


def frame(data: bytes) -> bytes:
    """Return a record with these bytes, as it stands in a file."""
    length = struct.pack("<Q", len(data))
    return b"".join([length, _SUM.pack(_masked(length)), data, _SUM.pack(_masked(data))])


def begins_record(head: bytes) -> bool:
    """Tell whether bytes begin with a length and its right sum."""
    return len(head) >= _HEAD.size and _masked(head[:8]) == _HEAD.unpack_from(head)[1]


def scan(size: int, name: str, *, payload: Payload | None = None) -> Scanner:
    """Look through a shard.

    Args:
        size: bytes of the file.
        name: the shard's, for errors.
        payload: what a record holds, one of `PAYLOADS`; None: told by the first that is whole.

    Raises:
        ConfigError: there is no such payload.
        ShardError: this is no TFRecord file, or its records do not hold that payload.
    """
    if payload is not None and payload not in PAYLOADS:
        raise ConfigError(f"payload is one of {', '.join(PAYLOADS)}, got {payload!r}")

    ends = array("Q")
    at, damage = 0, ""
    while at < size and not damage:
        window = yield at, min(at + _ahead(ends), size)
        if len(window) < _HEAD.size:
            damage = "truncated"
        else:
            at, damage = _pass(window, at, size, ends)

    if damage == "checksum" and not ends:
        raise _no_tfrecord(name)

    fields, facts, is_guess = yield from _learn(ends, name, payload)
    return replace(_found(ends, at, size, name, damage, fields, facts), is_guess=is_guess)


@dataclass(frozen=True, slots=True)
class TFRecordFormat:
    """How one record is checked, and cut into its features."""

    fields: Fields
    """Names and kinds, as the scanner found them or as `with_kinds` says."""
    encodings: dict[str, str] = field(default_factory=dict, hash=False)
    """Of those fields whose bytes a kind's own decoder does not read."""
    payload: Payload = "example"
    """What a record holds, one of `PAYLOADS`."""
    optional: frozenset[str] = field(default=frozenset(), kw_only=True)
    """Fields that are `ABSENT` in records which lack them. Of others, that is an error."""
    check_data: bool = field(default=True, kw_only=True)
    """Whether the sum of a record's bytes is checked; that of its length always is."""
    _features: dict[bytes, Cut] = field(init=False, repr=False, compare=False)
    _lists: dict[bytes, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "fields", check_fields(self.fields) if self.fields else ())
        self._check()
        set_field(self, "_lists", {n.encode(): n for n, _ in self.fields if self._is_list(n)})
        cuts = {
            n.encode(): Cut.of(n, k, self.encodings.get(n)) for n, k in self.fields if not self._is_list(n)
        }
        set_field(self, "_features", cuts)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"optional": self.optional, "check_data": self.check_data}
        return _rebuild, (self.fields, self.encodings, self.payload, options)

    def with_kinds(self, kinds: Mapping[str, str]) -> TFRecordFormat:
        """Return a format that takes fields to be of other kinds, or that has more fields.

        Args:
            kinds: by field. "int" and "float" ask for exactly one number; "str", "json", "image", "audio" and
                "bytes" for exactly one value of bytes; "ndarray" leaves numbers as they are, and takes bytes
                to be a .npy file; an encoding such as "example:float" asks for a list, also of a field that
                the first record lacks.

        Raises:
            ConfigError: an unknown kind, or a field that such records cannot have.
        """
        fields, encodings = dict(self.fields), dict(self.encodings)
        for name, kind in kinds.items():
            if kind in ENCODINGS:
                fields[name], encodings[name] = ENCODINGS[kind], kind
            elif kind != "ndarray" or fields.get(name) != "ndarray":
                fields[name] = kind
                encodings.pop(name, None)
        return replace(self, fields=tuple(fields.items()), encodings=encodings)

    # hot: once per record in a worker
    def split(self, record: memoryview) -> tuple[str | None, dict[str, memoryview]]:
        """Return the bytes of each field, as views of the record where they stand in it.

        Raises:
            ShardError: the record is cut short, fails a checksum or cannot be parsed.
            SampleError: a field is absent, or is not of its kind.
        """
        data = self._data(record)
        if self.payload == "bytes":
            return None, {"data": data}

        values: dict[str, memoryview] = {}
        try:
            if self._features:
                found = entries(data, self._features)
                for name, cut in self._features.items():
                    if name not in found or (value := cut(found[name])) is None:
                        value = self._stand_in(cut.name, data)
                    values[cut.name] = value
            if self._lists:
                found = entries(data, self._lists, lists=True)
                for raw, field_name in self._lists.items():
                    message = found.get(raw)
                    values[field_name] = self._stand_in(field_name, data) if message is None else message
        except Malformed as error:
            raise ShardError(
                f"this record is no tf.train.{_MESSAGES[self.payload]}: {error}; write the shard again, or "
                "pack the files apart, each kind into a set of its own",
                category="broken",
                cause=str(error),
            ) from error
        return None, values

    def _check(self) -> None:
        """Raise ConfigError where payload, fields and encodings do not go together."""
        if self.payload not in PAYLOADS:
            raise ConfigError(f"payload is one of {', '.join(PAYLOADS)}, got {self.payload!r}")

        names = dict(self.fields)
        if self.payload == "bytes" and (list(names) != ["data"] or self.encodings):
            raise ConfigError(
                f"records of payload 'bytes' have the field 'data' alone, asked for {self.fields}"
            )

        for name, encoding in self.encodings.items():
            if encoding not in ENCODINGS or names.get(name) != ENCODINGS[encoding]:
                raise ConfigError(f"the encoding {encoding!r} cannot be that of field {name!r}", field=name)
            if self.payload == "example" and self._is_list(name):
                raise ConfigError(
                    f"field {name!r} asks for a feature list, which only a SequenceExample has", field=name
                )

    def _is_list(self, name: str) -> bool:
        return self.encodings.get(name, "").startswith("example:list")

    def _data(self, record: memoryview) -> memoryview:
        """Return what is between the sums of a record, having checked them."""
        if len(record) < _HEAD.size:
            raise _truncated("it ends in its length")

        length, expected = _HEAD.unpack_from(record)
        if _masked(bytes(record[:8])) != expected:
            raise _damaged("length")
        if _FRAME_BYTES + length != len(record):
            if _FRAME_BYTES + length > len(record):
                raise _truncated(f"it has {_FRAME_BYTES + length} bytes, and the file ends before")
            raise ShardError(
                f"this record has {_FRAME_BYTES + length} bytes, the index gives it {len(record)}: the index "
                "is of another file; make it again",
                category="broken",
            )

        data = record[_HEAD.size : -_SUM.size]
        if self.check_data and not _is_sound(record, data):
            raise _damaged("bytes")
        return data

    def _stand_in(self, name: str, data: memoryview) -> memoryview:
        """Return what stands for a field that a record lacks."""
        if name in self.optional:
            return ABSENT

        there = sorted(str(raw, "utf-8", "replace") for raw in entries(data))
        if self.payload == "sequence":
            there += sorted(str(raw, "utf-8", "replace") for raw in entries(data, lists=True))
        what = f"this record has no value for field {name!r}; it has {', '.join(there) or 'no features'}"
        raise SampleError(
            f"{what}; ask for fields that all records have with fields={{…}}, give it a value with "
            f"defaults={{{name!r}: …}}, or skip such records with on_error='skip'",
            what=what,
            category="missing",
            field=name,
            features=there,
        )


def _rebuild(
    fields: Fields, encodings: dict[str, str], payload: Payload, options: dict[str, Any]
) -> TFRecordFormat:
    return TFRecordFormat(fields, encodings, payload, **options)


def _masked(data: bytes | npt.NDArray[np.uint8]) -> int:
    """Return the sum of bytes as TFRecord writes it."""
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _ahead(ends: array[int]) -> int:
    """Return how many bytes to read at the next head, by the size of the last record."""
    last = ends[-1] - (ends[-2] if len(ends) > 1 else 0) if ends else _LARGE_BYTES
    return _HOP_BYTES if last >= _LARGE_BYTES else _WINDOW_BYTES


# hot: the loop goes once over each record; guarded by benchmarks/bench_tfrecord.py
def _pass(window: memoryview, first: int, size: int, ends: array[int]) -> tuple[int, str]:
    """Go from head to head as far as a window shows them, and note where records end.

    Returns:
        The byte of the next head, and what is wrong with it.
    """
    at, last = 0, len(window) - _HEAD.size
    unpack, value, append = _HEAD.unpack_from, google_crc32c.value, ends.append
    while at <= last:
        length, expected = unpack(window, at)
        crc = value(bytes(window[at : at + 8]))  # _masked, without its call
        if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != expected:
            return first + at, "checksum"
        stop = at + _FRAME_BYTES + length
        if first + stop > size:
            return first + at, "truncated"
        append(first + stop)
        at = stop
    return first + at, ""


def _learn(
    ends: array[int], name: str, payload: Payload | None
) -> Generator[tuple[int, int], memoryview, tuple[Fields, dict[str, Any], bool]]:
    """Return fields and facts as the first record tells them that is whole and has any; else a guess."""
    tried = [] if payload == "bytes" else _promising(ends)
    for number in tried:
        start = ends[number - 1] if number else 0
        record = yield start, ends[number]
        data = record[_HEAD.size : -_SUM.size]
        if not _is_sound(record, data):
            continue

        try:
            told = payload or sniff(data)
            fields, encodings = learn(data, told) if told else ((), {})
        except (Malformed, UnicodeDecodeError) as error:
            raise _other_payload(name, number, start, payload, error) from error
        if fields:
            return fields, {"payload": told, "encodings": encodings}, False

    is_guess = payload is None
    if is_guess and (yield from _any_sound(ends)):
        payload = "bytes"  # of nothing but empty records, or of huge ones, nothing else can be said
    fields = learn(memoryview(b""), payload)[0] if payload == "bytes" else ()
    return fields, {"payload": payload or "example", "encodings": {}}, is_guess


def _promising(ends: array[int]) -> list[int]:
    """Return the numbers of the records whose fields are tried, which have to be read whole for it.

    They are the first that are larger than an empty message, but for huge ones where there are others.
    """
    sizes = np.diff(np.array(ends, np.uint64), prepend=np.uint64(0))
    some = sizes > _FRAME_BYTES + _EMPTY_BYTES
    small: list[int] = np.flatnonzero(some & (sizes <= _MOST_LEARNT))[:_LEARN_RECORDS].tolist()
    if small or not some.any():
        return small
    least = int(np.where(some, sizes, _MOST_MESSAGE).argmin())
    return [least] if sizes[least] < _MOST_MESSAGE else []


def _any_sound(ends: array[int]) -> Generator[tuple[int, int], memoryview, bool]:
    """Tell whether any of the first records is whole; huge ones are believed to be."""
    for number in range(min(len(ends), _LEARN_RECORDS)):
        start = ends[number - 1] if number else 0
        if ends[number] - start > _MOST_LEARNT:
            return True
        record = yield start, ends[number]
        if _is_sound(record, record[_HEAD.size : -_SUM.size]):
            return True
    return False


def _is_sound(record: memoryview, data: memoryview) -> bool:
    expected: int = _SUM.unpack_from(record, len(record) - _SUM.size)[0]
    return _masked(np.frombuffer(data, np.uint8)) == expected


def _found(
    ends: array[int], at: int, size: int, name: str, damage: str, fields: Fields, facts: dict[str, Any]
) -> Scanned:
    """Say what was found; what is left behind the last whole record is one that is damaged."""
    text = None
    if damage:
        what = "truncated, the file ends in" if damage == "truncated" else "a wrong sum for the length of"
        text = f"byte {at} of {size}: {what} its record {len(ends)}"
        ends.append(min(at + _MOST_REST, size))
    return Scanned(
        data_start=0,
        ends=np.array(ends, np.uint64),
        damage=text,
        fields=fields,
        facts=facts,
    )


def _no_tfrecord(name: str) -> ShardError:
    return ShardError(
        f"{name} is no TFRecord file, or damaged at its beginning: its first 12 bytes are not a length with "
        "its checksum; restore it, or leave it out",
        shard=name,
        record=0,
        offset=0,
        category="checksum",
    )


def _other_payload(
    name: str, number: int, start: int, payload: Payload | None, error: Exception
) -> ShardError:
    return ShardError(
        f"record {number} of {name} (byte {start}) does not hold the payload {payload!r}: {error}; let it be "
        "told from the records",
        shard=name,
        record=number,
        offset=start,
        category="broken",
        cause=str(error),
    )


def _damaged(what: str) -> ShardError:
    return ShardError(
        f"the {what} of this TFRecord record failed its checksum: the file was damaged after it was written; "
        "restore it, or skip the record with on_error='skip'",
        category="checksum",
    )


def _truncated(what: str) -> ShardError:
    return ShardError(
        f"this TFRecord record is truncated: {what}; the file was cut, as by a writer that was killed; "
        "restore it, or skip the record with on_error='skip'",
        category="truncated",
    )
