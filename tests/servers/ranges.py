"""A server of ranges that goes wrong on purpose: by shares drawn from a seed, or by a script for a path.

It runs in a thread and an event loop of its own and listens on the loopback address, so that any number of
loops and processes can read from it. Nothing in it waits for a wall clock but what was asked for (latency,
bandwidth, stalls, slowness).

Shares are drawn from (seed, path, range, how often that was asked before): which requests fail does not
depend on the order in which they arrive. A script for a path is used up first, one answer a request.

As a program, for benchmarks: `python ranges.py FOLDER --latency 0.05 --bandwidth 40e6` prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import re
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, Self
from urllib.parse import unquote

__all__ = ["BAD_DAY", "Act", "Faults", "RangeServer", "Request", "draw"]

_HEAD_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of requests that go wrong, at most one way each."""

    seed: int = 0
    """What is drawn from."""
    status503: float = 0.0
    """Answered with 503."""
    reset: float = 0.0
    """Reset before an answer."""
    cut: float = 0.0
    """Closed somewhere in the body."""
    stall: float = 0.0
    """Silent for `stall_s` somewhere in the body, then going on."""
    stall_s: float = 5.0
    """Seconds of a stall."""
    slow: float = 0.0
    """`slow_factor` times slower, to the first byte and after it."""
    slow_factor: float = 20.0
    """How much slower."""
    retry_after: str | None = None
    """Sent with each 503."""


BAD_DAY = Faults(status503=0.02, reset=0.01, cut=0.01, stall=0.01, slow=0.02)


@dataclass(frozen=True, slots=True)
class Act:
    """How one answer differs from the right one; an `Act()` does not."""

    status: int | None = None
    """Another status; the body is then `body`."""
    headers: Mapping[str, str | None] = field(default_factory=dict)
    """Headers beside the right ones, or in their place; None leaves one out."""
    body: bytes | None = None
    """Sent in place of what was asked for."""
    content: bytes | None = None
    """The file is this from now on."""
    ignore_range: bool = False
    """The whole file with 200."""
    ignore_if_match: bool = False
    """No 412, whatever the tag."""
    chunked: bool = False
    """In chunks, with no length told."""
    encoded: bool = False
    """Compressed, as `Content-Encoding: gzip` tells."""
    cut: int | None = None
    """Close after so many bytes of the body."""
    reset: int | None = None
    """Reset after so many bytes of the body; -1 before the head."""
    stall: int | None = None
    """After so many bytes of the body send nothing more until the client leaves; -1 before the head."""
    piece: int = 256 << 10
    """Bytes of the body that are sent at a time."""
    slow_factor: float = 1.0
    """How much slower."""
    pause: tuple[int, float] | None = None
    """After so many bytes of the body wait so many seconds."""
    extra: bytes = b""
    """Bytes after the end of the body."""


@dataclass(slots=True)
class Request:
    """What was asked, and what was sent."""

    method: str
    """Such as GET."""
    path: str
    """As it was asked for, decoded; without the query."""
    query: str
    """As it was asked for."""
    target: str
    """The whole second word of the request."""
    headers: dict[str, str]
    """By name in small letters."""
    range: tuple[int, int | None] | None
    """First byte and the one after the last, if a range was asked for."""
    at: float
    """When it came, of the monotonic clock."""
    connection: int
    """Which connection it came over."""
    status: int = 0
    """What was answered; 0 where nothing was."""
    sent: int = 0
    """Bytes of the body that were handed to the system."""


def draw(faults: Faults, path: str, part: object, size: int, times: int) -> Act:
    """Draw what goes wrong with a request.

    Args:
        faults: shares and seed.
        path: of the file.
        part: first byte and the one after the last, if a range was asked for.
        size: bytes of the answer's body.
        times: how often just that was asked for, this time included.
    """
    random = Random(repr((faults.seed, path, part, times)))
    where = random.randrange(1, size) if size > 1 else 0
    lot = random.random()
    for share, act in (
        (
            faults.status503,
            Act(status=503, headers={"Retry-After": faults.retry_after}, body=b"<Code>SlowDown</Code>"),
        ),
        (faults.reset, Act(reset=-1)),
        (faults.cut, Act(cut=where)),
        (faults.stall, Act(pause=(where, faults.stall_s))),
        (faults.slow, Act(slow_factor=faults.slow_factor)),
    ):
        if lot < share:
            return act
        lot -= share
    return Act()


class RangeServer:
    """A server that runs while it is entered, and can be taken down and up again in between.

    Args:
        files: content by name, looked at on each request; or a folder.
        latency: seconds to the first byte.
        bandwidth: bytes a second of each connection.
        total_bandwidth: bytes a second of all.
        faults: shares of requests that go wrong.
        tags: whether files have an ETag.
        tls: serves https with it.
        host: of the loopback.
        port: a free one by default.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | str | Path,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        total_bandwidth: float | None = None,
        faults: Faults | None = None,
        tags: bool = True,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.files: Mapping[str, bytes] = files if isinstance(files, Mapping) else _Folder(Path(files))
        self.latency = latency
        self.bandwidth = bandwidth
        self.faults = faults
        self.tags = tags
        self.requests: list[Request] = []
        self.connections = 0
        self._total = _Pace(total_bandwidth)
        self._scripts: dict[str, deque[Act]] = {}
        self._changed: dict[str, bytes] = {}
        self._asked: Counter[tuple[str, object]] = Counter()
        self._tags: dict[int, tuple[bytes, str]] = {}
        self._tls = tls
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._run, name="range-server", daemon=True)
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """Its address."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}"

    def script(self, name: str, *acts: Act) -> None:
        """Say how the next requests for a file are answered, each by one act."""
        self._scripts.setdefault(f"/{name}", deque()).extend(acts)

    def asked(self, name: str) -> list[Request]:
        """Return the requests for a file so far."""
        return [request for request in self.requests if request.path == f"/{name}"]

    def down(self) -> None:
        """Reset all connections and listen no more."""
        self._call(self._close())

    def up(self) -> None:
        """Listen again, at the same address."""
        self._call(self._listen())

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        self.up()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.down()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()

    def _call(self, waited: Any) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(waited, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, ssl=self._tls, limit=_HEAD_LIMIT
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            for listening in self._server.sockets:  # first: asyncio loses who is accepted while it closes
                asyncio.get_running_loop().remove_reader(listening.fileno())
            await asyncio.sleep(0.001)
            self._server.close()
            self._server = None
        for _ in range(20):  # also those who were accepted just now, and are not served yet
            serving = dict(self._serving)
            for writer, task in serving.items():
                _reset(writer)
                if task is not None:
                    task.cancel()
            await asyncio.gather(*filter(None, serving.values()))
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        if self._server is None:
            _reset(writer)
            writer.close()
            return
        self._serving[writer] = asyncio.current_task()
        self.connections += 1
        number = self.connections
        try:
            # a cancelled connection ends like any other; asyncio would report it as an error
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                try:
                    while await self._answer(await self._request(reader, number), reader, writer):
                        pass
                finally:
                    writer.close()
                    await writer.wait_closed()
        finally:
            del self._serving[writer]

    async def _request(self, reader: asyncio.StreamReader, number: int) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        local = re.sub(r"^\w+://[^/]+", "", target)  # whole addresses are for proxies
        path, _, query = local.partition("?")
        part = _range(headers.get("range", ""))
        request = Request(method, unquote(path), query, target, headers, part, time.monotonic(), number)
        self.requests.append(request)
        return request

    async def _answer(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send one answer; return whether the connection goes on."""
        act = self._next_act(request)
        await asyncio.sleep(self.latency * act.slow_factor)
        if act.reset == -1:
            _reset(writer)
            return False
        if act.stall == -1:
            await reader.read()
            return False

        status, headers, body = self._right(request, act)
        if act.status is not None:
            status, body = act.status, act.body or b""
            headers = {"Content-Length": str(len(body))}
        elif act.body is not None:
            body = act.body
            headers["Content-Length"] = str(len(body))
        if act.encoded:
            body = gzip.compress(body, mtime=0)
            headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
        if act.chunked:
            del headers["Content-Length"]
            headers["Transfer-Encoding"] = "chunked"
        merged = {name: value for name, value in (headers | dict(act.headers)).items() if value is not None}
        request.status = status
        writer.write(_head(status, merged))
        if request.method == "HEAD":
            return True
        return await self._send(request, act, memoryview(body), reader, writer)

    async def _send(
        self,
        request: Request,
        act: Act,
        body: memoryview,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Send a body, or as much of it as the act says."""
        pace = _Pace(self.bandwidth and self.bandwidth / act.slow_factor)
        stops = [act.cut, act.reset, act.stall, act.pause and act.pause[0], len(body)]
        sent = 0
        while True:
            if act.pause and act.pause[0] == sent:
                await asyncio.sleep(act.pause[1])
            if act.cut == sent:
                return False
            if act.reset == sent:
                _reset(writer)
                return False
            if act.stall == sent:
                await reader.read()
                return False
            if sent == len(body):
                break
            stop = min(sent + act.piece, *(stop for stop in stops if stop is not None and stop > sent))
            piece = body[sent:stop]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if act.chunked else piece)
            await writer.drain()
            request.sent = sent = stop
            await pace.passed(len(piece))
            await self._total.passed(len(piece))
        writer.write((b"0\r\n\r\n" if act.chunked else b"") + act.extra)
        await writer.drain()
        return not act.extra

    def _next_act(self, request: Request) -> Act:
        script = self._scripts.get(request.path)
        if script:
            act = script.popleft()
            if act.content is not None:
                self._changed[request.path] = act.content
            return act
        return self._drawn(request) if self.faults else Act()

    def _drawn(self, request: Request) -> Act:
        """Draw what goes wrong with a request."""
        faults = self.faults
        assert faults is not None
        what = (request.path, request.range)
        self._asked[what] += 1
        content = self._content(request.path) or b""
        start, stop = request.range or (0, None)
        size = (len(content) if stop is None else min(stop, len(content))) - start
        return draw(faults, *what, size, self._asked[what])

    def _content(self, path: str) -> bytes | None:
        if path in self._changed:
            return self._changed[path]
        try:
            return self.files[path[1:]]
        except KeyError:
            return None

    def _right(self, request: Request, act: Act) -> tuple[int, dict[str, str], bytes | memoryview]:
        """Status, headers and body as they should be."""
        content = self._content(request.path)
        if request.method not in ("GET", "HEAD"):
            return 405, {"Content-Length": "0"}, b""
        if content is None:
            return 404, {"Content-Length": "9"}, b"not found"
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        tag = self._tag(content)
        if self.tags:
            headers["ETag"] = tag
            wanted = request.headers.get("if-match", tag)
            if wanted != tag and not act.ignore_if_match:
                return 412, headers | {"Content-Length": "0"}, b""
        if request.range is None or act.ignore_range:
            return 200, headers | {"Content-Length": str(len(content))}, content
        start, stop = request.range
        stop = len(content) if stop is None else min(stop, len(content))
        if start >= stop:
            return 416, headers | {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"}, b""
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        headers["Content-Length"] = str(stop - start)
        return 206, headers, memoryview(content)[start:stop]

    def _tag(self, content: bytes) -> str:
        """Return the sum of a content, made once for as long as it is the same object."""
        kept = self._tags.get(id(content))
        if kept is None or kept[0] is not content:
            kept = (content, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
            self._tags[id(content)] = kept
        return kept[1]


class _Pace:
    """Lets so many bytes pass a second."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = 0.0

    async def passed(self, size: int) -> None:
        """Wait until more may follow."""
        if self._rate:
            now = time.monotonic()
            self._next = max(self._next, now) + size / self._rate
            await asyncio.sleep(self._next - now)


class _Folder(Mapping[str, bytes]):
    """The files of a folder, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, bytes] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._read:
            path = self._root / name
            if ".." in Path(name).parts or not path.is_file():
                raise KeyError(name)
            self._read[name] = path.read_bytes()
        return self._read[name]

    def __iter__(self) -> Any:
        return (str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _range(text: str) -> tuple[int, int | None] | None:
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", text)
    return (int(found[1]), int(found[2]) + 1 if found[2] else None) if found else None


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = HTTPStatus(status).phrase if status in iter(HTTPStatus) else "Odd"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that the other side gets a reset."""
    with suppress(OSError, AttributeError):  # there is none left of a TLS connection that has ended
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def main(arguments: Iterable[str] | None = None) -> None:
    """Serve a folder until the program is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--total-bandwidth", type=float)
    parser.add_argument("--bad-day", action="store_true", help="with the faults of BAD_DAY")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(None if arguments is None else list(arguments))
    with RangeServer(
        given.folder,
        latency=given.latency,
        bandwidth=given.bandwidth,
        total_bandwidth=given.total_bandwidth,
        faults=replace(BAD_DAY, seed=given.seed) if given.bad_day else None,
        port=given.port,
    ) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
