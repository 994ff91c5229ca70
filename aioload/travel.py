"""Travel: can a thing be sent to another process, and if not, what of it cannot?"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from .errors import ConfigError

__all__ = ["check_travels"]

_DEEPEST = 6  # attributes of attributes that are looked through for what is to blame
_MOST_PARTS = 1000  # of a list or dict, likewise


class _Nowhere(io.RawIOBase):
    """Takes what is written, and keeps nothing: a data set may hold all of its data."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))


def check_travels(thing: Any, name: str) -> None:
    """Refuse what cannot be pickled.

    Args:
        thing: to be sent.
        name: of it, in messages.

    Raises:
        ConfigError: names the part that cannot be, and what to do.
    """
    error = _obstacle(thing)
    if error is None:
        return
    path, part, error = _culprit(thing, name, error)
    kind = type(part)
    raise ConfigError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent to the workers "
        f"({type(error).__name__}: {error}); open or make it on first use in __getitem__, leave it out in "
        "__getstate__, or pass num_workers=0",
        part=path,
        cause=repr(error),
    ) from error


def _obstacle(thing: Any) -> Exception | None:
    """Return what pickling a thing raises."""
    try:
        # arrays give their memory by itself, where nobody copies it
        cloudpickle.Pickler(_Nowhere(), protocol=5, buffer_callback=_drop).dump(thing)
    except Exception as error:  # user code may raise anything
        return error
    return None


def _drop(_buffer: Any) -> bool:
    return False


def _culprit(thing: Any, path: str, error: Exception) -> tuple[str, Any, Exception]:
    """Go down to the innermost part that cannot be pickled."""
    for _ in range(_DEEPEST):
        for step, part in _parts(thing):
            found = _obstacle(part)
            if found is not None:
                path, thing, error = f"{path}{step}", part, found
                break
        else:
            break
    return path, thing, error


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, each with how to get there."""
    if isinstance(thing, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in thing.items()]
    elif isinstance(thing, (list, tuple)):
        parts = [(f"[{place}]", part) for place, part in enumerate(thing)]
    else:
        parts = [(f".{name}", part) for name, part in getattr(thing, "__dict__", {}).items()]
    yield from parts[:_MOST_PARTS]
