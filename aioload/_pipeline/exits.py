"""Exits: engines end when the interpreter does, and when their loader is forgotten."""

from __future__ import annotations

import threading
import warnings
import weakref

from ..lifetime import at_exit
from .engine import Engine

__all__ = ["close_forgotten", "end", "remember"]

# what an exit hook has to close: no caller could pass it on
_open: weakref.WeakSet[Engine] = weakref.WeakSet()


def remember(engine: Engine) -> None:
    """Have an engine closed at exit."""
    _open.add(engine)


def end(engine: Engine) -> None:
    """Close an engine, and forget it."""
    engine.close()
    _open.discard(engine)


def close_forgotten(engine: Engine, name: str) -> None:
    """Close the engine of a loader that was let go without being closed."""
    if engine not in _open or engine.forked:
        return  # the interpreter exits, and has closed it; or it is another process's

    # in a thread: the last reference may go anywhere, in an event loop too, and nobody expects to wait there
    threading.Thread(target=end, args=(engine,), name="aioload-close", daemon=True).start()
    warnings.warn(  # last, since it may be an error
        f"{name} was never closed; use `async with`, `with loader.sync()` or close()",
        ResourceWarning,
        stacklevel=1,  # it is nobody's line: the loader was collected
    )


def _close_all() -> None:
    Engine.close_all(_open)


at_exit(_close_all)
