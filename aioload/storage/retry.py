"""Retry: a read that fails is tried again, from its first missing byte, until it cannot be helped.

What is waited between attempts is in `backoff`, whether everybody should wait in `throttle`. A place that
has answered before and now cannot be reached at all, be it by a gateway, is out, and may come back: attempts
to reach it do not count, so that a server's restart costs a pause and not the run; only the deadline ends
them. A place that has never answered is more likely a wrong address, which should be said soon.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import anyio

from ..errors import ConfigError, NotFoundError, StorageError
from .backoff import Backoff
from .base import Storage, check_range
from .link import Link
from .wrapping import Wrapping, annotate

__all__ = ["Retrying"]

_log = logging.getLogger("aioload.storage")

T = TypeVar("T")

_OUTAGE_CAP = 2.0  # seconds between two looks at whether a place is back
_DEEPEST = 8  # causes of causes that are looked at
_CROWD = 0.25  # of a rest that all take, by which they come back one after the other

_FINAL = (NotFoundError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_UNREACHABLE = frozenset(
    {
        errno.ECONNREFUSED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
    }
)


class Retrying(Wrapping):
    """Tries again what fails, unless it would fail again for sure.

    Tried again are `StorageError` and `OSError`, a `TimeoutError` included, other than those that are `final`
    or say that a file is not there. An attempt that failed after some bytes tells in `filled` how many are
    right; the next goes on after them.

    Args:
        storage: the one inside, one attempt a call.
        link: what its reads share; a rest that the server asked for is kept by all.
        attempts: requests for one read at most.
        deadline: seconds for one read with all its attempts and waits.
        where: the address of the storage, for messages; without anything secret.
        rng: draws the waits.
    """

    def __init__(
        self,
        storage: Storage,
        link: Link,
        *,
        attempts: int = 6,
        deadline: float = 120.0,
        where: str = "",
        rng: Random | None = None,
    ) -> None:
        if attempts < 1 or not deadline > 0:
            raise ConfigError(
                f"need attempts >= 1 and deadline > 0, got {attempts} and {deadline}; "
                "one attempt means that nothing is tried again"
            )
        super().__init__(storage)
        self._link = link
        self._attempts = attempts
        self._deadline = deadline
        self._where = where.rstrip("/")
        self._rng = rng or Random()

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return await self._try(name, 0, lambda _: self._storage.size(name))

    async def get(self, name: str) -> bytes:
        """Return all of a small file."""
        return await self._try(name, 0, lambda _: super(Retrying, self).get(name))

    async def version(self, name: str) -> str | None:
        """Return what tells this content of a file from another; None where the storage does not know."""
        return await self._try(name, 0, lambda _: super(Retrying, self).version(name))

    async def listing(self) -> list[str]:
        """Return the names of the files in the folder."""
        return await self._try("", 0, lambda _: super(Retrying, self).listing())

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)

        async def go_on(filled: int) -> None:
            if filled < len(view) or not filled:  # an attempt may fail after its last byte
                await self._storage.read_into(name, start + filled, view[filled:])

        await self._try(name, len(view), go_on)

    async def _try(self, name: str, size: int, ask: Callable[[int], Awaitable[T]]) -> T:
        """Ask until there is an answer; `ask` is told how many bytes are there already."""
        tries = _Tries(f"{self._where}/{name}" if self._where else name, name, self._deadline)
        backoff = Backoff(self._rng)
        with anyio.move_on_after(self._deadline) as scope:
            while True:
                await self._rest()
                tries.begin()
                try:
                    answer = await ask(tries.filled)
                except OSError as error:
                    self._note(tries, error, size)
                    if _is_final(error):
                        tries.complete(error)
                        raise
                    wait = self._next_wait(tries, backoff, error)
                    if self._is_over(tries, wait, scope.deadline - anyio.current_time()):
                        raise tries.given_up() from error
                    _log.debug("trying %s again in %.2f s: %s", name, wait, error)
                else:
                    self._link.answered(size - tries.filled)
                    return answer
                await anyio.sleep(wait)
                self._link.add(retries=1)
        raise tries.too_late()

    def _is_over(self, tries: _Tries, wait: float, left: float) -> bool:
        """Tell whether there is no time, or no attempt, for another."""
        out = self._link.unreachable() if tries.is_out else 0.0
        return tries.counted >= self._attempts or wait >= left or out >= self._deadline

    async def _rest(self) -> None:
        """Wait as long as the server wants to be left alone."""
        while (seconds := self._link.rest()) > 0:  # noqa: ASYNC110 - it ends with time, by nobody's event
            await anyio.sleep(seconds * (1 + _CROWD * self._rng.random()))

    def _note(self, tries: _Tries, error: OSError, size: int) -> None:
        """Tell the link of a failed attempt, and keep what came."""
        filled = getattr(error, "filled", 0)
        if not 0 <= filled <= size - tries.filled:
            filled = 0  # nonsense, so nothing of it is believed
        unreachable = _is_unreachable(error)
        tries.failed(error, filled, counts=not (self._link.has_answered and unreachable))
        self._link.failed(
            filled,
            throttled=getattr(error, "throttled", False),
            retry_after=getattr(error, "retry_after", None),
            answered=filled > 0 or (getattr(error, "status", None) is not None and not unreachable),
        )

    def _next_wait(self, tries: _Tries, backoff: Backoff, error: OSError) -> float:
        if tries.came:
            backoff.reset()
        return backoff.next(
            retry_after=getattr(error, "retry_after", None),
            throttled=getattr(error, "throttled", False),
            cap=_OUTAGE_CAP if tries.is_out else None,
        )


class _Tries:
    """The attempts at one thing; keeps texts of errors, not errors, whose frames hold the caller's memory."""

    def __init__(self, shown: str, name: str, deadline: float) -> None:
        self.filled = 0
        """Bytes that are right so far."""
        self.sent = 0
        """Attempts so far."""
        self.counted = 0
        """Of these, those that failed and count."""
        self.came = 0
        """Bytes that the last one brought."""
        self.is_out = False
        """Whether the last one could not reach a place that was there before."""
        self._shown = shown
        self._name = name
        self._deadline = deadline
        self._kind: type[StorageError] = StorageError
        self._facts: dict[str, Any] = {}
        self._last = ""

    def begin(self) -> None:
        """Count an attempt."""
        self.sent += 1

    def failed(self, error: OSError, filled: int, *, counts: bool) -> None:
        """Keep what is to be known of a failed attempt."""
        self.came = filled
        self.filled += filled
        self.counted += counts
        self.is_out = not counts
        self._last = str(error) or type(error).__name__
        self._kind = type(error) if isinstance(error, StorageError) else StorageError
        self._facts = dict(error.facts) if isinstance(error, StorageError) else {"errno": error.errno}

    def complete(self, error: OSError) -> None:
        """Write into an error that is raised as it is what it cannot know."""
        if isinstance(error, StorageError):
            annotate(error, attempts=self.sent, filled=self.filled)

    def given_up(self) -> StorageError:
        """Make the error of too many attempts, or of a wait beyond the deadline."""
        attempts = "1 attempt" if self.sent == 1 else f"{self.sent} attempts"
        return self._error(f"gave up on {self._shown} after {attempts}: {self._last}")

    def too_late(self) -> StorageError:
        """Make the error of a deadline."""
        last = f"; the last that failed: {self._last}" if self._last else ""
        return self._error(
            f"gave up on {self._shown} at the deadline of {self._deadline:g} s, "
            f"in attempt {self.sent}{last}; check the network and the server, or set a longer deadline"
        )

    def _error(self, message: str) -> StorageError:
        facts = {
            **self._facts,
            "shard": self._name,
            "attempts": self.sent,
            "filled": self.filled,
            "cause": self._last or "no answer",
        }
        return self._kind(message, **facts)


def _is_final(error: OSError) -> bool:
    return isinstance(error, _FINAL) or bool(getattr(error, "final", False))


def _is_unreachable(error: BaseException) -> bool:
    """Whether no connection could be made, as far as an error or what it came from tells."""
    if getattr(error, "unreachable", False):
        return True
    part: BaseException | None = error
    for _ in range(_DEEPEST):
        if isinstance(part, socket.gaierror) or getattr(part, "errno", None) in _UNREACHABLE:
            return True
        if part is None:
            break
        part = part.__cause__ or part.__context__
    return False
