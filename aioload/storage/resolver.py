"""Names of hosts to addresses, by threads that nobody waits for: a silent name server holds up no end."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from aiohttp.abc import AbstractResolver, ResolveResult

from .threads import DaemonExecutor

__all__ = ["Resolver"]

_MAX_THREADS = 4
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class Resolver(AbstractResolver):
    """Asks the system, as aiohttp's own does, but not in the threads of the loop."""

    def __init__(self) -> None:
        self._threads = DaemonExecutor(_MAX_THREADS, name="aioload-names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host."""
        look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.wrap_future(self._threads.submit(look))
        return [
            ResolveResult(
                hostname=host,
                host=_with_zone(str(address[0]), address),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=_NUMERIC,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Let the threads end once they have an answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _with_zone(host: str, address: tuple[object, ...]) -> str:
    """Name the interface too that an address of the local link is on."""
    zone = address[3] if len(address) == 4 else 0
    return f"{host}%{zone}" if zone and "%" not in host else host
