"""A server that answers as it is told, byte by byte: for what no real server can be brought to say."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["Answer", "Scripted", "scripted"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back for one request."""

    status: str = "206 Partial Content"
    """Status and reason."""

    headers: tuple[tuple[str, str], ...] = ()
    """All of them, but for the length."""

    body: bytes = b""
    """What follows."""

    length: int | None = None
    """The length that is told, if not that of the body; nothing more comes, and the connection ends."""

    ends: str = "close"
    """How it ends where the told length is longer: "close", "reset", or "stall" until the server is left."""


@dataclass
class Scripted:
    """A server that runs."""

    endpoint: str
    """Where it answers."""

    answers: list[Answer] = field(default_factory=list)
    """What is still to be said; the last is said again and again."""

    requests: list[str] = field(default_factory=list)
    """What was asked: first lines and headers."""

    left: threading.Event = field(default_factory=threading.Event)
    """Set when the test is over, so that nobody waits for a stalled answer."""


@contextmanager
def scripted(answers: Sequence[Answer]) -> Iterator[Scripted]:
    """Run a server of threads on the loopback address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = Scripted(f"http://127.0.0.1:{listening.getsockname()[1]}", list(answers))
    threads: list[threading.Thread] = []
    accepting = threading.Thread(target=_accept, args=(listening, server, threads))
    accepting.start()
    try:
        yield server
    finally:
        server.left.set()
        listening.shutdown(socket.SHUT_RDWR)
        for thread in [accepting, *threads]:
            thread.join()
        listening.close()


def _accept(listening: socket.socket, server: Scripted, threads: list[threading.Thread]) -> None:
    with suppress(OSError):  # the listening socket was closed
        while True:
            connection, _ = listening.accept()
            thread = threading.Thread(target=_serve, args=(connection, server))
            thread.start()
            threads.append(thread)


def _serve(connection: socket.socket, server: Scripted) -> None:
    connection.settimeout(0.05)
    with connection, suppress(ConnectionError):
        while (request := _request(connection, server)) is not None:
            server.requests.append(request)
            answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
            connection.settimeout(10)
            connection.sendall(_rendered(answer, request))
            if answer.length is not None and answer.length != len(answer.body):
                return _end(connection, server, answer.ends)
            connection.settimeout(0.05)


def _request(connection: socket.socket, server: Scripted) -> str | None:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        try:
            part = connection.recv(65536)
        except TimeoutError:
            if server.left.is_set():
                return None
            continue
        if not part:
            return None
        data += part
    return data.decode()


def _rendered(answer: Answer, request: str) -> bytes:
    length = len(answer.body) if answer.length is None else answer.length
    lines = [f"HTTP/1.1 {answer.status}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    body = b"" if request.startswith("HEAD") else answer.body
    return "\r\n".join([*lines, "", ""]).encode() + body


def _end(connection: socket.socket, server: Scripted, ends: str) -> None:
    if ends == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if ends == "stall":
        server.left.wait(30)
