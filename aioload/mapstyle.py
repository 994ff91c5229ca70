"""MapStyle: a data set of the user's that gives samples by number, as a loader sees it.

There are no records: nothing is read, nothing lies beside anything else, and a sample is known by its number
alone. So each has no bytes, and a shuffle is a permutation of the numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._workers.items import Items
from .collection import Collection, Source
from .errors import ConfigError
from .order import Blocks
from .table import Place, RecordTable, Spans, name_content

__all__ = ["MapStyle"]

Records = NDArray[np.int64]


class MapStyle(Collection):
    """A user's data set.

    Args:
        dataset: has `__getitem__` and `__len__`, and `__getitems__` if samples are asked for together.
        batched: whether they are.
        version: of the content, a number or text; a state knows it.

    Raises:
        ConfigError: the data set is iterable only, or lacks a method.
    """

    def __init__(self, dataset: Any, *, batched: bool = False, version: int | str | None = None) -> None:
        size = _checked_size(dataset, "__getitems__" if batched else "__getitem__")
        if version is not None and type(version) not in (int, str):
            raise ConfigError(f"version must be a number or a text, got {version!r}")
        self.dataset = dataset
        """The user's own."""
        self.items = Items(dataset, batched)
        self.packages = ("torch",) if _is_torchs(dataset) else ()
        self.source = _name(dataset)
        self._table = _MapTable(size, self.source, name_content("map", size, *_identity(dataset), version))

    @property
    def table(self) -> RecordTable:
        """The numbers, as a loader sees them."""
        return self._table

    @property
    def sources(self) -> tuple[Source, ...]:
        """No packed sets."""
        return ()

    @property
    def fields(self) -> dict[str, str]:
        """None: samples are what the data set makes."""
        return {}

    @property
    def encodings(self) -> dict[str, str]:
        """None."""
        return {}

    @property
    def metadata(self) -> None:
        """None."""
        return

    def __getitem__(self, number: int) -> Any:
        """Return one sample, made in this process; negative numbers count from the end.

        Raises:
            IndexError: there is no such sample.
        """
        place = operator.index(number)
        if not -len(self) <= place < len(self):
            raise IndexError(f"samples are 0 to {len(self) - 1}, asked for {number}")
        assert self.items is not None
        return self.items.one(place % len(self))


class _MapTable(RecordTable):
    """Numbers, each a record of no bytes in a shard that is none."""

    def __init__(self, size: int, name: str, fingerprint: str) -> None:
        super().__init__()
        self._size, self._name, self._fingerprint = size, name, fingerprint

    @property
    def shards(self) -> tuple[str, ...]:
        """What errors name."""
        return (self._name,)

    @property
    def shard_sources(self) -> tuple[int, ...]:
        """All are of set 0."""
        return (0,)

    @property
    def sets(self) -> int:
        """One."""
        return 1

    def __len__(self) -> int:
        return self._size

    def places(self, records: Records) -> Place:
        """Return that they lie nowhere."""
        none = np.zeros_like(records)
        return Place(none, none, none, none, None, records)

    def spans(self, first: Records, stop: Records) -> Spans:
        """Return that they take nothing."""
        none = np.zeros_like(first)
        return Spans(none, none, none, none)

    def bytes_before(self, records: Records) -> Records:
        """Return zeros."""
        return np.zeros_like(records)

    def sizes(self) -> Iterator[Records]:
        """Yield nothing: whoever sums up or looks for the largest need not go through them."""
        yield from ()

    def fingerprint(self) -> str:
        """Return a name for what is known of the content."""
        return self._fingerprint

    def largest(self, rows: int, *, as_they_lie: bool) -> int:
        """Return 0."""
        return 0

    def _cut_blocks(self, block_bytes: int) -> Blocks:
        raise ConfigError(
            f"{self._name} has no blocks of neighbours to shuffle: its samples are made one by one; pass "
            'shuffle="full"'
        )


def _checked_size(dataset: Any, method: str) -> int:
    """Return the number of samples."""
    kind = type(dataset).__qualname__
    if isinstance(dataset, (Collection, str, bytes, os.PathLike)):
        raise ConfigError(f"a {kind} goes to aioload.Loader; from_dataset takes data sets of others")
    if hasattr(dataset, "num_workers") and isinstance(getattr(dataset, "batch_size", None), int):
        raise ConfigError(f"{kind} makes batches already; give what it makes them of, such as its .dataset")
    if _bases(dataset) & {("torch.utils.data.dataset", "IterableDataset")} or (
        not hasattr(dataset, method) and hasattr(dataset, "__iter__")
    ):
        raise ConfigError(
            f"{kind} is an iterable data set, which cannot be asked for sample 17: order, ranks and resuming "
            "need a map-style one (__getitem__ and __len__). Pack its samples with aioload.Writer and load "
            "them with aioload.Loader, or keep DataLoader and put aioload.DevicePrefetcher around it"
        )
    if not hasattr(dataset, method):
        raise ConfigError(f"{kind} has no {method}, which gives the samples")
    try:
        return len(dataset)
    except Exception as error:  # user code
        raise ConfigError(
            f"{kind} does not tell how many samples it has ({type(error).__name__}: {error}); give it a "
            "__len__ that does",
            cause=repr(error),
        ) from error


def _bases(dataset: Any) -> set[tuple[str, str]]:
    """Return module and name of each class that a data set is of; torch need not be imported for it."""
    return {(base.__module__, base.__qualname__) for base in type(dataset).__mro__}


def _is_torchs(dataset: Any) -> bool:
    """Tell whether workers must import torch to have the class."""
    return any(module.partition(".")[0] == "torch" for module, _ in _bases(dataset))


def _parts(dataset: Any) -> list[Any]:
    """Return the data sets that one of torch's is made of."""
    if not type(dataset).__module__.startswith("torch.utils.data"):
        return []
    inner = getattr(dataset, "dataset", None)
    return list(getattr(dataset, "datasets", ())) or ([] if inner is None else [inner])


def _name(dataset: Any) -> str:
    """Return what errors call a data set: the classes that it is made of."""
    inner = ", ".join(map(_name, _parts(dataset)[:4]))
    kind = type(dataset).__qualname__
    return f"{kind}({inner})" if inner else kind


def _identity(dataset: Any) -> tuple[Any, ...]:
    """Return what tells a data set from others, as far as anybody can: classes, and picks of a subset."""
    facts: list[Any] = [type(dataset).__qualname__]
    if ("torch.utils.data.dataset", "Subset") in _bases(dataset):
        with contextlib.suppress(TypeError, ValueError):  # indices of its own kind
            picks = np.asarray(dataset.indices, "<i8")
            facts.append(hashlib.blake2b(picks.tobytes(), digest_size=16).hexdigest())
    return *facts, *map(_identity, _parts(dataset))
