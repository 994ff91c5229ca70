"""A remote storage in virtual time: latency, bandwidth, and the faults of a bad day, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import anyio

from aioload.errors import NotFoundError, StorageError
from aioload.storage.base import ends_early

__all__ = ["BAD_DAY", "Faults", "Remote", "Request", "fault"]


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests that go wrong."""

    status503: float = 0.0
    """Answered with "slow down"."""
    reset: float = 0.0
    """Reset before an answer."""
    cut: float = 0.0
    """Cut somewhere in the body."""
    stall: float = 0.0
    """Silent for 5 s in the body, then going on."""
    slow: float = 0.0
    """20 times slower."""


BAD_DAY = Faults(status503=0.02, reset=0.01, cut=0.01, stall=0.01, slow=0.02)


@dataclass(slots=True)
class Request:
    """One request as the server saw it."""

    name: str
    start: int
    stop: int
    at: float
    sent: int = 0
    """Bytes that were sent."""


class Remote:
    """Makes one attempt a call, as the storages of real networks do."""

    def __init__(
        self,
        files: Mapping[str, bytes],
        *,
        seed: int = 0,
        faults: Faults = Faults(),
        latency: float = 0.05,
        bandwidth: float = 40e6,
        most_at_once: int | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.at_once = 0
        self.most_at_once = 0
        self.is_down = False
        self._files = files
        self._rng = Random(seed)
        self._faults = faults
        self._latency = latency
        self._bandwidth = bandwidth
        self._refuse_beyond = most_at_once

    async def size(self, name: str) -> int:
        await anyio.sleep(self._latency)
        return len(self._content(name))

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        request = Request(name, start, start + len(out), anyio.current_time())
        self.requests.append(request)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self._answer(request, out)
        finally:
            self.at_once -= 1

    async def _answer(self, request: Request, out: memoryview) -> None:
        draw = self._rng.random()
        fate, latency, bandwidth = "", self._latency * self._rng.uniform(0.9, 1.3), self._bandwidth
        for name in Faults.__slots__:
            share = getattr(self._faults, name)
            if 0 <= draw < share:
                fate = name
            draw -= share
        if self.is_down:
            await anyio.sleep(0.001)
            raise fault("refused", errno=111)
        if fate == "slow":
            latency, bandwidth = 20 * latency, bandwidth / 20
        await anyio.sleep(latency)
        if fate == "status503" or (self._refuse_beyond is not None and self.at_once > self._refuse_beyond):
            raise fault("503", status=503, throttled=True)
        if fate == "reset":
            raise fault("reset", errno=104)
        content = self._content(request.name)
        if request.stop > len(content):
            raise ends_early(request.name, len(content), request.stop)
        middle = int(len(out) * self._rng.random()) if fate in ("cut", "stall") else 0
        await self._send(request, out, content, middle, bandwidth)
        if fate == "cut":
            raise fault("cut", status=206, filled=middle)
        if fate == "stall":
            await anyio.sleep(5)
        await self._send(request, out, content, len(out), bandwidth)

    async def _send(
        self, request: Request, out: memoryview, content: bytes, stop: int, bandwidth: float
    ) -> None:
        await anyio.sleep((stop - request.sent) / bandwidth)
        out[request.sent : stop] = content[request.start + request.sent : request.start + stop]
        request.sent = stop

    def _content(self, name: str) -> bytes:
        if name not in self._files:
            raise NotFoundError(f"there is no {name}", shard=name, status=404, final=True)
        return self._files[name]


def fault(what: str, **facts: object) -> StorageError:
    """Make an error as a storage of one attempt does."""
    return StorageError(f"http://host/set/x: {what}", **facts)
