"""aioload: an asyncio-native streaming data loader for PyTorch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import batching, cache, collate, decode
    from ._version import __version__
    from .compose import Concat, Mix
    from .dataset import Dataset
    from .dropin import from_dataset
    from .errors import (
        AioloadError,
        ClosedError,
        ConfigError,
        NotFoundError,
        SampleError,
        ShardError,
        StorageError,
        WorkerError,
    )
    from .live import metrics, progress
    from .loader import Loader
    from .packing.mapping import map
    from .policy import Skip
    from .prefetch import DevicePrefetcher
    from .shard.writer import Writer
    from .stats import LoaderStats
    from .sync import SyncLoader
    from .tracing import trace
else:
    from ._front import __dir__ as __dir__
    from ._front import __getattr__ as __getattr__

__all__ = [
    "AioloadError",
    "ClosedError",
    "Concat",
    "ConfigError",
    "Dataset",
    "DevicePrefetcher",
    "Loader",
    "LoaderStats",
    "Mix",
    "NotFoundError",
    "SampleError",
    "ShardError",
    "Skip",
    "StorageError",
    "SyncLoader",
    "WorkerError",
    "Writer",
    "__version__",
    "batching",
    "cache",
    "collate",
    "decode",
    "from_dataset",
    "map",
    "metrics",
    "progress",
    "trace",
]
