"""Stand-ins for slow and faulty parts: storages opened read by read, and picklable functions with a will.

The storages are used from the engine's thread and steered from the test's. The functions run in workers: what
they share with the test is a named pipe or a file, so that they work in any process, and none of them sleeps.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel

if TYPE_CHECKING:
    from aioload.storage.base import Storage

__all__ = ["Counting", "FaultyStorage", "Gate", "GateStorage", "Raising", "Read", "identity"]

PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Read:
    """One read that a storage was asked for."""

    name: str
    """The file."""

    start: int
    """Its first byte."""

    stop: int
    """The byte after its last."""


class GateStorage:
    """A storage whose reads wait until the test opens them, one by one, in the order they began."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._is_open = False
        self.reads: list[Read] = []

    async def size(self, name: str) -> int:
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        ticket = _Ticket()
        with self._changed:
            self.reads.append(Read(name, start, start + len(out)))
            if not self._is_open:
                self._waiting.append(ticket)
            self._changed.notify_all()
            waits = not self._is_open

        try:
            if waits:
                await ticket.wait()
            await self._storage.read_into(name, start, out)
        finally:
            with self._changed:
                if ticket in self._waiting:  # cancelled while it waited
                    self._waiting.remove(ticket)

    async def aclose(self) -> None:
        await _close(self._storage)

    @property
    def waiting(self) -> int:
        """How many reads stand before the gate."""
        with self._changed:
            return len(self._waiting)

    def wait(self, reads: int) -> None:
        """Block this thread, never the loop that reads, until so many reads have begun in all."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.reads) >= reads, PATIENCE_SECONDS):
                raise TimeoutError(f"{len(self.reads)} of {reads} reads began within {PATIENCE_SECONDS} s")

    def open(self, reads: int = 1) -> None:
        """Let the next reads through."""
        with self._changed:
            tickets, self._waiting = self._waiting[:reads], self._waiting[reads:]
        for ticket in tickets:
            ticket.open()

    def open_all(self) -> None:
        """Let all through, also those to come."""
        with self._changed:
            self._is_open = True
        self.open(self.waiting)


class FaultyStorage:
    """A storage that raises at chosen reads, counted from 0 in the order they began."""

    def __init__(self, storage: Storage, faults: Mapping[int, Exception]) -> None:
        self._storage = storage
        self._faults = faults
        self.reads: list[Read] = []

    async def size(self, name: str) -> int:
        return await self._storage.size(name)

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        number = len(self.reads)
        self.reads.append(Read(name, start, start + len(out)))
        if number in self._faults:
            raise self._faults[number]
        await self._storage.read_into(name, start, out)

    async def aclose(self) -> None:
        await _close(self._storage)


def identity(value: Any) -> Any:
    """Give back what came; the `then` of a fake that is used as a transform."""
    return value


@dataclass(frozen=True, slots=True)
class Counting:
    """A decoder or transform that counts its calls over all processes, in a file."""

    path: Path
    """The file; one byte a call."""

    then: Callable[[Any], Any] = identity
    """What is done with the value."""

    def __call__(self, value: Any) -> Any:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, b".")
        finally:
            os.close(fd)
        return self.then(value)

    @property
    def calls(self) -> int:
        """How often it was called so far."""
        return self.path.stat().st_size if self.path.exists() else 0


@dataclass(frozen=True, slots=True)
class Raising:
    """A decoder or transform that raises at chosen values."""

    at: Callable[[Any], bool]
    """Which values it does not like."""

    error: type[Exception] = ValueError
    """What it raises, with one text."""

    then: Callable[[Any], Any] = identity
    """What is done with the other values."""

    def __call__(self, value: Any) -> Any:
        if self.at(value):
            raise self.error("the fake does not like this value")
        return self.then(value)


@dataclass(slots=True)
class Gate:
    """A decoder or transform whose calls wait, in any process, until the test opens them one by one.

    Two named pipes carry it: a call leaves a byte in the first and takes one from the second. Once closed,
    at the end of its `with` block, it lets everybody through.
    """

    folder: Path
    """An existing folder for the pipes."""

    then: Callable[[Any], Any] = identity
    """What is done with the value."""

    _arrivals: int = field(default=-1, init=False)
    _permits: int = field(default=-1, init=False)

    def __enter__(self) -> Gate:
        os.mkfifo(self.folder / "arrivals")
        os.mkfifo(self.folder / "permits")
        # both ends in one hand: opening does not wait for the other side, nor do the workers' openings
        self._arrivals = os.open(self.folder / "arrivals", os.O_RDWR)
        self._permits = os.open(self.folder / "permits", os.O_RDWR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._permits)  # whoever waits reads the end of the pipe and goes on
        os.close(self._arrivals)

    def __reduce__(self) -> tuple[type[Gate], tuple[Path, Callable[[Any], Any]]]:
        return Gate, (self.folder, self.then)  # the descriptors stay with the test

    def __call__(self, value: Any) -> Any:
        if _leave_byte(self.folder / "arrivals"):
            _take_byte(self.folder / "permits")
        return self.then(value)

    def wait(self, calls: int = 1) -> None:
        """Block until so many further calls have come to the gate."""
        for _ in range(calls):
            if not select.select([self._arrivals], [], [], PATIENCE_SECONDS)[0]:
                raise TimeoutError(f"no further call came to the gate within {PATIENCE_SECONDS} s")
            os.read(self._arrivals, 1)

    def open(self, calls: int = 1) -> None:
        """Let so many calls through, those that wait and else those to come."""
        os.write(self._permits, b"." * calls)

    def shut(self) -> None:
        """Take back what nobody has used: from now on calls wait again."""
        while select.select([self._permits], [], [], 0)[0]:
            os.set_blocking(self._permits, False)
            with contextlib.suppress(BlockingIOError):  # somebody was faster
                os.read(self._permits, 1 << 16)
            os.set_blocking(self._permits, True)


async def _close(storage: Storage) -> None:
    """Close a storage that has something to close."""
    if hasattr(storage, "aclose"):
        await storage.aclose()


class _Ticket:
    """One waiting read, which any thread may open."""

    def __init__(self) -> None:
        self._opened = anyio.Event()
        self._token = anyio.lowlevel.current_token()
        self._thread = threading.get_ident()

    async def wait(self) -> None:
        await self._opened.wait()

    def open(self) -> None:
        if threading.get_ident() == self._thread:
            self._opened.set()
        else:
            anyio.from_thread.run_sync(self._opened.set, token=self._token)


def _leave_byte(path: Path) -> bool:
    """Write a byte into a pipe; False where nobody holds its other end any more."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # the gate is closed: ENXIO
        return False
    try:
        os.write(fd, b".")
    finally:
        os.close(fd)
    return True


def _take_byte(path: Path) -> None:
    """Wait for a byte in a pipe, or for its end."""
    # a closed gate has no writer, for which opening would wait
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.set_blocking(fd, True)
        os.read(fd, 1)
    finally:
        os.close(fd)
