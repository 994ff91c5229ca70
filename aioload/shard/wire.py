"""Protobuf's wire format: the members of a message, and lists of numbers, read strictly.

Neither TensorFlow nor the protobuf package is needed: messages of these few shapes are read in as many lines
as would wrap them, values of bytes stay views of the record where a parsed message holds copies, and a worker
imports nothing more. Stricter than protobuf: a known member in another form, and groups, are errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Malformed", "byte_strings", "floats", "int64s", "only_int64", "other_form", "sole", "walk"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# tags of member 1, which is all that a list has
_PACKED = _STRING = 1 << 3 | _BYTES
_INT64 = 1 << 3 | _VARINT
_FLOAT = 1 << 3 | _FIXED32

_SIZE_BYTES = 5  # the most that protobuf allows for a tag or a length
_SHORT_BYTES = 40  # up to here a loop is faster than numpy's dozen calls
_STRIDE_BYTES = 1 << 16  # what numpy allocates for a stride stays in the cache, however long the list

# of numbers of 0 to 10 bytes, those that count among the first eight
_FIRST_BYTES = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(11)], np.uint64)
# in a word of eight bytes of 7 bits each: the lower one of two neighbours, the upper one, the gap between
_PAIRS = tuple(
    (np.uint64(low), np.uint64(low << 8 * width), np.uint64(width))
    for low, width in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))
)


class Malformed(ValueError):
    """The bytes are no such message; translated at the border to an error that names the place."""


# hot: once a field, and again at each depth
def sole(data: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Return tag and first byte of the member that is all of a message and has a length; 0 if none is.

    A shorter way where messages are as writers mostly write them: what it does not know, `walk` reads.
    """
    at, shift, length = start + 1, 0, 0
    while at < stop and shift < 35:
        byte = data[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            tag = data[start]
            return (tag, at) if at + length == stop and tag & 0x87 == _BYTES and tag >= 8 else (0, 0)
        shift += 7
    return 0, 0


# hot: some times a field; guarded by benchmarks/bench_tfrecord.py
def walk(data: memoryview, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield tag, first byte and byte after the last of each member of a message.

    Args:
        data: bytes, of which the message is those from `start` to `stop`; of a number in the message, the
            yielded bytes are those that say it.

    Raises:
        Malformed: the bytes are no message.
    """
    at = start
    while at < stop:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = _varint(data, at, min(stop, at + _SIZE_BYTES))

        form = tag & 7
        if form == _BYTES:
            if at < stop and data[at] < 0x80:
                last = at + 1 + data[at]
                at += 1
            else:
                length, at = _varint(data, at, min(stop, at + _SIZE_BYTES))
                last = at + length
        elif form == _VARINT:
            last = _varint(data, at, stop)[1]
        elif form == _FIXED32:
            last = at + 4
        elif form == _FIXED64:
            last = at + 8
        else:
            raise Malformed(f"byte {at - 1} begins a member of the form {form}, which is not read")

        if not 8 <= tag < 1 << 32:
            raise Malformed(f"there is no member {tag >> 3}, as at byte {at - 1}")
        if last > stop:
            raise Malformed(f"a member at byte {at} goes on to byte {last}, but its message ends at {stop}")

        yield tag, at, last
        at = last


def byte_strings(message: memoryview) -> Iterator[memoryview]:
    """Yield the values of a `BytesList`, as views of it.

    Raises:
        Malformed: the bytes are no such list.
    """
    tag, start = sole(message, 0, len(message))
    if tag == _STRING:
        yield message[start:]
        return

    for tag, start, stop in walk(message, 0, len(message)):
        if tag == _STRING:
            yield message[start:stop]
        elif tag >> 3 == 1:
            raise other_form(tag, start)


def int64s(message: memoryview) -> npt.NDArray[np.int64]:
    """Return the values of an `Int64List`, packed or not.

    Raises:
        Malformed: the bytes are no such list.
    """
    if len(message) and message[0] == _INT64:
        numbers = _tagged_varints(message)
        if numbers is not None:
            return numbers

    return _numbers(message, _INT64, _varints, np.dtype(np.int64))


def only_int64(message: memoryview) -> int | None:
    """Return the number of an `Int64List` of one; None where there is no one, or `int64s` must tell."""
    tag, start = (_PACKED, 1) if len(message) and message[0] == _INT64 else sole(message, 0, len(message))
    if tag != _PACKED or start == len(message):
        return None
    number, at = _varint(message, start, len(message))
    return (number ^ 1 << 63) - (1 << 63) if at == len(message) else None


def floats(message: memoryview) -> npt.NDArray[np.float32]:
    """Return the values of a `FloatList`, packed or not; packed ones are a view of it.

    Raises:
        Malformed: the bytes are no such list.
    """
    if len(message) and message[0] == _FLOAT and len(message) % 5 == 0:
        rows = np.frombuffer(message, np.uint8).reshape(-1, 5)
        if (rows[:, 0] == _FLOAT).all():
            return rows[:, 1:].copy().view("<f4")[:, 0]

    return _numbers(message, _FLOAT, _fixed32s, np.dtype("<f4"))


def other_form(tag: int, at: int) -> Malformed:
    """Make the error for a member that is known, but not in this form."""
    return Malformed(f"member {tag >> 3} at byte {at} has the form {tag & 7}, which it cannot have")


def _numbers(message: memoryview, single: int, read: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the numbers of a list whose members are packed runs and single numbers, in whatever order."""
    tag, start = sole(message, 0, len(message))
    if tag == _PACKED:
        run: npt.NDArray[Any] = read(message[start:])
        return run

    runs = []
    for tag, start, stop in walk(message, 0, len(message)):
        if tag in (_PACKED, single):
            runs.append(read(message[start:stop]))
        elif tag >> 3 == 1:
            raise other_form(tag, start)

    return np.concatenate(runs) if runs else np.empty(0, dtype)


def _fixed32s(data: memoryview) -> npt.NDArray[np.float32]:
    if len(data) % 4:
        raise Malformed(f"{len(data)} bytes are no whole number of floats")
    return np.frombuffer(data, "<f4")


def _tagged_varints(message: memoryview) -> npt.NDArray[np.int64] | None:
    """Return numbers that each have a tag of their own; None if there is anything else."""
    try:
        both = _varints(message)
    except Malformed:
        return None  # whether it is malformed, or of mixed members, the long way tells
    whole = len(both) % 2 == 0 and bool((both[::2] == _INT64).all())
    return both[1::2].copy() if whole else None


def _varints(data: memoryview) -> npt.NDArray[np.int64]:
    """Return the numbers of a packed run."""
    if len(data) <= _SHORT_BYTES:
        numbers, at = [], 0
        while at < len(data):
            number, at = _varint(data, at, len(data))
            numbers.append(number)
        return np.array(numbers, np.uint64).view(np.int64)

    raw = np.frombuffer(data, np.uint8)
    if raw[-1] >= 0x80:
        raise Malformed("a number does not end")

    values = np.empty(int(np.count_nonzero(raw < 0x80)), np.uint64)
    filled = start = 0
    while start < len(raw):
        stride = raw[start : start + _STRIDE_BYTES]
        stops = np.flatnonzero(stride < 0x80) + 1
        if not len(stops):
            raise _too_long()
        values[filled : filled + len(stops)] = _stride(stride, stops)
        filled += len(stops)
        start += int(stops[-1])
    return values.view(np.int64)


def _stride(raw: npt.NDArray[np.uint8], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return the numbers that end before `stops`: each byte gives 7 bits, the lowest first."""
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1]])
    sizes = stops - starts
    longest = int(sizes.max())
    if longest > 10 or (longest == 10 and (raw[stops[sizes == 10] - 1] > 1).any()):
        raise _too_long()

    # by eights costs the same for all; one or two bytes are sooner had one by one
    known = 1 if longest <= 2 else 8
    values = (raw[starts] & 0x7F).astype(np.uint64) if known == 1 else _eights(raw, starts, sizes)
    more = np.arange(len(stops))
    for place in range(known, longest):
        more = more[sizes[more] > place]
        bits = (raw[starts[more] + place] & 0x7F).astype(np.uint64)
        values[more] |= bits << np.uint64(7 * place)
    return values


def _eights(
    raw: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return what the first eight bytes of each number give, or those that it has."""
    padded = np.zeros(len(raw) + 8, np.uint8)
    padded[: len(raw)] = raw
    values: npt.NDArray[np.uint64] = np.ndarray((len(raw),), "<u8", padded, 0, (1,))[starts]
    values &= _FIRST_BYTES[sizes]

    for low, high, bits in _PAIRS:  # two neighbours become one of twice the bits
        values = values & low | (values & high) >> bits
    return values


def _varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and the byte after it."""
    value = shift = 0
    while at < stop:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            if value >= 1 << 64:
                raise _too_long()
            return value, at
        shift += 7
        if shift == 70:
            raise _too_long()
    raise Malformed("a number does not end")


def _too_long() -> Malformed:
    return Malformed("a number has more than 64 bits")
