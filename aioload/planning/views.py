"""Views: what can be planned for, a set or pictures that may become one, as the forecast asks about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

from ..benching.pattern import Pattern, pattern_of, ranges_of
from ..benching.place import is_local, is_mapped, path_of
from ..benching.shape import access_of, plan_of
from ..machine import available_memory
from .costs import Demand, Epochs, Subject, Work, epochs_of
from .files import Files, packed_pattern, packing_seconds, pattern_of_files
from .media import PRESETS, Medium, guess
from .probe import Probed, probe
from .verdict import Choice

if TYPE_CHECKING:
    from ..benching.setup import Setup
    from ..dataset import Dataset

__all__ = ["Pictures", "Shards", "View"]

_PAGE_CACHE = 0.7  # of the memory that is free: what a set may take of it, and still be there next epoch


class View(Protocol):
    """What can be planned for."""

    subject: Subject
    """What is loaded."""

    def medium(self) -> Medium:
        """Return what it lies on, by its path."""

    def is_mapped(self, num_workers: int) -> bool:
        """Tell whether workers would map its files."""

    def pattern(self, medium: Medium) -> Pattern:
        """Return its reads as it is, those of all ranks."""

    def probe(self, seconds: float) -> Probed | None:
        """Measure its storage; None where that needs a set."""

    def others(self, medium: Medium, work: Work, demand: Demand, leave: Epochs) -> Iterator[Choice]:
        """Yield the ways other than leaving it as it is, whose epochs are given."""


class Shards:
    """A set, packed or of others.

    Args:
        dataset: the set.
        setup: how it is loaded.
        demand: what the training asks for.
    """

    def __init__(self, dataset: Dataset, setup: Setup, demand: Demand) -> None:
        index = dataset.index
        data_bytes = int(index.positions[-1])
        self._dataset, self._setup, self._gpus = dataset, setup, demand.gpus
        self.subject = Subject(
            source=dataset.source,
            kind=dataset.kind,
            records=len(dataset),
            data_bytes=data_bytes,
            shards=len(index.shards),
            is_network=not is_local(dataset),
            fits_in_memory=_fits(data_bytes),
        )

    def medium(self) -> Medium:
        """Return what it lies on, by its path."""
        return guess(path_of(self._dataset))

    def is_mapped(self, num_workers: int) -> bool:
        """Tell whether workers would map its files."""
        return is_mapped(self._dataset, num_workers=num_workers)

    def pattern(self, medium: Medium) -> Pattern:
        """Return its reads as it is, those of all ranks."""
        plan = plan_of(self._dataset, self._setup, world_size=self._gpus)
        one = pattern_of(plan, access_of(self._dataset, self._setup, world_size=self._gpus))
        return one if self._gpus == 1 else _times(one, self._gpus)

    def probe(self, seconds: float) -> Probed:
        """Measure its storage."""
        plan = plan_of(self._dataset, self._setup, world_size=self._gpus)
        access = access_of(self._dataset, self._setup, world_size=self._gpus)
        return probe(self._dataset, ranges_of(plan, access), seconds)

    def others(self, medium: Medium, work: Work, demand: Demand, leave: Epochs) -> Iterator[Choice]:
        """Yield the other ways."""
        if self.subject.is_network:
            local = replace(self.subject, is_network=False)
            near = epochs_of(local, self.pattern(medium), PRESETS["sata"], work, demand)
            yield Choice("cache", 0.0, replace(leave, later=near.later))


class Pictures:
    """Pictures that lie in files of their own.

    Args:
        files: the pictures.
        seconds_per_record: what packing takes, without the disk.
        setup: how they are loaded.
    """

    def __init__(self, files: Files, seconds_per_record: float, setup: Setup) -> None:
        self._files, self._setup = files, setup
        self._seconds_per_record = seconds_per_record
        self.subject = Subject(
            source=files.root,
            kind="files",
            records=len(files.items),
            data_bytes=files.data_bytes,
            shards=len(files.items),
            is_network=False,
            fits_in_memory=_fits(files.data_bytes),
        )

    def medium(self) -> Medium:
        """Return what it lies on, by its path."""
        return guess(self._files.root)

    def is_mapped(self, num_workers: int) -> bool:
        """Tell whether workers would map its files."""
        return num_workers > 0

    def pattern(self, medium: Medium) -> Pattern:
        """Return its reads as it is, those of all ranks."""
        return pattern_of_files(self._files, medium)

    def probe(self, seconds: float) -> Probed | None:
        """Return None: reads of a set are what is measured."""
        return None

    def others(self, medium: Medium, work: Work, demand: Demand, leave: Epochs) -> Iterator[Choice]:
        """Yield the other ways."""
        packed = epochs_of(self.subject, packed_pattern(self._files, self._setup), medium, work, demand)
        yield Choice("pack", packing_seconds(self._files, self._seconds_per_record, medium), packed)


def _fits(data_bytes: int) -> bool:
    return data_bytes <= available_memory() * _PAGE_CACHE


def _times(pattern: Pattern, ranks: int) -> Pattern:
    """Return the reads of all ranks, each of which has as many."""
    return Pattern(**{name: ranks * count for name, count in asdict(pattern).items()})
