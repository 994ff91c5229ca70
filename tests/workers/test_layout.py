"""Layout: what is packed comes out as it was, and rows make the batch that collating makes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
from collections import namedtuple
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from worker_jobs import roomy

from aioload._workers.layout import Layout, RowWriter, batch_tree, learn
from aioload._workers.leaf import NoRoom, texts, view
from aioload._workers.packed import descriptor, pack, unpack
from aioload._workers.space import align
from aioload.collate import default

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Box:
    corner: Any
    name: Any


class Colour(str, Enum):  # noqa: UP042 - not a StrEnum, whose str is its value
    RED = "red"


DTYPES = ["?", "u1", "i1", "<u2", ">i2", "<i4", ">u4", "<i8", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16"]
STRANGE = ["U3", "S2", "M8[s]", "m8[ms]", "<f4, <i2"]
SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def arrays(dtypes: list[str], shapes: Any = SHAPES) -> st.SearchStrategy[np.ndarray]:
    """Make arrays in C order, Fortran order and with negative strides."""
    plain = st_numpy.arrays(st.sampled_from(dtypes).map(np.dtype), shapes)
    turns = [np.asarray, lambda array: array.copy("F"), lambda array: array[::-1] if array.ndim else array]
    return st.tuples(plain, st.sampled_from(turns)).map(lambda pair: pair[1](pair[0]))


any_text = st.text(st.characters(categories=["L", "N", "S", "Cs", "Zs"]), max_size=5)
numbers = arrays(DTYPES, st.just((1,))).map(lambda array: array[0])
leaves = (
    arrays(DTYPES)
    | arrays(STRANGE)
    | numbers
    | any_text
    | st.binary(max_size=5)
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.none()
    | st.fractions()
    | st.lists(any_text, min_size=1, max_size=3)
    | st.lists(st.binary(max_size=3), min_size=1, max_size=3)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
        | st.builds(Box, inner, inner)
    ),
    max_leaves=8,
)


def shown(tree: Any) -> Any:
    """Return a tree in which classes, dtypes and every bit can be compared."""
    if isinstance(tree, (np.ndarray, np.generic)):
        native = tree.astype(tree.dtype.newbyteorder("="))
        return type(tree).__name__, native.dtype.str, tree.shape, native.tobytes()
    if isinstance(tree, torch.Tensor):
        return "tensor", tree.dtype, tuple(tree.shape), tree.resolve_conj().tolist()
    if dataclasses.is_dataclass(tree):
        return type(tree), shown(vars(tree))
    if isinstance(tree, dict):
        return [(name, shown(value)) for name, value in tree.items()]
    if isinstance(tree, (list, tuple)):
        return type(tree), [shown(value) for value in tree]
    return type(tree), repr(tree)


def packed(tree: Any) -> Any:
    """Pack a tree and return what comes out."""
    place, (where, _) = roomy(lambda place: pack(tree, place))
    return unpack(place, descriptor(place, where))


def rows_of(samples: list[Any], layout: Layout, cut: int) -> Any:
    """Have two writers write the rows, as two workers would, and return the batch."""
    place = np.zeros(layout.starts(len(samples))[-1], np.uint8)
    writers = [RowWriter(layout, place, len(samples)) for _ in range(2)]
    fit = [writers[row >= cut].write(row, sample) for row, sample in enumerate(samples)]
    assert all(fit)
    parts = [roomy(writer.pack_texts) for writer in writers]
    lists = [[texts(there, leaf) for leaf in found] for there, found in parts]
    columns = iter([first + second for first, second in zip(*lists, strict=True)])
    found = layout.leaves(len(samples))
    values = [next(columns) if leaf.kind in ("text", "bytes") else view(place, leaf) for leaf in found]
    return batch_tree(layout, values)


@given(trees)
def test_packing_is_undone_by_unpacking(tree: Any) -> None:
    """Any nesting of arrays, texts and objects comes out with the same classes, dtypes and values."""
    assert shown(packed(tree)) == shown(tree)


@given(trees, st.integers(0, 3))
def test_a_place_too_small_is_not_touched(tree: Any, missing: int) -> None:
    """Too little room is told before anything is written, with a number that is enough."""
    place = np.full(missing, 7, np.uint8)

    with pytest.raises(NoRoom) as small:
        pack(tree, place)

    assert place.tolist() == [7] * missing
    assert pack(tree, np.zeros(small.value.need, np.uint8))[1] <= small.value.need


@given(st.lists(arrays(DTYPES), min_size=1, max_size=4))
def test_arrays_start_at_cache_lines(values: list[np.ndarray]) -> None:
    """Each array begins at a multiple of 64 bytes, so that any dtype can be viewed there."""
    place, (where, _) = roomy(lambda place: pack(values, place))

    starts = [leaf.start for leaf in descriptor(place, where).leaves]

    assert starts == [align(start) for start in starts]


def test_unpacked_arrays_lie_in_the_place() -> None:
    """Nothing is copied on the way out: the array is a view."""
    place, (where, _) = roomy(lambda place: pack({"x": np.zeros(3)}, place))

    array = unpack(place, descriptor(place, where))["x"]

    assert np.shares_memory(array, place)


def test_a_masked_array_keeps_its_mask() -> None:
    """An array that is more than its bytes is not reduced to them."""
    masked = np.ma.masked_array([1.0, 2.0], mask=[False, True])

    found = packed([masked])[0]

    assert found.mask.tolist() == [False, True]


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3, dtype=torch.float16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.ones(2, requires_grad=True).detach(),
        torch.tensor([1, 2], dtype=torch.uint16),
    ],
    ids=str,
)
def test_tensors_come_out_as_they_were(value: torch.Tensor) -> None:
    """Tensors of any dtype, shape and stride travel, also those numpy does not know."""
    assert shown(packed({"x": value})) == shown({"x": value})


@pytest.mark.parametrize(
    "odd",
    [
        torch.ones(2, 3, requires_grad=True),
        torch.full((2, 3), 1 + 2j).conj().imag,
        torch.arange(6.0).reshape(3, 2).T,
        torch.arange(12.0).reshape(2, 6)[:, ::2],
    ],
    ids=["gradient", "negated on reading", "turned", "strided"],
)
def test_a_tensor_comes_to_its_row_however_it_lies(odd: torch.Tensor) -> None:
    """A row is the tensor's values, where its own memory cannot be taken as it is, too."""
    layout = learn([torch.zeros(2, 3)])
    assert layout is not None
    writer = RowWriter(layout, np.zeros(layout.starts(2)[-1], np.uint8), 2)

    written = writer.write(1, odd)

    assert written
    assert writer.targets[0][1].tolist() == odd.tolist()


def test_a_sparse_tensor_travels_as_an_object() -> None:
    """A tensor that is not simply its bytes is pickled instead of failing."""
    sparse = torch.eye(3).to_sparse()

    found = packed([sparse])[0]

    assert found.layout == torch.sparse_coo
    assert found.to_dense().equal(torch.eye(3))


def test_a_subclass_of_tensor_keeps_its_class() -> None:
    """What a subclass adds is not lost."""
    parameter = torch.nn.Parameter(torch.ones(2))

    found = packed([parameter])[0]

    assert isinstance(found, torch.nn.Parameter)


def sample_of(draw: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a make, and return what makes samples of it."""
    dtypes = [dtype for dtype in DTYPES if not dtype.startswith(">")]
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        dtype, shape = draw(st.sampled_from(dtypes)), draw(SHAPES)
        column = arrays([dtype], st.just(shape))
        scalar = arrays([dtype], st.just((1,))).map(lambda array: array[0])
        kinds = [
            *(column, scalar, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans()),
            *(any_text, st.just(Colour.RED), st.binary(), st.binary().map(bytearray)),
            *(st.binary(min_size=8, max_size=8).map(lambda data: memoryview(data).cast("d")),),
            *(st.tuples(column, any_text), st.builds(Box, column, st.floats())),
        ]
        fields[name] = draw(st.sampled_from(kinds))
    return st.fixed_dictionaries(fields).map(lambda sample: {name: sample[name] for name in fields})


@given(st.data())
def test_rows_make_the_batch_that_collating_makes(data: st.DataObject) -> None:
    """Rows written by several workers give exactly what `collate.default` gives."""
    sample = sample_of(data.draw)
    samples = data.draw(st.lists(sample, min_size=1, max_size=5))
    layout = learn(samples)
    assert layout is not None

    batch = rows_of(samples, layout, data.draw(st.integers(0, len(samples))))

    assert shown(batch) == shown(packed(default(samples)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(), (2, 3), (0,)], ids=str)
def test_rows_of_tensors_make_the_batch_that_collating_makes(dtype: Any, shape: tuple[int, ...]) -> None:
    """Tensors of a transform are written row by row like arrays."""
    samples = [{"x": torch.full(shape, row, dtype=dtype), "n": row} for row in range(3)]
    layout = learn(samples)
    assert layout is not None

    batch = rows_of(samples, layout, 1)

    assert shown(batch) == shown(default(samples))


@pytest.mark.parametrize(
    ("learnt", "other"),
    [
        ({"x": np.zeros(2)}, {"x": np.zeros(3)}),
        ({"x": np.zeros(2)}, {"x": np.zeros(2, "f4")}),
        ({"x": np.zeros(2)}, {"x": np.zeros(2, ">f8")}),
        ({"x": np.zeros(2)}, {"y": np.zeros(2)}),
        ({"x": np.zeros(2)}, {"x": [0.0, 0.0]}),
        ({"x": np.zeros(())}, {"x": 0.0}),
        ({"x": 1}, {"x": True}),
        ({"x": 1}, {"x": 1.0}),
        ({"x": 1}, {"x": 1 << 64}),
        ({"x": 1}, {"x": None}),
        ({"x": "a"}, {"x": b"a"}),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2).to_sparse()}),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2, dtype=torch.float64)}),
        ({"x": torch.zeros(2)}, {"x": np.zeros(2, "f4")}),
    ],
    ids=str,
)
def test_a_sample_of_another_make_does_not_fit(learnt: Any, other: Any) -> None:
    """What differs in anything is left to collating, whose rules do not depend on who came first."""
    layout = learn([learnt])
    assert layout is not None
    writer = RowWriter(layout, np.zeros(layout.starts(2)[-1], np.uint8), 2)

    assert writer.write(0, learnt)
    assert not writer.write(1, other)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [{}],
        [{"x": None}],
        [{"x": Fraction(1, 2)}],
        [{"x": np.zeros(2, "U3")}],
        [{"x": np.zeros(2, ">f8")}],
        [{"x": np.zeros(2, np.longdouble)}],
        [{"x": 1}, {"x": 1.0}],
        [{"x": np.zeros(2)}, {"x": np.zeros(3)}],
        [{"x": 1}, {"x": 1, "y": 2}],
        [{"x": torch.eye(2).to_sparse()}],
    ],
    ids=str,
)
def test_samples_without_a_common_row_have_no_layout(samples: list[Any]) -> None:
    """A layout is learnt only where every sample would fit it and torch knows its dtypes."""
    assert learn(samples) is None


def test_rows_need_no_torch() -> None:
    """A layout of arrays is learnt, written and read where torch was never imported."""
    code = (
        "import sys, numpy as np; from aioload._workers.layout import *;"
        "from aioload._workers.packed import pack; s = [{'x': np.ones(3), 't': 'a'}];"
        "l = learn(s); p = np.zeros(l.starts(1)[-1], 'u1'); assert RowWriter(l, p, 1).write(0, s[0]);"
        "w, n = pack(s, np.zeros(9999, 'u1')); sys.exit('torch' in sys.modules)"
    )

    status = subprocess.run([sys.executable, "-c", code], check=False).returncode

    assert status == 0


@pytest.mark.parametrize("values", [[b"", b"a" * 20_000, b"b" * 30_001], ["", "é" * 20_000, "\ud800" * 9000]])
def test_large_texts_come_back_one_by_one(values: list[Any]) -> None:
    """Where copying all of them in one go would only cost memory, each is copied by itself."""
    place = np.zeros(200_000, np.uint8)

    where, _ = pack({"x": values}, place)

    assert unpack(place, descriptor(place, where))["x"] == values


def test_torch_that_another_thread_is_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it has no names yet, nothing is a tensor, and values are packed as ever."""
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    values = {"a": b"bytes", "b": 7, "c": [object.__name__]}

    assert packed(values) == values
