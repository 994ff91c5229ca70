"""The names of the front door, each imported when it is first used: a worker process needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["HOMES"]

HOMES = {
    "AioloadError": "errors",
    "ClosedError": "errors",
    "Concat": "compose",
    "ConfigError": "errors",
    "Dataset": "dataset",
    "DevicePrefetcher": "prefetch",
    "Loader": "loader",
    "LoaderStats": "stats",
    "Mix": "compose",
    "NotFoundError": "errors",
    "SampleError": "errors",
    "ShardError": "errors",
    "Skip": "policy",
    "StorageError": "errors",
    "SyncLoader": "sync",
    "WorkerError": "errors",
    "Writer": "shard.writer",
    "__version__": "_version",
    "batching": "",
    "cache": "",
    "collate": "",
    "decode": "",
    "from_dataset": "dropin",
    "map": "packing.mapping",
    "metrics": "live",
    "progress": "live",
    "trace": "tracing",
}
"""The module that each public name comes from; none for those that are modules themselves."""


def __getattr__(name: str) -> Any:
    """Import a public name; Python asks here for what the package does not have yet."""
    if name not in HOMES:
        raise AttributeError(f"module 'aioload' has no attribute {name!r}")
    home = HOMES[name]
    return getattr(import_module(f"aioload.{home}"), name) if home else import_module(f"aioload.{name}")


def __dir__() -> list[str]:
    """List the public names for completion."""
    return sorted(HOMES)
