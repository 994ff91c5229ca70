"""One MDS shard: where its rows lie, and which bytes of a row are which column.

A shard is a count, a table of 32-bit offsets, a copy of the writer's options (which nobody needs) and the
rows end to end. A row is the sizes of those columns whose size is not fixed, then all columns. There is no
sum in it. What can be held against something else are the count, with the set's index; the offsets, with each
other and the file; and the sizes in a row, with its length. A field is never shorter than its row says.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .kinds import Fields
from .scan import Scanned, Scanner

__all__ = ["MdsFormat", "encoded_size", "kind_of_encoding", "own_decoder", "scan"]

_WORD = 4  # bytes of a count, an offset and a size: all are little-endian and of 32 bits
_WINDOW_BYTES = 4 << 20  # read at a time
_MOST_REST = 1 << 20  # of a damaged shard's rest: the record that stands for it need not be read whole
_NUMBERS = {
    f"{sort}{bits}": bits // 8
    for sort, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in widths
}
_KINDS = {
    **{name: "float" if name.startswith("float") else "int" for name in _NUMBERS},
    "int": "int",
    "str_int": "int",
    "str_float": "float",
    "str_decimal": "str",
    "bytes": "bytes",
    "str": "str",
    "json": "json",
    "ndarray": "ndarray",
    "jpeg": "image",
    "png": "image",
    "pil": "image",
}
_NO_OFFSETS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
_NATIVE = frozenset({"bytes", "str", "json", "int", "int64", "float64", "jpeg", "png"})


@dataclass(frozen=True, slots=True)
class MdsFormat:
    """What the bytes of a row mean."""

    fields: Fields
    """Names and kinds of the columns, in the order in which a row holds them."""
    encodings: dict[str, str] = field(hash=False)
    """By name, what decodes columns whose bytes are not what their kind has elsewhere."""
    column_sizes: tuple[int | None, ...]
    """Bytes of each column; None where a row says it."""
    _fixed: int = field(init=False, repr=False, compare=False)
    _sizes: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fixed", sum(size for size in self.column_sizes if size is not None))
        object.__setattr__(self, "_sizes", f"<{self.column_sizes.count(None)}I")

    def split(self, record: memoryview) -> tuple[None, dict[str, memoryview]]:
        """Return no key, as rows have none, and the bytes of each column.

        Raises:
            ShardError: the row is cut short, or its sizes are not those of its bytes.
        """
        # hot: once per record
        start = struct.calcsize(self._sizes)
        if len(record) < start:
            raise _misfit(len(record), start + self._fixed)
        sizes = struct.unpack_from(self._sizes, record)
        if start + self._fixed + sum(sizes) != len(record):
            raise _misfit(len(record), start + self._fixed + sum(sizes))
        rest = iter(sizes)
        values: dict[str, memoryview] = {}
        for (name, _), size in zip(self.fields, self.column_sizes, strict=True):
            stop = start + (next(rest) if size is None else size)
            values[name] = record[start:stop]
            start = stop
        return None, values


def kind_of_encoding(encoding: str) -> str:
    """Return the kind of field that values of an encoding are; lists and what is unknown are bytes."""
    return _KINDS.get(encoding.partition(":")[0], "bytes")


def own_decoder(encoding: str) -> bool:
    """Tell whether an encoding's bytes need a decoder of their own, not just the one of their kind."""
    return encoding not in _NATIVE


def encoded_size(encoding: str) -> int | None:
    """Return how many bytes each value of an encoding takes; None where that differs.

    Raises:
        ValueError: it is an array's, and what it says of type or shape is nonsense.
    """
    name, _, rest = encoding.partition(":")
    if name != "ndarray":
        return 8 if encoding == "int" else _NUMBERS.get(encoding)
    dtype, _, shape = rest.partition(":")
    if dtype and dtype not in _NUMBERS:
        raise ValueError(f"{dtype!r} is no type of an array's values")
    if not shape:
        return None
    size = _NUMBERS[dtype]
    for length in map(int, shape.split(",")):
        if length < 1:
            raise ValueError(f"an array's side is {length}")
        size *= length
    return size


def scan(size: int, name: str, samples: int) -> Scanner:
    """Look through one shard.

    Where it is not what the index says, the rows before that place are good. One more, which may be empty,
    stands for all that is missing from there on, and fails when it is split.

    Args:
        size: of the file.
        name: of the file, for what is said of damage.
        samples: rows that the set's index counts in it.
    """
    words = yield from _words(min(size, _WORD * (samples + 2)))
    count, offsets = (int(words[0]), words[1:].astype(np.uint64)) if len(words) else (0, _NO_OFFSETS)
    rows = max(0, min(count, samples, len(offsets) - 1))
    if len(offsets) and _WORD * (rows + 2) <= int(offsets[0]) <= size:
        start, ends = int(offsets[0]), offsets[1 : rows + 1]
        sound = (ends >= offsets[:rows]) & (ends <= size)
        good = rows if sound.all() else int(sound.argmin())
        following = offsets[good + 1 : good + 2]
    else:
        start, ends, good = min(size, _WORD * (samples + 2)), _NO_OFFSETS, 0
        following = offsets[:1]
    if good == samples == count:
        return Scanned(start, ends)

    is_cut = not len(following) or int(following[0]) > size
    rest_start = int(ends[good - 1]) if good else start
    rest_stop = min(rest_start + _MOST_REST, size) if is_cut and good < samples else rest_start
    if count != samples:
        reason = f"{name} says it holds {count} rows, and the index of its set says {samples}"
    elif is_cut:
        reason = f"{name} is cut short: it ends at byte {size}, in row {good} or before it"
    else:
        reason = f"the offsets of {name} do not ascend at row {good}"
    return Scanned(start, np.append(ends[:good], np.uint64(rest_stop)), damage=reason)


def _words(stop: int) -> Generator[tuple[int, int], memoryview, npt.NDArray[np.uint32]]:
    """Read the shard's first numbers."""
    stop -= stop % _WORD
    data = bytearray()
    for start in range(0, stop, _WINDOW_BYTES):
        data += yield start, min(start + _WINDOW_BYTES, stop)
    return np.frombuffer(data, "<u4")


def _misfit(found: int, expected: int) -> ShardError:
    """Make the error for a row that is not as long as its sizes say."""
    cut = found < expected
    what = (
        f"is {'cut short' if found else 'missing'}: of {expected} bytes for its columns not all are there"
        if cut
        else f"is followed by bytes that are no row: it has {found}, and its columns need {expected}"
    )
    return ShardError(
        f"this MDS row {what}; the shard is damaged, or not the one that its index.json means: copy it "
        "again, or pass on_error='skip'",
        category="truncated" if cut else "broken",
        offset=min(found, expected),
    )
