"""Travel: how a user's data set gets to another process, and if it cannot, what of it is to blame.

Functions and classes of the main script travel by value, as cloudpickle has it. Arrays over a mapped file
travel as the file's name: whoever maps a terabyte does not mean it to be copied.
"""

from __future__ import annotations

import io
import mmap
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

__all__ = ["check_travels", "packed"]

_DEEPEST = 6  # attributes of attributes that are looked through for what is to blame
_MOST_PARTS = 1000  # of a list or dict, likewise


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """Pickles by value, but for what lies in files."""

    def reducer_override(self, thing: Any) -> Any:
        """Say how a thing is made again, where that is not as usual."""
        if isinstance(thing, np.ndarray):
            return _by_name(thing) or NotImplemented
        return super().reducer_override(thing)


class _Scales(io.RawIOBase):
    """Weighs what is written, and keeps nothing: a data set may hold all of its data."""

    weight = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.weight += size
        return size

    def lay_aside(self, buffer: pickle.PickleBuffer) -> None:
        """Weigh the memory of an array, which nobody copies."""
        self.weight += memoryview(buffer).nbytes


def packed(thing: Any) -> bytes:
    """Return a thing pickled; `pickle.loads` makes it again."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(thing)
    return file.getvalue()


def check_travels(thing: Any, name: str) -> int:
    """Refuse what cannot be pickled; return what it weighs, in bytes.

    Args:
        thing: to be sent.
        name: of it, in messages.

    Raises:
        ConfigError: names the part that cannot be, and what to do.
    """
    try:
        return _weigh(thing)
    except Exception as error:  # user code may raise anything
        path, part, cause = _culprit(thing, name, error)
    kind = type(part)
    raise ConfigError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent to the workers "
        f"({type(cause).__name__}: {cause}); open or make it on first use in __getitem__, leave it out in "
        "__getstate__, or pass num_workers=0",
        part=path,
        cause=repr(cause),
    ) from cause


def _weigh(thing: Any) -> int:
    """Pickle a thing to nowhere."""
    scales = _Scales()
    _Pickler(scales, protocol=5, buffer_callback=scales.lay_aside).dump(thing)
    return scales.weight


def _obstacle(thing: Any) -> Exception | None:
    """Return what pickling a thing raises."""
    try:
        _weigh(thing)
    except Exception as error:
        return error
    return None


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


def _by_name(array: NDArray[Any]) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return how to map an array's file again; None where it lies in no file, or not in one piece."""
    mapping: Any = array
    while isinstance(mapping.base, np.ndarray):
        mapping = mapping.base
    if not isinstance(mapping, np.memmap) or not isinstance(mapping.base, mmap.mmap):
        return None
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    if mapping.filename is None or order is None or not array.size:
        return None
    # a part of a mapping keeps the offset of the whole
    start = mapping.offset + array.__array_interface__["data"][0] - mapping.__array_interface__["data"][0]
    mode = "r+" if mapping.mode == "w+" else mapping.mode
    return _mapped, (str(mapping.filename), array.dtype, mode, start, array.shape, order)


def _mapped(
    name: str, dtype: np.dtype[Any], mode: Any, start: int, shape: tuple[int, ...], order: Any
) -> Any:
    return np.memmap(name, dtype, mode, start, shape, order)
