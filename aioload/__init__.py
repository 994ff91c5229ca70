"""aioload: an asyncio-native streaming data loader for PyTorch."""

from . import collate, decode
from ._version import __version__
from .dataset import Dataset
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
from .loader import Loader
from .policy import Skip
from .shard.writer import Writer
from .stats import LoaderStats
from .sync import SyncLoader

__all__ = [
    "AioloadError",
    "ClosedError",
    "ConfigError",
    "Dataset",
    "Loader",
    "LoaderStats",
    "NotFoundError",
    "SampleError",
    "ShardError",
    "Skip",
    "StorageError",
    "SyncLoader",
    "WorkerError",
    "Writer",
    "__version__",
    "collate",
    "decode",
]
