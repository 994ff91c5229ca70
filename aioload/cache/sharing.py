"""Sharing: one memory of samples for all ranks of a machine.

The first rank makes it and hands its descriptor to whoever asks, through a socket whose name is in no file
system and goes with its process. The others keep what they got, so nobody depends on the first to live on,
and nothing is left of any of them. A socket is asked only if it is of the same user.
"""

from __future__ import annotations

import errno
import hashlib
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from .memory import MemoryStore

__all__ = ["Host", "name_of_job", "share"]

_PATIENCE = 5.0  # for the first rank to have its memory
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 2.0  # a process that was stopped, or forked, answers nobody
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Host:
    """Hands a memory to others until it is closed.

    Args:
        listening: the socket.
        store: the memory.
    """

    def __init__(self, listening: socket.socket, store: MemoryStore) -> None:
        self._listening = listening
        self._store = store
        self._closing, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="aioload-cache", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand it to nobody any more; whoever has it keeps it."""
        self._wake.close()
        self._thread.join(_ANSWER_SECONDS)

    def _serve(self) -> None:
        with self._listening, self._closing, selectors.DefaultSelector() as selector:
            for one in (self._listening, self._closing):
                selector.register(one, selectors.EVENT_READ)
            while all(key.fileobj is not self._closing for key, _ in selector.select()):
                try:
                    other, _ = self._listening.accept()
                except OSError:
                    continue
                with other:
                    self._answer(other)

    def _answer(self, other: socket.socket) -> None:
        if _is_ours(other) and self._store.fd >= 0:
            try:
                other.settimeout(_ANSWER_SECONDS)
                socket.send_fds(other, [b"\0"], [self._store.fd])
            except OSError:
                return


def share(name: str, make: Callable[[], MemoryStore]) -> tuple[MemoryStore, Host | None] | None:
    """Return the memory of this name, and what hands it to others if it was made here.

    Args:
        name: the same for those who share.
        make: makes one.

    Returns:
        None where nothing can be shared.

    Raises:
        OSError: `make` has failed.
    """
    if not sys.platform.startswith("linux"):
        return None
    address = f"\0aioload-cache-{os.getuid()}-{name}"
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            listening = _bind(address)
        except OSError:  # a sandbox that has no such sockets, say
            return None
        if listening is not None:
            return _hosted(listening, make)
        found = _ask(address)
        if found is not None:
            return found, None
        time.sleep(_POLL_SECONDS)
    return None


def name_of_job(*facts: object) -> str:
    """Return a name for what these facts tell apart, in this job of several ranks."""
    places = [os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
    return hashlib.blake2b(repr((facts, places)).encode(), digest_size=16).hexdigest()


def _bind(address: str) -> socket.socket | None:
    """Return a socket of this name; None where somebody has it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(address)
    except OSError as error:
        made.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return made


def _hosted(listening: socket.socket, make: Callable[[], MemoryStore]) -> tuple[MemoryStore, Host]:
    """Return a new memory, and what hands it to those who ask this socket."""
    try:
        store = make()
        listening.listen(64)
    except BaseException:
        listening.close()  # others would wait for it
        raise
    return store, Host(listening, store)


def _ask(address: str) -> MemoryStore | None:
    """Return the memory that whoever has this name hands out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(address)
            if not _is_ours(asking):
                return None
            _, fds, *_ = socket.recv_fds(asking, 1, 1)
        except OSError:  # not listening yet, or gone
            return None
    for fd in fds[:1]:
        os.set_inheritable(fd, False)
        try:
            return MemoryStore(fd)
        except (OSError, ValueError):
            return None
    return None


def _is_ours(other: socket.socket) -> bool:
    """Tell whether the other end is of the same user."""
    told = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.getuid())
