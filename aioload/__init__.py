"""aioload: an asyncio-native streaming data loader for PyTorch."""

from . import collate, decode
from ._version import __version__
from .compose import Concat, Mix
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
from .shard.writer import Writer
from .stats import LoaderStats
from .sync import SyncLoader

__all__ = [
    "AioloadError",
    "ClosedError",
    "Concat",
    "ConfigError",
    "Dataset",
    "Loader",
    "LoaderStats",
    "Mix",
    "NotFoundError",
    "SampleError",
    "ShardError",
    "StorageError",
    "SyncLoader",
    "WorkerError",
    "Writer",
    "__version__",
    "collate",
    "decode",
]
