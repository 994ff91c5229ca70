"""A place where connections are never made: what asks for one waits, as behind a cable that was pulled."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

__all__ = ["deaf"]

_CALLERS = 8  # more than wait for a listener that takes none


@contextmanager
def deaf() -> Iterator[str]:
    """Listen, let others take all places in the queue, and give the address."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(_CALLERS):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            with suppress(BlockingIOError):
                caller.connect(address)
        yield f"http://127.0.0.1:{address[1]}"
