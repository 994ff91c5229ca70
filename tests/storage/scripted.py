"""A storage that answers as it is told, request by request, in virtual time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from aioload.errors import NotFoundError, StorageError
from aioload.storage.wrapping import annotate

__all__ = ["CONTENT", "Asked", "Scripted", "Step", "busy", "cut", "fault", "missing", "refused"]

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@dataclass(frozen=True, slots=True)
class Step:
    """What one request gets."""

    seconds: float = 0.01
    """What it takes."""
    filled: int | None = None
    """Bytes that are written before the time is over; None for all, once it is over."""
    error: BaseException | None = None
    """What it ends with."""
    lingers: float = 0.0
    """How long it goes on writing wrong bytes after it was cancelled."""


@dataclass(slots=True)
class Asked:
    """One request that was made."""

    start: int
    stop: int
    at: float
    ended: float | None = None


class Scripted:
    """A storage of one file, "x"; the last step is what all further requests get."""

    def __init__(self, steps: Sequence[Step], content: bytes = CONTENT) -> None:
        self.asked: list[Asked] = []
        self.is_closed = False
        self._steps = list(steps)
        self._content = content

    @property
    def gaps(self) -> list[float]:
        """Seconds from the end of one request to the next."""
        ends = [asked.ended or 0.0 for asked in self.asked]
        return [later.at - end for end, later in zip(ends, self.asked[1:], strict=False)]

    async def size(self, name: str) -> int:
        await self._go(bytearray(), 0)
        return len(self._content)

    async def get(self, name: str) -> bytes:
        await self._go(bytearray(), 0)
        return self._content

    async def version(self, name: str) -> str:
        await self._go(bytearray(), 0)
        return "tag"

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        await self._go(out, start)

    async def aclose(self) -> None:
        self.is_closed = True

    async def _go(self, out: memoryview | bytearray, start: int) -> None:
        step = self._steps[min(len(self.asked), len(self._steps) - 1)]
        asked = Asked(start, start + len(out), anyio.current_time())
        self.asked.append(asked)
        try:
            filled = min(step.filled or 0, len(out))
            out[:filled] = self._content[start : start + filled]
            await self._wait(step, out)
            if step.error is not None:
                raise _again(step.error, step.filled, filled)
            out[:] = self._content[start : start + len(out)]
        finally:
            asked.ended = anyio.current_time()

    async def _wait(self, step: Step, out: memoryview | bytearray) -> None:
        try:
            await anyio.sleep(step.seconds)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(step.lingers)
                out[:] = bytes(len(out))
            raise


def _again(error: BaseException, meant: int | None, filled: int) -> BaseException:
    """Copy an error: one that is raised holds the frames it came through, and their memory."""
    again = copy.copy(error)
    again.__cause__ = error.__cause__
    if isinstance(again, StorageError) and meant is not None and again.facts.get("filled") == meant:
        annotate(again, filled=filled)  # the end of the body comes before that of the step
    return again


def fault(what: str = "broken", **facts: Any) -> StorageError:
    """Make an error as a storage of one attempt does."""
    return StorageError(f"http://host/set/x: {what}", **facts)


def cut(filled: int) -> Step:
    """Return a body that is cut."""
    return Step(filled=filled, error=fault("cut short", status=206, filled=filled))


def busy(retry_after: float | None = None) -> Step:
    """Return a server that has too much to do."""
    return Step(error=fault("503 slow down", status=503, throttled=True, retry_after=retry_after))


def refused() -> Step:
    """Return a server that is not there."""
    error = fault("connection refused")
    error.__cause__ = ConnectionRefusedError(111, "refused")
    return Step(error=error)


def missing() -> Step:
    """Return a file that is not there."""
    return Step(error=NotFoundError("http://host/set/x: 404", shard="x", status=404, final=True))
