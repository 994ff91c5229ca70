"""Locked: the page-locked memory of one copy thread: pieces of the arena where it lies, and staging buffers.

Only from page-locked memory does a device copy by itself. The arena's is registered, so what workers write is
what the copy engine reads; in pieces, in order, as far as batches have come to lie, so that memory nobody
needs is neither touched nor locked. Registering takes a lock of the driver's: it happens in the copy thread
alone, which rests while a graph is captured, and comes to an end once batches lie no further up than before.

Where it fails, one warning is given, and batches go through a ring of staging buffers instead: a copy more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .interface import Device, Event, RegisterError
from .pack import spread, view_of

__all__ = ["PIECE_BYTES", "Locked", "Stage"]

_log = logging.getLogger("aioload.device")

PIECE_BYTES = 64 << 20  # takes some milliseconds to register
_PAGE = 4096
_STAGE_STEP = 1 << 20  # sizes of staging buffers are multiples: batches that differ a little share them


class Stage:
    """A staging buffer.

    Args:
        memory: page-locked, a flat uint8 tensor.
    """

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        self.free_after: Event | None = None  # the copy that reads it, as far as one was asked for

    def __len__(self) -> int:
        return int(self.memory.numel())

    def put(self, start: int, source: Any) -> None:
        """Write a flat uint8 tensor to a place in it."""
        # numpy: torch would take all threads of the process for it
        np.copyto(self.memory.numpy()[start : start + source.numel()], source.numpy())


class Locked:
    """What a copy thread may copy from.

    Args:
        device: where to.
        stages: staging buffers there may be.
        piece_bytes: of the arena at once.
    """

    def __init__(self, device: Device, *, stages: int, piece_bytes: int = PIECE_BYTES) -> None:
        self._device = device
        self._most_stages = stages
        self._piece_bytes = piece_bytes
        self._stages: list[Stage] = []
        self._memory: NDArray[np.uint8] | None = None
        self._touch: Callable[[int, int], None] | None = None
        self._pieces: list[NDArray[np.uint8]] = []
        self._first = self._reach = 0  # addresses: of the memory, and of what is not registered yet
        self._may_register = device.overlaps

    @property
    def registered_bytes(self) -> int:
        """Bytes of the arena that are page-locked."""
        return self._reach - self._first

    def adopt(self, memory: NDArray[np.uint8], touch: Callable[[int, int], None]) -> None:
        """Take on memory in which batches will lie, from its beginning; the first piece is locked at once.

        Args:
            memory: begins at a page.
            touch: makes pages of it present, without the interpreter lock; registering alone would keep that.
        """
        self._memory, self._touch = memory, touch
        self._first = self._reach = memory.ctypes.data
        self._grow()

    def is_locked(self, tensor: Any) -> bool:
        """Tell whether a tensor may be copied from where it is; pieces of the arena are locked for that."""
        if not self._device.overlaps:
            return True
        start, size = tensor.data_ptr(), view_of(tensor).size
        if self._memory is not None and self._first <= start < self._first + len(self._memory):
            while start + size > self._reach and self._grow():
                pass
            return bool(start + size <= self._reach)
        return self._device.is_pinned(tensor)

    def ranges(self, tensor: Any) -> list[tuple[int, int]]:
        """Cut a flat tensor so that no copy crosses from one registered piece to the next: drivers refuse."""
        borders = [piece.ctypes.data for piece in self._pieces]
        return spread(tensor.data_ptr(), borders, tensor.numel())

    def stage(self, size: int) -> Stage:
        """Return a buffer of at least `size` bytes; waits for the oldest copy where all are in use."""
        for stage in self._stages:
            if len(stage) >= size and (stage.free_after is None or stage.free_after.query()):
                break
        else:
            stage = self._make_room(size)
        self._stages.remove(stage)
        self._stages.append(stage)  # the longest unused one is first
        stage.free_after = None
        return stage

    def close(self) -> None:
        """Unlock all of it, before anybody unmaps it; no copy may be under way."""
        pieces, self._pieces = self._pieces, []
        self._may_register = False
        self._reach = self._first
        try:
            for piece in pieces:
                self._device.unregister(piece)
        finally:
            self._memory = self._touch = None
            self._stages.clear()

    def _make_room(self, size: int) -> Stage:
        if len(self._stages) >= self._most_stages:
            oldest = self._stages[0]
            if oldest.free_after is not None:
                oldest.free_after.synchronize()
            if len(oldest) >= size:
                return oldest
            self._stages.remove(oldest)
        stage = Stage(self._device.pin(-(-size // _STAGE_STEP) * _STAGE_STEP))
        self._stages.append(stage)
        return stage

    def _grow(self) -> bool:
        """Register the next piece; tell whether there is more of it than before."""
        if not self._may_register or self._memory is None or self._touch is None:
            return False
        start = self._reach - self._first
        stop = min(start + self._piece_bytes, len(self._memory) // _PAGE * _PAGE)
        if start >= stop:
            return False
        try:
            self._touch(start, stop)
            self._device.register(self._memory[start:stop])
        except Exception as error:  # of the arena, too: there may be no memory for it
            self._may_register = False
            if isinstance(error, RegisterError):
                _log.warning(
                    "memory cannot be page-locked for %s (%s): batches take a detour through staging buffers",
                    self._device.name,
                    error,
                )
            else:
                _log.warning("memory is not page-locked for %s: %r", self._device.name, error)
            return False
        self._pieces.append(self._memory[start:stop])
        self._reach = self._first + stop
        return True
