"""Layout: how a tree of arrays, texts and objects lies in a stretch of shared memory.

Two forms. A *packed* tree describes itself: leaves one behind the other, then a descriptor that says where
they are. It holds whatever a transform or a collate returns. A *layout* is the fast path for batches that are
stacked: once a sample has shown its shapes, every row of every later batch has its place before it is
decoded, and workers write rows there directly. A sample that does not fit a layout says so and is packed
instead, so what was seen first never decides what comes out.

Arrays start at multiples of `ALIGNMENT` bytes. Texts are a table of u64 ends, then their bytes. Only leaves
that are neither arrays nor texts are pickled, all of a tree in one go.
"""

from __future__ import annotations

import importlib
import math
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..collate import batch_structure, describe, leaf_rule
from ..errors import SampleError
from ..tree import flatten, unflatten
from .space import ALIGNMENT, Span

__all__ = [
    "Column",
    "Layout",
    "Leaf",
    "Members",
    "NoRoom",
    "Piece",
    "RowWriter",
    "Stretches",
    "Tree",
    "align",
    "batch_tree",
    "copy_rows",
    "descriptor",
    "foreseen",
    "learn",
    "pack",
    "texts",
    "tree_of",
    "unpack",
    "unpack_leaves",
    "view",
]

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_SCALARS = {"int": "<i8", "float": "<f8", "bool": "|b1"}  # dtype of a column of Python numbers, by its rule
_TEXTS = ("text", "bytes")
_NUMPYS = frozenset(  # torch's dtypes that numpy has under the same name
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
)
_NONE: Mapping[str, Any] = MappingProxyType({})
_AT_ONCE_BYTES = 128 << 10  # of texts that become objects without a break
_ROW_BY_ROW = 8192  # bytes from which copying values one by one costs less than gathering all of them

Members = slice | NDArray[np.int64]
"""Which rows: all of them, or these."""
Piece = tuple[NDArray[np.uint8], Members]
"""A stretch of memory, and the rows whose values lie there."""


class NoRoom(Exception):
    """The given stretch is too small for what should lie there; no error, the answer says how much is enough.

    Args:
        need: bytes that are enough.
    """

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where one leaf lies, relative to the beginning of its place."""

    kind: str  # "array", "scalar", "tensor", "text", "bytes"; "object": `start` counts the pickled ones
    dtype: str  # numpy's for arrays, torch's name for tensors
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A packed tree: its pickled structure, its leaves, and where its pickled objects lie."""

    structure: bytes
    leaves: tuple[Leaf, ...]
    objects: Span


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf of a sample, as it is in every row of a batch."""

    rule: str  # as `collate.leaf_rule` names it
    dtype: str
    shape: tuple[int, ...]  # of one row

    @property
    def row_bytes(self) -> int:
        """Bytes one row takes; 0 for texts, which lie elsewhere."""
        return 0 if self.rule in _TEXTS else math.prod(self.shape) * _itemsize(self)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all rows of a stacked batch, known from one sample."""

    sample: bytes  # pickled structure of a sample
    batch: bytes  # pickled structure of the batch that `collate.default` makes
    columns: tuple[Column, ...]

    @property
    def has_texts(self) -> bool:
        """Whether a batch has texts, which lie beside its rows."""
        return any(column.rule in _TEXTS for column in self.columns)

    def starts(self, rows: int) -> tuple[int, ...]:
        """Return where each column begins in a batch of `rows`; the last number is the size of the batch."""
        return _starts(self.columns, rows)

    def leaves(self, rows: int) -> tuple[Leaf, ...]:
        """Return the leaves of a batch of `rows`; those of texts are empty."""
        return _leaves(self.columns, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Texts or bytes that lie in memory already, each somewhere else."""

    pieces: list[Piece]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def write(self, place: NDArray[np.uint8]) -> None:
        """Write them to a place, end to end."""
        size = int(self.sizes[0]) if len(self) else 0
        if (self.sizes == size).all():
            copy_rows(self.pieces, self.starts, size, place.reshape(len(self), size))
            return
        found: list[Any] = [b""] * len(self)
        for array, members in self.pieces:
            memory, begin, stop = array.data, self.starts[members], (self.starts + self.sizes)[members]
            rows = np.arange(len(self))[members].tolist()
            for row, first, last in zip(rows, begin.tolist(), stop.tolist(), strict=True):
                found[row] = memory[first:last]
        place[:] = np.frombuffer(b"".join(found), np.uint8)


class RowWriter:
    """Write samples into their rows of a batch in the arena.

    Args:
        layout: what every sample must look like.
        place: the whole batch's bytes.
        rows: rows of the whole batch.
    """

    def __init__(self, layout: Layout, place: NDArray[np.uint8], rows: int) -> None:
        self.structure = _structure(layout.sample)
        self.targets = [_target(place, leaf) for leaf in layout.leaves(rows)]
        self._columns = layout.columns
        self.texts: list[list[Any] | Stretches] = []
        self.forget_texts()

    def write(self, row: int, sample: Any, placed: Mapping[str, NDArray[Any]] = _NONE) -> bool:
        """Write one sample; return False, with the row undefined, if it does not fit.

        Args:
            row: of the batch.
            sample: to be written.
            placed: values that may be in their places already.
        """
        # hot: once per record
        leaves, structure = flatten(sample)
        if structure != self.structure:
            return False

        text = 0
        for column, target, value in zip(self._columns, self.targets, leaves, strict=True):
            rule = column.rule
            if rule == "array":
                if not isinstance(value, (np.ndarray, np.generic)):
                    return False
                if value.shape != column.shape or value.dtype.str != column.dtype:
                    return False
                if not placed or not any(value is place for place in placed.values()):
                    target[row] = value
            elif leaf_rule(value) != rule:
                return False
            elif rule in _TEXTS:
                known = self.texts[text]
                assert isinstance(known, list)
                known.append(value if rule == "text" else bytes(value))
                text += 1
            elif rule == "tensor":
                if tuple(value.shape) != column.shape or _torch_name(value) != column.dtype:
                    return False
                raw = _lent(value) if column.dtype in _NUMPYS else None
                if raw is None:
                    if not _is_dense(value):
                        return False
                    raw = _raw(value).view(target.dtype).reshape(target.shape[1:])
                target[row] = raw
            else:
                try:
                    target[row] = value
                except OverflowError:  # an integer of more than 64 bits: collate says so, with names
                    return False
        return True

    def forget_texts(self) -> None:
        """Begin anew with the texts."""
        self.texts = [[] for column in self._columns if column.rule in _TEXTS]

    def take(self, column: int, values: Stretches) -> None:
        """Note where all texts of a column lie."""
        self.texts[sum(one.rule in _TEXTS for one in self._columns[:column])] = values

    def pack_texts(self, place: NDArray[np.uint8]) -> tuple[Leaf, ...]:
        """Write the collected texts to a place of their own and return their leaves."""
        kinds = [column.rule for column in self._columns if column.rule in _TEXTS]
        return _pack_texts(list(zip(kinds, self.texts, strict=True)), place)


def copy_rows(pieces: list[Piece], starts: NDArray[np.int64], size: int, target: NDArray[np.uint8]) -> None:
    """Copy the `size` bytes from each of these places on to a row of the target.

    Args:
        pieces: the memory that the places are in.
        starts: the places, (rows,).
        size: bytes of each.
        target: (rows, size).
    """
    for array, members in pieces if size else ():
        own = starts[members]
        if size >= _ROW_BY_ROW:
            rows = range(len(target)) if isinstance(members, slice) else members.tolist()
            for row, start in zip(rows, own.tolist(), strict=True):
                target[row] = array[start : start + size]
            continue
        step = int(own[1] - own[0]) if len(own) > 1 else 0
        if step > 0 and (np.diff(own) == step).all():  # in the order of the file: no second copy
            shape, strides = (len(own), size), (step, 1)
            target[members] = as_strided(array[own[0] :], shape, strides, writeable=False)
            continue
        every = as_strided(array, (len(array) - size + 1, size), (1, 1), writeable=False)
        target[members] = every[own]


def align(place: int) -> int:
    """Return the next place at which an array may start."""
    return -(-place // ALIGNMENT) * ALIGNMENT


def learn(samples: list[Any]) -> Layout | None:
    """Return the layout that all samples share when they are stacked, or None if they differ."""
    flat = [flatten(sample) for sample in samples]
    if not flat or any(structure != flat[0][1] for _, structure in flat):
        return None

    columns = [_column(values) for values in zip(*(leaves for leaves, _ in flat), strict=True)]
    known = [column for column in columns if column is not None]
    if not known or len(known) < len(columns):
        return None
    structure = flat[0][1]
    return Layout(_pickled(structure), _pickled(batch_structure(structure)), tuple(known))


def foreseen(decoders: Sequence[tuple[str, Any]]) -> Layout | None:
    """Return the layout of samples whose values' makes these decoders fix, by field; None if one does not."""
    sample = {field: getattr(decoder, "example", None) for field, decoder in decoders}
    if not sample or any(value is None for value in sample.values()):
        return None
    return learn([sample])


def pack(tree: Any, place: NDArray[np.uint8]) -> tuple[Span, int]:
    """Lay a tree into a place.

    Returns:
        Where its descriptor lies in the place, and how many bytes of the place are used in all.

    Raises:
        NoRoom: the place is too small; nothing was written.
    """
    leaves, structure = flatten(tree, is_leaf=_is_texts)
    described: list[Leaf] = []
    objects: list[Any] = []
    stop = 0
    parts: list[tuple[int, Any]] = []
    for value in leaves:
        leaf, data = _measure(value, stop, objects)
        described.append(leaf)
        if data is not None:
            parts.append((leaf.start, data))
            stop = align(leaf.stop)

    blob = _pickled_objects(objects)
    objects_at = Span(stop, stop + len(blob))
    told = pickle.dumps(Tree(_pickled(structure), tuple(described), objects_at), pickle.HIGHEST_PROTOCOL)
    used = objects_at.stop + len(told)
    if used > len(place):
        raise NoRoom(align(used))

    for start, data in parts:
        _write(place, start, data)
    _write(place, objects_at.start, [blob])
    _write(place, objects_at.stop, [told])
    return Span(objects_at.stop, used), used


def unpack(place: NDArray[np.uint8], tree: Tree, *, tensors: bool = True) -> Any:
    """Return a packed tree as views over its place; texts and objects are made anew.

    Args:
        place: the bytes in which the tree lies.
        tree: its descriptor.
        tensors: make torch tensors of the leaves that were some; False leaves them to the caller.
    """
    return unflatten(_structure(tree.structure), unpack_leaves(place, tree, tensors=tensors))


def unpack_leaves(place: NDArray[np.uint8], tree: Tree, *, tensors: bool = True) -> list[Any]:
    """Return the leaves of a packed tree, as `unpack` does."""
    objects: list[Any] = []
    if len(tree.objects):
        objects = pickle.loads(place[tree.objects.start : tree.objects.stop].data)  # written by our worker
    return [
        objects[leaf.start] if leaf.kind == "object" else view(place, leaf, tensors=tensors)
        for leaf in tree.leaves
    ]


def view(place: NDArray[np.uint8], leaf: Leaf, *, tensors: bool = True) -> Any:
    """Return one leaf: an array over the place, a tensor over it, a number, or a list of texts."""
    if leaf.kind in _TEXTS:
        return texts(place, leaf)
    target = place[leaf.start : leaf.stop]
    if leaf.kind == "tensor":
        return tensor(target, leaf) if tensors else target
    if leaf.kind == "scalar":
        return target.view(leaf.dtype)[0]
    return target.view(leaf.dtype).reshape(leaf.shape)


def texts(place: NDArray[np.uint8], leaf: Leaf, between: Callable[[], object] = int) -> list[Any]:
    """Return the texts or bytes of a leaf as a list of objects.

    Args:
        place: the memory that holds them.
        leaf: where in it.
        between: called now and then: many take long.
    """
    # hot: the one step for each record that the parent does; guarded by benchmarks/tiny.py
    count = leaf.shape[0]
    head = leaf.start + 8 * count
    table = place[leaf.start : head].view(np.uint64)
    size = (leaf.stop - head) // count if count else 0
    if leaf.kind == "bytes" and size and int(table[0]) == size and (np.diff(table) == size).all():
        values, some = place[head : leaf.stop].view(f"V{size}"), _AT_ONCE_BYTES // size + 1
        found: list[bytes] = []
        for first in range(0, count, some):
            found += values[first : first + some].tolist()
            between()
        return found
    ends = table.tolist()
    starts = [0, *ends][:-1]
    if size >= _ROW_BY_ROW:  # a second copy of all would cost more than many small ones
        memory, encoding = place[head : leaf.stop].data, ("utf-8", "surrogatepass")
        pieces = [memory[start:stop] for start, stop in zip(starts, ends, strict=True)]
        return [bytes(piece) if leaf.kind == "bytes" else str(piece, *encoding) for piece in pieces]
    data = place[head : leaf.stop].tobytes()
    if leaf.kind == "bytes":
        return [data[start:stop] for start, stop in zip(starts, ends, strict=True)]
    return [
        data[start:stop].decode("utf-8", "surrogatepass") for start, stop in zip(starts, ends, strict=True)
    ]


def tensor(target: NDArray[np.uint8], leaf: Leaf) -> Any:
    """Return bytes of the arena as the torch tensor that a transform made."""
    torch = importlib.import_module("torch")  # only where user code made tensors
    return torch.from_numpy(target).view(getattr(torch, leaf.dtype)).reshape(leaf.shape)


def descriptor(place: NDArray[np.uint8], where: Span) -> Tree:
    """Read the descriptor of a packed tree."""
    return _descriptor(place[where.start : where.stop].tobytes())


def batch_tree(layout: Layout, leaves: list[Any]) -> Any:
    """Return the batch of a layout around its finished leaves."""
    return unflatten(_structure(layout.batch), leaves)


def tree_of(tree: Tree, leaves: list[Any]) -> Any:
    """Return a packed tree's shape around other leaves."""
    return unflatten(_structure(tree.structure), leaves)


@lru_cache(maxsize=64)
def _descriptor(data: bytes) -> Tree:
    """Read a descriptor; batches of one loader mostly share theirs, so it is kept."""
    tree: Tree = pickle.loads(data)  # written by a worker of ours
    return tree


@lru_cache(maxsize=256)
def _structure(data: bytes) -> Any:
    return pickle.loads(data)


@lru_cache(maxsize=256)
def _pickled(structure: Any) -> bytes:
    """Pickle a structure; classes of `__main__` travel by value, which cloudpickle undoes on the way back."""
    pickled: bytes = cloudpickle.dumps(structure)
    return pickled


def _pickled_objects(objects: list[Any]) -> bytes:
    if not objects:
        return b""
    if all(type(value) in _PLAIN for value in objects):
        return pickle.dumps(objects, pickle.HIGHEST_PROTOCOL)
    pickled: bytes = cloudpickle.dumps(objects)
    return pickled


def _is_texts(value: Any) -> bool:
    """Tell a list of texts, which is one leaf of a batch."""
    if type(value) is not list or not value:
        return False
    kind = type(value[0])
    return kind in (str, bytes) and all(type(item) is kind for item in value)


def _measure(value: Any, start: int, objects: list[Any]) -> tuple[Leaf, list[Any] | None]:
    """Return where a leaf will lie and what to write there; an object joins the list instead."""
    if type(value) is list:
        kind = "text" if type(value[0]) is str else "bytes"
        head, blobs, size = _joined(kind, value)
        return Leaf(kind, "", (len(value),), start, start + size), [head, *blobs]
    if _is_numeric(value):
        native = value.dtype.newbyteorder("=")
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return Leaf(kind, native.str, value.shape, start, start + value.size * native.itemsize), [value]
    if _is_plain_tensor(value):
        raw = _raw(value)
        return Leaf("tensor", _torch_name(value), tuple(value.shape), start, start + len(raw)), [raw]
    objects.append(value)
    return Leaf("object", "", (), len(objects) - 1, 0), None


def _write(place: NDArray[np.uint8], start: int, data: list[Any]) -> None:
    for item in data:
        if isinstance(item, (np.ndarray, np.generic)):
            native = item.dtype.newbyteorder("=")
            stop = start + item.size * native.itemsize
            place[start:stop].view(native).reshape(item.shape)[...] = item
        elif isinstance(item, Stretches):
            stop = start + int(item.sizes.sum())
            item.write(place[start:stop])
        else:
            stop = start + len(item)
            place[start:stop] = np.frombuffer(item, np.uint8)
        start = stop


def _measured(values: Stretches) -> tuple[NDArray[np.uint64], list[Any], int]:
    """Return the table of ends, what is to be written, and the size of both."""
    ends = np.cumsum(values.sizes, dtype=np.uint64)
    size = int(ends[-1]) if len(values) else 0
    return ends, [values], 8 * len(values) + size


def _joined(kind: str, values: list[Any]) -> tuple[NDArray[np.uint64], list[bytes], int]:
    """Return the table of ends, the bytes, and the size of both."""
    # surrogatepass: JSON may hold halves of pairs, and what a decoder gave must arrive
    blobs = [str.encode(value, "utf-8", "surrogatepass") for value in values] if kind == "text" else values
    ends = np.cumsum(np.fromiter(map(len, blobs), np.uint64, len(blobs)), dtype=np.uint64)
    size = int(ends[-1]) if len(blobs) else 0
    whole = blobs if size >= _ROW_BY_ROW * len(blobs) else [b"".join(blobs)]
    return ends, whole, 8 * len(blobs) + size


def _pack_texts(
    columns: list[tuple[str, list[Any] | Stretches]], place: NDArray[np.uint8]
) -> tuple[Leaf, ...]:
    leaves: list[Leaf] = []
    parts: list[list[Any]] = []
    start = 0
    for kind, values in columns:
        head, blobs, size = _measured(values) if isinstance(values, Stretches) else _joined(kind, values)
        leaves.append(Leaf(kind, "", (len(values),), start, start + size))
        parts.append([head, *blobs])
        start = align(start + size)
    if start > len(place):
        raise NoRoom(start)
    for leaf, data in zip(leaves, parts, strict=True):
        _write(place, leaf.start, data)
    return tuple(leaves)


@lru_cache(maxsize=64)
def _starts(columns: tuple[Column, ...], rows: int) -> tuple[int, ...]:
    place, starts = 0, []
    for column in columns:
        starts.append(place)
        place = align(place + rows * column.row_bytes)
    return (*starts, place)


@lru_cache(maxsize=64)
def _leaves(columns: tuple[Column, ...], rows: int) -> tuple[Leaf, ...]:
    return tuple(
        Leaf(_kind(column), column.dtype, (rows, *column.shape), start, start + rows * column.row_bytes)
        for column, start in zip(columns, _starts(columns, rows)[:-1], strict=True)
    )


def _column(values: tuple[Any, ...]) -> Column | None:
    """Return the column all these leaves fit, or None."""
    columns = {_column_of(value) for value in values}
    return columns.pop() if len(columns) == 1 else None


def _column_of(value: Any) -> Column | None:
    rule = leaf_rule(value)
    if rule in _TEXTS:
        return Column(rule, "", ())
    if rule in _SCALARS:
        return Column(rule, _SCALARS[rule], ())
    try:
        found = describe((value,))
    except SampleError:
        return None  # it has no place in a batch; collate says so, with names
    if rule == "tensor":
        return Column(rule, _torch_name(value), found.shape)
    return Column(rule, value.dtype.str, found.shape) if value.dtype == found.dtype else None


def _kind(column: Column) -> str:
    return column.rule if column.rule in ("tensor", *_TEXTS) else "array"


def _target(place: NDArray[np.uint8], leaf: Leaf) -> NDArray[Any]:
    """Return the array whose rows a column's values go to."""
    if leaf.kind in _TEXTS:
        return place[:0]
    target = place[leaf.start : leaf.stop]
    if leaf.kind == "tensor" and leaf.dtype not in _NUMPYS:
        rows = leaf.shape[0]
        return target.reshape(rows, len(target) // rows if rows else 0)
    return target.view(leaf.dtype).reshape(leaf.shape)


def _itemsize(column: Column) -> int:
    if column.rule == "tensor":
        torch = importlib.import_module("torch")  # there is a tensor column only where user code made tensors
        return int(getattr(torch, column.dtype).itemsize)
    return np.dtype(column.dtype).itemsize


def _is_numeric(value: Any) -> bool:
    """Tell arrays and numbers of numpy that are nothing but their bytes; a masked array is more."""
    if not isinstance(value, (np.ndarray, np.generic)) or isinstance(value, np.ma.MaskedArray):
        return False
    return value.dtype.kind in "biufc"


def _is_plain_tensor(value: Any) -> bool:
    """Tell tensors that are nothing but their bytes; subclasses carry more."""
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # another thread may be importing it just now
    return tensor is not None and type(value) is tensor and _is_dense(value)


def _is_dense(value: Any) -> bool:
    return str(value.layout) == "torch.strided" and not value.is_nested and not value.is_quantized


def _torch_name(value: Any) -> str:
    return _dtype_name(value.dtype)


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _lent(value: Any) -> NDArray[Any] | None:
    """Return a tensor's own memory as an array, however it lies there; None where it is not that plain."""
    try:
        array: NDArray[Any] = value.numpy()
    except (RuntimeError, TypeError):  # it has a gradient, is negated on reading, sparse or on a device
        return None
    return array


def _raw(value: Any) -> NDArray[np.uint8]:
    """Return a tensor's bytes."""
    torch = sys.modules["torch"]
    # conjugation and negation are but flags until they are resolved
    flat = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # even `contiguous` leaves one element whatever stride it has
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return raw
