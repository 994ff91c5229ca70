"""Deliver: batches over the arena's memory or as copies, which never change in the user's hands."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from aioload._pipeline.deliver import Made, deliver, to_numpy, to_torch
from aioload._pipeline.memory import Memory
from aioload._workers.arena import Arena
from aioload._workers.packed import descriptor, pack
from aioload.errors import SampleError

from .runs import make_recipe, walked

LIMIT = 1 << 20


class Odd:
    """An object that can be pickled and not made again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return divmod, (1, 0)


async def made(memory: Memory, tree: Any, run: int = 0) -> Made:
    """Pack a batch into a lease of its own."""
    lease = await memory.lease(1 << 16, (1, run))
    place = memory.arena.array[lease.span.start : lease.span.stop]
    where, used = pack(tree, place)
    return Made(0, 1, lease, used, descriptor(place, where), None, ())


async def test_arrays_become_tensors_over_the_arena() -> None:
    """Nothing is copied: the tensor lies where the workers wrote."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)

        delivery = deliver(await made(memory, {"x": np.arange(6.0).reshape(2, 3)}), memory, to_torch, int)

        tensor = delivery.batch["x"]
        assert tensor.equal(torch.arange(6.0, dtype=torch.float64).reshape(2, 3))
        arena.array[:] = 0
        assert tensor.sum() == 0


async def test_memory_comes_back_with_the_last_view() -> None:
    """A slice, another dtype, a numpy array over it: each keeps the memory, the last gives it back."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)
        delivery = deliver(await made(memory, {"x": np.arange(6), "t": ["a"]}), memory, to_torch, int)
        view = delivery.batch["x"][2:4].view(torch.uint8).numpy()[1:]
        del delivery
        gc.collect()
        memory.move_head((1, 1))
        before = memory.used

        del view
        gc.collect()
        memory.move_head((1, 2))

        assert (before > 0, memory.used) == (True, 0)


async def test_a_batch_in_the_heads_zone_is_copied() -> None:
    """What may not stay becomes the user's own, and its memory comes back at once."""
    with Arena(LIMIT) as arena:
        memory, copies = Memory(arena, int), []
        shared = [await memory.lease(LIMIT // 8, (1, run)) for run in range(1, 5)]
        memory.move_head((1, 0))

        batch = await made(memory, {"x": np.arange(6)})
        delivery = deliver(batch, memory, to_torch, lambda: copies.append(True))

        arena.array[:] = 0
        assert delivery.lease is None
        assert delivery.batch["x"].tolist() == [0, 1, 2, 3, 4, 5]
        assert (copies, memory.used) == ([True], LIMIT // 2)
        [lease.release() for lease in shared]


async def test_when_the_user_keeps_much_further_batches_are_copied() -> None:
    """Nobody waits for memory that only the user could free."""
    with Arena(LIMIT) as arena:
        memory, copies = Memory(arena, int), []
        kept = [await memory.lease(LIMIT // 8, (1, run)) for run in range(3)]
        [memory.hold_later(lease) for lease in kept]

        delivery = deliver(await made(memory, [np.ones(2)]), memory, to_torch, lambda: copies.append(True))

        assert (delivery.lease, copies) == (None, [True])
        [lease.release() for lease in kept]
        assert memory.used == 0


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (np.float32(1.5), torch.tensor(1.5)),
        (np.zeros(()), torch.zeros((), dtype=torch.float64)),
        (np.zeros((0, 3), "i4"), torch.zeros((0, 3), dtype=torch.int32)),
        (np.arange(3, dtype=">i4"), torch.arange(3, dtype=torch.int32)),
        (np.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T),
        (torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.bfloat16)),
        (torch.zeros(0, 2), torch.zeros(0, 2)),
    ],
    ids=str,
)
async def test_leaves_become_tensors(leaf: Any, expected: torch.Tensor) -> None:
    """Numbers of numpy, empty arrays, foreign byte orders, strides, and tensors of a transform."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)

        found = deliver(await made(memory, [leaf]), memory, to_torch, int).batch[0]

        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.equal(expected)


@pytest.mark.parametrize("leaf", ["text", 1 << 70, None, b"b", ["a", "b"], [b"a"], 1.5, {1, 2}], ids=repr)
async def test_what_is_no_array_arrives_as_it_was(leaf: Any) -> None:
    """Texts, bytes and objects are the user's objects."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)

        found = deliver(await made(memory, {"x": leaf}), memory, to_torch, int).batch["x"]

        assert (type(found), found) == (type(leaf), leaf)


@pytest.mark.parametrize("leaf", [np.array(["a"]), np.array(["2020"], "M8[D]")], ids=str)
async def test_arrays_that_torch_does_not_know_stay_arrays(leaf: Any) -> None:
    """Texts and dates in arrays are handed over as numpy has them."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)

        found = deliver(await made(memory, [leaf]), memory, to_torch, int).batch[0]

        assert found.tolist() == leaf.tolist()


async def test_numbers_that_torch_does_not_know_are_told() -> None:
    """A dtype without a tensor is a SampleError that says what to do, and its memory comes back."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)
        batch = await made(memory, [np.zeros(2, np.longdouble)])

        with pytest.raises(SampleError, match="convert them in the transform") as caught:
            deliver(batch, memory, to_torch, int)

        caught.value.__traceback__ = caught.value.__cause__ = caught.value.__context__ = None
        del caught
        gc.collect()
        memory.move_head((1, 1))
        assert memory.used == 0


async def test_an_object_that_cannot_be_made_again_is_the_samples_error() -> None:
    """What the user's classes do when they are unpickled is no failure inside."""
    with Arena(LIMIT) as arena:
        memory = Memory(arena, int)
        batch = await made(memory, [Odd()])

        with pytest.raises(SampleError, match="ZeroDivisionError"):
            deliver(batch, memory, to_numpy, int)


async def test_a_batch_of_rows_is_delivered_with_its_texts() -> None:
    """Rows and the texts beside them make one batch again."""
    samples = [{"n": row, "t": "x" * row} for row in range(4)]
    with walked(make_recipe({"n": "int", "t": "str"})) as walk:
        await walk.make([samples])

        await walk.make([samples], number=1, first_step=1)

        assert walk.items[1]["n"].tolist() == [0, 1, 2, 3]
        assert walk.items[1]["t"] == ["", "x", "xx", "xxx"]
