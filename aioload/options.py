"""Options: what a loader is given, checked before anything starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Literal

import cloudpickle

from ._pipeline.deliver import OUTPUTS, Output
from ._workers.signature import refuse_rng, wants_rng
from .cache.tiers import Tiers
from .decode import for_kind
from .errors import ConfigError
from .machine import available_memory, local_world_size, parse_bytes, usable_cpus
from .order import Shuffle
from .part import readers_of_piece

__all__ = [
    "Collate",
    "Decode",
    "Prepare",
    "Transform",
    "byte_limit",
    "cache_tiers",
    "check_functions",
    "count",
    "decoders",
    "is_users",
    "output_of",
    "packages",
    "seconds",
    "warn_of_lanes",
    "warn_once",
    "workers",
]

_log = logging.getLogger("aioload.loader")

_MAX_AUTO_MEMORY = 2 << 30
_MANY_READERS = 4  # of a piece, from which a warning says so
_NOT_SMALL = 1 << 30  # bytes of a set
_WORKERS_PER_CPU = 4  # at most, where workers mostly wait

Transform = Callable[..., Any]
Prepare = Callable[[dict[str, Any]], dict[str, Any]]
Collate = Callable[[list[Any]], Any]
Decode = Mapping[str, "Callable[[memoryview], Any] | Literal['raw']"]


def count(name: str, value: Any, *, least: int) -> int:
    """Return a whole number, having checked it."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value.__index__())


def seconds(name: str, value: Any) -> float:
    """Return a time in seconds, having checked it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
    return value


def workers(value: Any) -> tuple[int, int | None]:
    """Return how many worker processes an option means, and how many may become of them if that is open."""
    if value == "auto":
        cpus = max(1, usable_cpus() // local_world_size())
        return cpus, _WORKERS_PER_CPU * cpus
    return count("num_workers", value, least=0), None


def decoders(decode: Decode | None) -> dict[str, Any]:
    """Check the decoders that the user gave and give names their objects."""
    if decode is not None and not isinstance(decode, Mapping):
        raise ConfigError(f"decode must be a dict of decoders by field, got {decode!r}")
    found: dict[str, Any] = {}
    for field, decoder in (decode or {}).items():
        if decoder == "raw":
            found[field] = for_kind("bytes")
        elif callable(decoder):
            found[field] = decoder
        else:
            raise ConfigError(f'decode[{field!r}] must be a decoder or "raw", got {decoder!r}')
    return found


def output_of(name: Any, device: Any, *, converts: bool) -> Output:
    """Return what batches are made of, having checked that what is asked for goes with it.

    Args:
        name: as `Loader` takes it.
        device: likewise; None and "cpu" go with everything.
        converts: whether conversions are asked for, which are torch's.
    """
    if not isinstance(name, str) or name not in OUTPUTS:
        raise ConfigError(f'output must be "torch" or "numpy", got {name!r}')
    if name == "numpy" and (converts or device not in (None, "cpu")):
        raise ConfigError(
            'output="numpy" gives arrays in host memory, without torch; device, channels_last, dtype, mean '
            "and std are for tensors: leave them out, and let what takes the arrays copy and convert"
        )
    return OUTPUTS[name]


def is_users(decoder: Any) -> bool:
    """Tell a decoder of the user's from one of ours, which needs no global generators."""
    return not type(decoder).__module__.startswith(for_kind.__module__.rpartition(".")[0])


def packages(decode: Mapping[str, Any]) -> list[str]:
    """Return what workers will import for the decoders that the user gave, if it is installed.

    Where none of them says, there may be pictures all the same, for other decoders or the transform.
    """
    wanted = {name for decoder in decode.values() for name in getattr(decoder, "packages", ())}
    found = sorted(name for name in wanted if find_spec(name) is not None)
    return found or ["PIL.JpegImagePlugin"]


def check_functions(
    prepare: Prepare | None,
    transform: Transform | None,
    collate: Collate | None,
    decode: Mapping[str, Any],
    *,
    travel: bool,
) -> None:
    """Refuse functions that workers could not get or call.

    Args:
        prepare: of the loader.
        transform: likewise.
        collate: of the loader.
        decode: the decoders that the user gave.
        travel: whether there are worker processes that they must reach.
    """
    functions: dict[str, Any] = {"prepare": prepare, "transform": transform, "collate": collate}
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise ConfigError(f"{name} must be a function or another callable, got {function!r}")
    if prepare is not None:
        refuse_rng(prepare)
    if transform is not None:
        wants_rng(transform)
    functions |= {f"decode[{field!r}]": decoder for field, decoder in decode.items()}
    for name, function in functions.items() if travel else ():
        try:
            cloudpickle.dumps(function)
        except Exception as error:
            raise ConfigError(
                f"{name} cannot be sent to the workers ({type(error).__name__}: {error}); make what it "
                "holds (a lock, a socket, an open file) inside the function or on first use, or pass "
                "num_workers=0",
                cause=repr(error),
            ) from error


def cache_tiers(cache: Any, decode: Mapping[str, Any]) -> Tiers | None:
    """Return where samples are kept; refuse to keep what is random.

    Args:
        cache: of the loader.
        decode: the decoders that the user gave.
    """
    tiers = Tiers.of(cache)
    drawing = [field for field, decoder in decode.items() if getattr(decoder, "draws", False)]
    if tiers is not None and drawing:
        raise ConfigError(
            f"decode[{drawing[0]!r}] draws random numbers for each value, so what it gives must not be kept; "
            "draw them in transform, from its rng, or leave cache out"
        )
    return tiers


def byte_limit(limit: int | str) -> int:
    """Return the bytes that a pipeline may use."""
    if limit != "auto":
        return parse_bytes(limit, name="memory_limit")
    return min(_MAX_AUTO_MEMORY, available_memory() // 4 // local_world_size())


def warn_of_lanes(shuffle: Shuffle, world_size: int, data_bytes: int) -> None:
    """Warn where many ranks would read the same pieces of a set that is not small."""
    readers = readers_of_piece(world_size, shuffle.lanes)
    if shuffle.mode == "block" and readers >= _MANY_READERS and data_bytes >= _NOT_SMALL:
        lanes = -(-max(shuffle.lanes, world_size) // world_size) * world_size
        _log.warning(
            "%d ranks do not divide %d lanes: each piece of the set is needed by %d of them. lanes=%d would "
            "spare that; it is part of the order, so choose it before the first epoch",
            world_size,
            shuffle.lanes,
            readers,
            lanes,
        )


def warn_once() -> Callable[[], None]:
    """Return what warns, the first time, that kept batches fill the memory."""
    warned: list[bool] = []

    def warn() -> None:
        if not warned:
            warned.append(True)
            _log.warning(
                "the program keeps so many batches that they fill a quarter of memory_limit; further ones "
                "are handed over as private copies, outside the limit. Let batches go, copy what you keep, "
                "or raise memory_limit"
            )

    return warn
