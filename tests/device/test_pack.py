"""Pack: one copy for a batch in one piece, few for others, and the same tensors at the other end."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from aioload._device.pack import LARGE_BYTES, Parcel, as_bytes, pack, spread, storages_in, tensors_in
from aioload._workers.packed import descriptor, tree_of, unpack_leaves
from aioload._workers.packed import pack as lay_out

Pair = namedtuple("Pair", ["x", "y"])


@dataclass
class Sample:
    image: Any
    text: Any


class Graph:
    """A batch that knows how to travel."""

    def __init__(self, edges: Any) -> None:
        self.edges = edges

    def to(self, device: Any, *, non_blocking: bool = False) -> Graph:
        return self


def no(tensor: Any) -> bool:
    """Not one."""
    return False


def yes(tensor: Any) -> bool:
    """Each of them."""
    return True


def arrived(parcel: Parcel) -> Any:
    """Do the copies of a parcel at once, and return the batch."""
    block = torch.zeros(parcel.size, dtype=torch.uint8)
    for move in parcel.moves:
        block[move.start : move.start + move.size] = move.source
    return parcel.build({place.leaf: place.view.over(block, place.start) for place in parcel.places})


def laid_out(tree: Any) -> tuple[Any, Any]:
    """A batch as workers leave it: in one stretch of memory."""
    memory = np.zeros(1 << 16, np.uint8)
    where, used = lay_out(tree, memory)
    found = descriptor(memory, where)
    leaves = unpack_leaves(memory, found, tensors=False)
    tensors = [torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    return tree_of(found, tensors), torch.from_numpy(memory[:used])


def test_a_batch_in_one_piece_is_one_copy() -> None:
    """Whatever number of tensors it has; they are views of the block, with shape and dtype."""
    images, labels = np.arange(480, dtype=np.uint8).reshape(2, 240), np.arange(2) + 7
    batch, whole = laid_out({"image": images, "label": labels, "name": ["a", "b"]})

    parcel = pack(batch, no, yes, whole)
    found = arrived(parcel)

    assert [(move.start, move.size, move.staged) for move in parcel.moves] == [(0, len(whole), False)]
    assert found["image"].equal(torch.from_numpy(images))
    assert found["label"].equal(torch.from_numpy(labels))
    assert found["name"] is batch["name"]
    assert found["image"].untyped_storage().data_ptr() == found["label"].untyped_storage().data_ptr()


def test_a_piece_that_is_mostly_something_else_is_not_copied_whole() -> None:
    """What would travel for nothing is more than the batch: its tensors are put together instead."""
    whole = torch.zeros(1 << 12, dtype=torch.uint8)

    parcel = pack([whole[:64], whole[4000:]], no, yes, whole)

    assert (len(parcel.moves), parcel.size) == (2, 512)


def test_large_locked_tensors_go_from_where_they_are() -> None:
    """Small ones, and those in ordinary memory, are put together first: one copy for all of these."""
    small, locked, ordinary = torch.ones(3), torch.ones(LARGE_BYTES // 4), torch.ones(LARGE_BYTES // 4)

    parcel = pack([locked, small, ordinary], no, lambda tensor: tensor is locked)

    staged = [move for move in parcel.moves if move.staged]
    assert [move.staged for move in parcel.moves] == [True, True, False]
    assert [move.source.data_ptr() for move in staged] == [small.data_ptr(), ordinary.data_ptr()]
    assert staged[0].start == 0
    assert [leaf.equal(one) for leaf, one in zip(arrived(parcel), [locked, small, ordinary], strict=True)]


@pytest.mark.parametrize(
    "tree",
    [
        {"a": torch.ones(2), "b": {"c": [torch.zeros(3, 1), "text"]}},
        (torch.ones(2), torch.tensor(3)),
        Pair(torch.ones(2), [b"bytes", b"more"]),
        Sample(torch.ones(2, dtype=torch.bfloat16), ["a"]),
        [torch.zeros(0, 3), torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.complex64)],
        [None, 3, "text", 1.5],
        torch.arange(4),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_structure_stays(tree: Any) -> None:
    """Dicts, tuples, named ones, dataclasses, lists, a lone tensor; what is no tensor is passed on."""
    found = arrived(pack(tree, no, no))

    assert type(found) is type(tree)
    assert str(found) == str(tree)


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1), (1, 12, 4)),
        (torch.arange(120).reshape(1, 2, 3, 20).contiguous(memory_format=torch.channels_last), None),
        (torch.arange(24).reshape(4, 6)[:, 1:3], (2, 1)),
        (torch.arange(3).expand(5, 3), (3, 1)),
        (torch.arange(24)[::2], (1,)),
        (torch.arange(24)[5:9], (1,)),
    ],
)
def test_strides_stay_where_there_are_no_gaps(tensor: Any, strides: Any) -> None:
    """As `Tensor.to` does it: what has gaps or overlaps becomes contiguous."""
    found = arrived(pack([tensor], no, no))[0]

    assert found.equal(tensor)
    assert found.stride() == (tensor.stride() if strides is None else strides)


def test_what_is_there_already_is_passed_on() -> None:
    """A tensor of the device's is not copied again."""
    there, here = torch.ones(2), torch.ones(2)

    parcel = pack([there, here], lambda tensor: tensor is there, no)

    assert [place.leaf for place in parcel.places] == [1]
    assert arrived(parcel)[0] is there


def test_who_knows_the_way_travels_by_itself() -> None:
    """Things with a `to`, containers among them, and tensors that are more than their bytes."""
    lengths = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    batch = [Graph(torch.ones(2)), lengths, torch.ones(2, requires_grad=True), torch.eye(2).to_sparse()]

    parcel = pack(batch, no, no)

    assert (parcel.foreign, parcel.places) == ([0, 1, 2, 3], [])


def test_tensors_are_found_in_things() -> None:
    """In attributes, containers, and both."""
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    graph = Graph({"edges": [a, Graph((b, "text"))]})
    graph.more = c

    assert [id(tensor) for tensor in tensors_in(graph)] == [id(a), id(b), id(c)]
    assert tensors_in("text") == []


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: torch.eye(4).to_sparse(), 2),
        (lambda: torch.eye(4).to_sparse_csr(), 3),
        (lambda: torch.eye(4).to_sparse_csc(), 3),
        (lambda: torch.eye(4).to_sparse_bsr((2, 2)), 3),
        (lambda: torch.eye(4).to_sparse_bsc((2, 2)), 3),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged), 2),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), 1),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), 1),
        (lambda: torch.nn.Parameter(torch.ones(3)), 1),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of what torch calls a prototype
def test_the_memory_of_odd_tensors_is_found(make: Any, parts: int) -> None:
    """Each piece by itself and plain, as an allocator knows nothing else; only what is on the device."""
    tensor = make()

    found = storages_in([tensor, tensor], lambda part: part.device.type == "cpu")

    assert len(found) == parts
    assert all(type(one) is torch.Tensor and one.dtype is torch.uint8 and one.numel() for one in found)
    assert storages_in(tensor, no) == []


@given(st.integers(0, 50), st.lists(st.integers(0, 120), max_size=5), st.integers(1, 60))
def test_no_range_crosses_a_border(start: int, borders: list[int], size: int) -> None:
    """The ranges are all of it, in order, and each lies between two neighbouring borders."""
    found = spread(start, sorted(set(borders)), size)

    assert [place for first, stop in found for place in range(first, stop)] == list(range(size))
    assert not [border for border in borders for first, stop in found if first < border - start < stop]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.uint8, torch.int64, torch.float16, torch.bool]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=5,
    ),
    st.booleans(),
)
def test_any_tensors_arrive(makes: list[tuple[Any, list[int]]], locked: bool) -> None:
    """Values, dtypes and shapes are those that were sent."""
    tensors = [torch.randint(0, 2, tuple(shape)).to(dtype) for dtype, shape in makes]

    found = arrived(pack(tensors, no, yes if locked else no))

    assert all(one.equal(other) for one, other in zip(found, tensors, strict=True))
    assert [tensor.dtype for tensor in found] == [dtype for dtype, _ in makes]
    assert [as_bytes(tensor, tensor.nbytes).numel() for tensor in found] == [
        tensor.nbytes for tensor in tensors
    ]
