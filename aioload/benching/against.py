"""Against: torch's DataLoader over the same records, decoded and transformed by the same functions.

Records are found by the same index and read one at a time, as a map-style set is: from a descriptor that
stays open where files are local, else through a storage that each worker keeps. What is decoded is collated
by torch's own rules, in the worker, and travels as torch has it travel.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import finalize

import numpy as np
import torch
from anyio.from_thread import start_blocking_portal
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as MapStyle

from .._workers.signature import wants_rng
from ..errors import ConfigError
from ..options import decoders
from ..storage import LocalStorage, read
from .place import is_local

if TYPE_CHECKING:
    from ..dataset import Dataset
    from .setup import Setup

__all__ = ["Records", "torch_loader"]


class Records(MapStyle[Any]):
    """A map-style set over records.

    Args:
        dataset: whose records.
        decode: decoders by field.
        transform: the user's.
    """

    def __init__(
        self, dataset: Dataset, decode: Mapping[str, Any], transform: Callable[..., Any] | None
    ) -> None:
        self._dataset = dataset
        self._shards = dataset.index.shards
        self._decode = dataset.decoders_of(dataset.fields, decoders(decode))
        self._with_rng = {
            field
            for field, decoder in self._decode.items()
            if getattr(decoder, "draws", False) and "rng" in inspect.signature(decoder).parameters
        }
        self._transform = transform
        self._wants_rng = transform is not None and wants_rng(transform)
        self._read: Callable[[int, int, int], bytes] | None = None  # of this process

    def __len__(self) -> int:
        return len(self._dataset)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_read": None}

    def __getitem__(self, record: int) -> Any:
        """Read and decode one record."""
        if self._read is None:
            self._read = self._reader()
        located = self._dataset.index.locate(np.array([record], np.int64))
        raw = self._read(int(located.shard[0]), int(located.start[0]), int(located.stop[0]))
        key, payloads = self._dataset.format.split(memoryview(raw))
        rng = np.random.default_rng(torch.initial_seed() ^ record) if self._draws else None
        sample: dict[str, Any] = {}
        for field, decode in self._decode.items():
            options = {"rng": rng} if field in self._with_rng else {}
            sample[field] = decode(payloads[field], **options)
        if self._transform is None:
            return sample
        sample["__key__"] = str(record) if key is None else key
        return self._transform(sample, rng=rng) if self._wants_rng else self._transform(sample)

    @property
    def _draws(self) -> bool:
        return bool(self._with_rng) or self._wants_rng

    def _reader(self) -> Callable[[int, int, int], bytes]:
        storage = self._dataset.open_storage()
        if type(storage) is LocalStorage:
            paths = [storage.path(shard) for shard in self._shards]
            files: dict[int, int] = {}
            finalize(self, _close_all, files)

            def from_disk(shard: int, start: int, stop: int) -> bytes:
                if shard not in files:
                    files[shard] = os.open(paths[shard], os.O_RDONLY | os.O_CLOEXEC)
                return os.pread(files[shard], stop - start, start)

            return from_disk
        portal = start_blocking_portal().__enter__()  # as long as the worker lives

        def from_afar(shard: int, start: int, stop: int) -> bytes:
            return portal.call(read, storage, self._shards[shard], start, stop)

        return from_afar


def _close_all(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)


def torch_loader(dataset: Dataset, setup: Setup, *, num_workers: int) -> Any:
    """Return torch's loader, with the options that most people give it.

    Raises:
        ConfigError: the records are in a network, and there are no workers to read them.
    """
    on_disk = is_local(dataset)
    if not on_disk and not num_workers:
        raise ConfigError("torch is compared over a network with workers only; pass --num-workers 1 or more")
    return DataLoader(
        Records(dataset, setup.decode, setup.transform),
        setup.batch_size,
        shuffle=bool(setup.shuffle),
        num_workers=num_workers,
        collate_fn=setup.collate,
        persistent_workers=num_workers > 0,
        # clients of networks do not survive a fork
        multiprocessing_context=None if on_disk or not num_workers else "forkserver",
    )
