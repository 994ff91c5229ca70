"""Importing: what modules define whose import is what runs just now, such as a script that is imported.

Another process would have to import them, which runs all of it once more there; and a thread of ours that
pickles would wait for the end of an import that waits for the thread. So it travels by value, as that of the
main script does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import cloudpickle

__all__ = ["by_value", "pickled"]


@contextmanager
def by_value() -> Iterator[None]:
    """Have cloudpickle take by value, in any thread, what modules define that this thread is importing."""
    known = cloudpickle.list_registry_pickle_by_value()
    modules = [module for module in _being_imported() if module.__name__ not in known]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def pickled(thing: Any) -> bytes:
    """Return a thing pickled, to be made again in another process."""
    with by_value():
        found: bytes = cloudpickle.dumps(thing)
    return found


def _being_imported() -> list[ModuleType]:
    """Return the modules whose bodies are on this thread's stack, but for the main one."""
    found: dict[str, ModuleType] = {}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "__main__")
        module = sys.modules.get(name)
        if frame.f_code.co_name == "<module>" and name != "__main__" and module is not None:
            found[name] = module
        frame = frame.f_back
    return list(found.values())
