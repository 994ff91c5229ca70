"""A server of ranges that costs little: it shares the CPUs with what is measured.

    python benchmarks/_server.py FOLDER --latency 0.05 --bandwidth 40e6

One thread waits for sockets and times (epoll), and the kernel moves the bytes (sendfile). The first byte of
an answer comes after `latency`, its body at `bandwidth` for each connection. What goes wrong on a bad day is
drawn as the tests' own server draws it (`tests/servers/ranges.py`): the same shares, from a seed.

How it behaves is set while it runs, over http like all else: GET /-/set?latency=0.2&bandwidth=0&seed=7, which
also starts the counts anew (no seed: nothing goes wrong); GET /-/counts tells what it did since. It ends with
its standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers.ranges import BAD_DAY, Act, Faults, draw

__all__ = ["Counts", "Server", "Serving", "serving"]

_PIECE = 256 << 10  # bytes that leave at a time, where the bandwidth is limited
_BUFFER = 4 << 20  # of each connection, for what the client has not taken yet
_MOST_HEAD = 64 << 10
_LOGGED = 400  # questions
_FINE = Act()


@dataclass(slots=True)
class Counts:
    """What a server did since it was set."""

    requests: int = 0
    """Questions for files."""
    bytes: int = 0
    """Of bodies that were handed to the system."""
    most_open: int = 0
    """Requests under way at once, at most."""
    connections: int = 0
    """That were made."""
    cpu_seconds: float = 0.0
    """Of the server's process."""
    log: list[tuple[float, str]] = field(default_factory=list)
    """The first questions: seconds since the server was set, and what was asked."""


class _Connection:
    """A client, and the answer that is on its way."""

    __slots__ = ("answer", "is_open", "received", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.is_open = True
        self.answer: Answer | None = None


Answer = Generator[float | None, None, None]
"""Sends what is asked for; yields when it wants to go on: at a time, or once there is room to send (None)."""


class Server:
    """The thread.

    Args:
        folder: what is served.
        host: of the loopback.
        port: 0 is a free one.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, int, str] | None] = {}
        self._listener = socket.create_server((host, port), backlog=512)
        self._listener.setblocking(False)
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._timers: list[tuple[float, int, _Connection]] = []
        self._numbers = itertools.count()
        self._open = 0
        self.url = f"http://{host}:{self._listener.getsockname()[1]}"
        """Its address."""
        self.set(0.0, 0.0, None)

    def set(self, latency: float, bandwidth: float, faults: Faults | None) -> None:
        """Behave so from now on, and count anew."""
        self._latency, self._bandwidth, self._faults = latency, bandwidth, faults
        self._counts = Counts(most_open=self._open)
        self._asked = Counter[tuple[str, object]]()
        self._began, self._cpu = time.monotonic(), time.process_time()

    def run(self) -> None:
        """Serve until standard input ends."""
        listener = self._listener.fileno()
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(0, select.EPOLLIN)
        while True:
            wait = max(self._timers[0][0] - time.monotonic(), 0.0) if self._timers else -1.0
            for number, events in self._poll.poll(wait):
                if number == 0:
                    return
                if number == listener:
                    self._accept()
                elif connection := self._connections.get(number):
                    self._ready(connection, events)
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                _, _, connection = heapq.heappop(self._timers)
                self._go_on(connection)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
                self._connections[sock.fileno()] = _Connection(sock)
                self._poll.register(sock.fileno(), select.EPOLLIN)
                self._counts.connections += 1

    def _ready(self, connection: _Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._poll.modify(connection.sock.fileno(), select.EPOLLIN)
            self._go_on(connection)
        if events & ~select.EPOLLOUT and connection.is_open:
            try:
                self._receive(connection)
            except OSError:
                self._close(connection)

    def _receive(self, connection: _Connection) -> None:
        data = connection.sock.recv(_MOST_HEAD)
        if not data or connection.answer is not None:  # nobody asks twice at once: it is gone
            self._close(connection)
            return
        connection.received += data
        if connection.received.endswith(b"\r\n\r\n"):
            head, connection.received = connection.received.decode("latin-1"), b""
            line, *lines = head.split("\r\n")
            method, target, _ = line.split(" ")
            if target.startswith("/-/"):
                self._control(connection, target)
                return
            wanted = next((line[6:].strip() for line in lines if line[:6].lower() == "range:"), "")
            self._note(target, wanted)
            connection.answer = self._answer(connection.sock, method, target, wanted)
            self._go_on(connection)

    def _go_on(self, connection: _Connection) -> None:
        """Let an answer do its next step."""
        if connection.answer is None:
            return
        try:
            at = next(connection.answer)
        except StopIteration:
            connection.answer = None
            self._open -= 1
        except OSError:
            self._close(connection)
        else:
            if at is None:
                self._poll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            else:
                heapq.heappush(self._timers, (at, next(self._numbers), connection))

    def _close(self, connection: _Connection) -> None:
        self._open -= connection.answer is not None
        connection.answer, connection.is_open = None, False
        self._poll.unregister(connection.sock.fileno())
        del self._connections[connection.sock.fileno()]
        connection.sock.close()

    def _control(self, connection: _Connection, target: str) -> None:
        parts = urlsplit(target)
        if parts.path == "/-/set":
            given = dict(parse_qsl(parts.query))
            faults = replace(BAD_DAY, seed=int(given["seed"])) if "seed" in given else None
            self.set(float(given["latency"]), float(given["bandwidth"]), faults)
        self._counts.cpu_seconds = time.process_time() - self._cpu
        body = json.dumps(asdict(self._counts)).encode()
        connection.sock.send(_head(200, len(body)) + body)

    def _note(self, target: str, wanted: str) -> None:
        counts = self._counts
        counts.requests += 1
        self._open += 1
        counts.most_open = max(counts.most_open, self._open)
        if len(counts.log) < _LOGGED:
            counts.log.append((round(time.monotonic() - self._began, 4), f"{target} {wanted}"))

    def _answer(self, sock: socket.socket, method: str, target: str, wanted: str) -> Answer:
        """Answer one question."""
        file = self._file(target)
        start, stop, part = _range(wanted, file.size if file else 0)
        act = self._draw(target, start, stop) if self._faults and file else _FINE
        yield time.monotonic() + self._latency * act.slow_factor

        if act.reset == -1:
            # what is left unsent and a closing without lingering: the client gets a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError
        if act.status is not None or file is None or start >= stop:
            body = act.body or b""
            status = 404 if file is None else act.status or 416
            sock.send(
                _head(status, len(body), f"Content-Range: bytes */{file.size if file else 0}\r\n") + body
            )
            return
        about = f"Accept-Ranges: bytes\r\nETag: {file.tag}\r\nLast-Modified: {file.date}\r\n{part}"
        head = _head(206 if part else 200, stop - start, about)
        if method == "HEAD":
            sock.send(head)
            return
        sock.send(head, socket.MSG_MORE)
        yield from self._body(sock, file.descriptor, start, stop, act)

    def _body(self, sock: socket.socket, descriptor: int, start: int, stop: int, act: Act) -> Answer:
        rate = self._bandwidth / act.slow_factor
        pause, pause_seconds = act.pause or (-1, 0.0)
        marks = sorted({mark for mark in (act.cut, pause, stop - start) if mark is not None and mark >= 0})
        sent, due = 0, time.monotonic()
        while True:
            if sent == act.cut:
                raise ConnectionAbortedError
            if sent == pause:
                due += pause_seconds
            if sent == stop - start:
                return
            goal = next(mark for mark in marks if mark > sent)
            if rate:
                goal = min(goal, sent + _PIECE)
                due += (goal - sent) / rate
            if due > time.monotonic():
                yield due
            while sent < goal:
                try:
                    count = os.sendfile(sock.fileno(), descriptor, start + sent, goal - sent)
                except BlockingIOError:
                    yield None
                    continue
                sent += count
                self._counts.bytes += count

    def _draw(self, target: str, start: int, stop: int) -> Act:
        assert self._faults is not None
        what = target, (start, stop)
        self._asked[what] += 1
        return draw(self._faults, *what, stop - start, self._asked[what])

    def _file(self, target: str) -> _File | None:
        if target not in self._files:
            path = self._folder / target.lstrip("/")
            self._files[target] = _File.open(path) if ".." not in path.parts and path.is_file() else None
        return self._files[target]


@dataclass(frozen=True, slots=True)
class _File:
    """What is served, opened once."""

    descriptor: int
    size: int
    tag: str
    date: str

    @classmethod
    def open(cls, path: Path) -> _File:
        """Open a file for good."""
        stat = path.stat()
        date = formatdate(stat.st_mtime, usegmt=True)
        return cls(os.open(path, os.O_RDONLY), stat.st_size, f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', date)


def _range(wanted: str, size: int) -> tuple[int, int, str]:
    """Return what is asked for: first byte, the one after the last, and what the head says of it."""
    if not wanted.startswith("bytes="):
        return 0, size, ""
    first, _, last = wanted[6:].partition("-")
    start, stop = int(first), min(int(last) + 1, size) if last else size
    return start, stop, f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"


def _head(status: int, length: int, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} -\r\nContent-Length: {length}\r\n{more}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Serving:
    """A server in a process of its own, as its clients see it."""

    url: str
    """Its address."""

    def set(self, *, latency: float = 0.0, bandwidth: float = 0.0, seed: int | None = None) -> Counts:
        """Have it behave so from now on, and count anew.

        Args:
            latency: seconds to the first byte.
            bandwidth: bytes a second of each connection; 0 is without a limit.
            seed: of a bad day's faults; None is a good day.
        """
        faults = "" if seed is None else f"&seed={seed}"
        return self._ask(f"set?latency={latency}&bandwidth={bandwidth}{faults}")

    def counts(self) -> Counts:
        """Return what it did since it was set."""
        return self._ask("counts")

    def _ask(self, what: str) -> Counts:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/-/{what}", timeout=30) as answer:
            return Counts(**json.load(answer))


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Serving]:
    """Serve a folder until the end of the block."""
    command = [sys.executable, __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Serving(process.stdout.readline().strip())
        finally:
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float, default=0.0, help="of each connection, bytes a second")
    parser.add_argument("--seed", type=int, help="a bad day, drawn from it")
    options = parser.parse_args()
    server = Server(options.folder, port=options.port)
    faults = None if options.seed is None else replace(BAD_DAY, seed=options.seed)
    server.set(options.latency, options.bandwidth, faults)
    print(server.url, flush=True)
    server.run()


if __name__ == "__main__":
    main()
