"""Indexes without files, and what a rank or all ranks get of an epoch: for tests of pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from aioload.order import BlockOrder, Blocks
from aioload.part import Part
from aioload.shard.index import Index

__all__ = ["WORLDS", "block_order", "every", "make_index", "own", "ranks", "steps_of"]

WORLDS = [1, 2, 3, 4, 8]


def make_index(shards: Sequence[Sequence[int]]) -> Index:
    """Return the index of shards whose records have these lengths; a shard's records begin at its byte 32."""
    counts = np.cumsum([0, *(len(sizes) for sizes in shards)])
    lengths = np.array([size for sizes in shards for size in sizes], np.uint64)
    positions = np.concatenate([np.zeros(1, np.uint64), np.cumsum(lengths, dtype=np.uint64)])
    return Index(
        shards=tuple(f"shard-{number:05}.aio" for number in range(len(shards))),
        shard_records=counts.astype(np.int64),
        shard_starts=positions[counts],
        shard_data=np.full(len(shards), 32, np.uint64),
        shard_bytes=np.array([sum(sizes) + 64 for sizes in shards], np.uint64),
        positions=positions,
        sums=np.arange(len(lengths), dtype=np.uint32),
        columns={},
    )


def block_order(
    sizes: Sequence[Sequence[int]], *, block_bytes: int, lanes: int, seed: int = 0, epoch: int = 0
) -> BlockOrder:
    """Return the block order of such shards."""
    index = make_index(sizes)
    blocks = Blocks.cut(index.positions, index.shard_records, block_bytes)
    return BlockOrder(blocks, seed=seed, epoch=epoch, lanes=lanes)


def every(size: int) -> NDArray[np.int64]:
    """Return all positions of an epoch."""
    return np.arange(size, dtype=np.int64)


def ranks(world_size: int, **options: int | bool) -> list[Part]:
    """Return the parts of all ranks."""
    return [Part(rank=rank, world_size=world_size, **options) for rank in range(world_size)]  # type: ignore[arg-type]


def own(part: Part, stop_step: int | None = None) -> list[int]:
    """Return the positions that a rank is handed out up to a step, padding left out."""
    positions = part.positions(0, part.steps if stop_step is None else min(stop_step, part.steps)).tolist()
    is_whole = stop_step is None or stop_step >= part.steps
    return positions[: len(positions) - part.padded] if is_whole else positions


def steps_of(parts: Sequence[Part]) -> Iterator[list[int]]:
    """Yield, for each step, the positions of the global batch in ascending order, padding left out."""
    for step in range(max(part.steps for part in parts)):
        taken = [set(own(part, step + 1)) - set(own(part, step)) for part in parts]
        yield sorted(position for positions in taken for position in positions)
