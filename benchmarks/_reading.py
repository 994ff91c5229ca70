"""Bare readers of ranges: what a server gives to somebody who keeps no order and throws all bytes away.

Each reads a list of ranges over so many connections, every byte into memory that is used again, and checks
nothing but lengths. That is the least that any client of aiohttp, or of obstore, has to do.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from aioload.storage import Storage

__all__ = ["Range", "cut", "read_by_aiohttp", "read_by_obstore", "read_by_storage", "run"]

T = TypeVar("T")

_BUFFER_BYTES = 512 << 10  # aiohttp's, of each answer; smaller ones cost more


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file."""

    name: str
    """The file."""
    start: int
    """First byte."""
    stop: int
    """The one after the last."""

    @property
    def size(self) -> int:
        """How many there are."""
        return self.stop - self.start


def cut(sizes: dict[str, int], part_bytes: int) -> list[Range]:
    """Cut files into ranges of about one length, in order."""
    return [
        Range(name, start, min(start + part_bytes, size))
        for name, size in sizes.items()
        for start in range(0, size, part_bytes)
    ]


def run(waited: Coroutine[Any, Any, T]) -> T:
    """Run in a loop of the kind that a loader's engine takes."""
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(waited)


async def read_by_aiohttp(url: str, ranges: Sequence[Range], at_once: int) -> int:
    """Read all ranges; return the bytes that came."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, auto_decompress=False, read_bufsize=_BUFFER_BYTES
    ) as session:

        async def read_one(wanted: Range, memory: memoryview) -> int:
            headers = {"Range": f"bytes={wanted.start}-{wanted.stop - 1}", "Accept-Encoding": "identity"}
            async with session.get(f"{url}/{wanted.name}", headers=headers) as answer:
                if answer.status != 206:
                    raise RuntimeError(f"status {answer.status}")
                content, filled = answer.content, 0
                while piece := await content.readany():
                    memory[filled : filled + len(piece)] = piece
                    filled += len(piece)
                return filled

        return await _share(ranges, at_once, read_one)


async def read_by_obstore(store: Any, ranges: Sequence[Range], at_once: int) -> int:
    """Read all ranges; return the bytes that came."""
    import obstore

    async def read_one(wanted: Range, memory: memoryview) -> int:
        found = await obstore.get_range_async(store, wanted.name, start=wanted.start, end=wanted.stop)
        memory[: wanted.size] = memoryview(found)
        return len(found)

    return await _share(ranges, at_once, read_one)


async def read_by_storage(storage: Storage, ranges: Sequence[Range], at_once: int) -> int:
    """Read all ranges by a storage of aioload's; return the bytes that came."""

    async def read_one(wanted: Range, memory: memoryview) -> int:
        await storage.read_into(wanted.name, wanted.start, memory[: wanted.size])
        return wanted.size

    return await _share(ranges, at_once, read_one)


async def _share(
    ranges: Sequence[Range], at_once: int, read_one: Callable[[Range, memoryview], Awaitable[int]]
) -> int:
    """Share ranges among so many readers, each with memory of its own."""
    rest = iter(ranges)
    longest = max(each.size for each in ranges)

    async def read_some(rest: Iterator[Range]) -> int:
        memory, came = memoryview(bytearray(longest)), 0
        for wanted in rest:
            filled = await read_one(wanted, memory)
            if filled != wanted.size:
                raise RuntimeError(f"{filled} bytes came where {wanted.size} were asked for")
            came += filled
        return came

    return sum(await asyncio.gather(*(read_some(rest) for _ in range(at_once))))
