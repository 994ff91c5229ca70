"""Window: pieces of shards in memory, each read once and kept until the last run that needs it.

The window has a zone of the arena for itself and never waits for room in it: a piece for which there is none
is simply not read whole, and its records come one by one when they are due. So pieces, which live longer than
a run, can never stand in the way of the run that is needed next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import numpy as np
from numpy.typing import NDArray

from ..errors import AioloadError, ShardError, StorageError
from ..frames import let_go

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .._workers.pool import Order
    from .memory import Lease, Memory
    from .plan import Piece, Run

__all__ = ["Chunk", "Window"]

ReadInto = Callable[[int, int, memoryview, "Order"], Awaitable[None]]
"""Fills memory with the bytes of a shard from a place on, in the order of need."""

_APART = np.iinfo(np.int64).min  # in place of where a piece lies: its records come by themselves


@dataclass(eq=False)
class Chunk:
    """A piece in memory, or on its way there."""

    piece: Piece
    lease: Lease
    ready: anyio.Event = field(default_factory=anyio.Event)
    failure: AioloadError | None = None  # what can be had of its records is then for their run to find out


class Window:
    """The pieces that one pass holds.

    Args:
        memory: whose window zone they lie in.
        read_into: brings bytes.
        group: where reads run.
        is_wanted: tells of a piece that nobody has asked for yet whether it is worth reading whole.
    """

    def __init__(
        self,
        memory: Memory,
        read_into: ReadInto,
        group: TaskGroup,
        is_wanted: Callable[[Piece], bool] | None = None,
    ) -> None:
        self._memory = memory
        self._read_into = read_into
        self._group = group
        self._is_wanted = is_wanted
        self._open: dict[int, Chunk] = {}
        # pieces that came when there was no room, and when the last record of each is due
        self._late: dict[int, int] = {}

    def admit(self, run: Run) -> tuple[list[Chunk], NDArray[np.int64]]:
        """Take up the pieces that a run needs; their reads begin.

        Returns:
            The chunks, each kept for the run until it releases the lease, and the rows of the run that must
            be read by themselves. The places of all other rows are in the run's table.
        """
        chunks: list[Chunk] = []
        begins = np.full(len(run.pieces) + 1, _APART, np.int64)  # the last is that of rows without a piece
        for number, piece in enumerate(run.pieces):
            chunk = self._chunk(piece, run.order)
            if chunk is not None:
                chunk.lease.keep()
                chunks.append(chunk)
                begins[number] = chunk.lease.span.start - piece.start
        begin = begins[run.piece]
        rows = np.flatnonzero(begin != _APART)
        start = run.offsets[rows] + begin[rows]
        run.table["start"][rows], run.table["stop"][rows] = start, start + run.sizes[rows]
        self.retire(run.stop_position)
        return chunks, np.flatnonzero(begin == _APART)

    def retire(self, position: int) -> None:
        """Let pieces go that no later run needs."""
        gone = [key for key, chunk in self._open.items() if chunk.piece.last_position < position]
        for key in gone:
            self._open.pop(key).lease.release()
        for key in [key for key, last in self._late.items() if last < position]:
            del self._late[key]

    def close(self) -> None:
        """Let all pieces go; those that runs still keep go with them."""
        for chunk in self._open.values():
            chunk.lease.release()
        self._open.clear()

    def _chunk(self, piece: Piece, order: Order) -> Chunk | None:
        """Return the piece's chunk; at its first run, make it if there is room."""
        chunk = self._open.get(piece.key)
        if chunk is not None or piece.key in self._late:
            return chunk
        wanted = self._is_wanted is None or self._is_wanted(piece)
        lease = self._memory.window_nowait(piece.stop - piece.start) if wanted else None
        if lease is None:
            self._late[piece.key] = piece.last_position
            return None
        chunk = self._open[piece.key] = Chunk(piece, lease)
        self._group.start_soon(self._fill, chunk, order)
        return chunk

    async def _fill(self, chunk: Chunk, order: Order) -> None:
        """Read a piece."""
        lease, piece = chunk.lease.keep(), chunk.piece
        # a read that is stuck in a thread keeps this array, and so the lease, for as long as it may write
        size = piece.stop - piece.start
        target = self._memory.arena.borrow(lease.span.start, lease.span.start + size, lease.release_soon)
        try:
            await self._read_into(piece.shard, piece.start, target.data, order)
        except (StorageError, ShardError) as error:
            let_go(error)
            chunk.failure = error
        finally:
            del target  # an error keeps this frame
            chunk.ready.set()
