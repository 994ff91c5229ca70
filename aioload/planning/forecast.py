"""Forecast: what training on a set will cost, before any of it runs; brings the parts together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..benching.held import hold, is_local, is_mapped
from ..benching.pattern import Pattern, pattern_of, ranges_of
from ..benching.runs import timed
from ..benching.setup import Setup, fitted
from ..benching.shape import access_of, plan_of
from ..blocking import run_blocking
from ..dataset import Dataset
from ..errors import ConfigError
from ..machine import available_memory, usable_cpus
from ..storage import LocalStorage, close
from .costs import Demand, Epochs, StageName, Subject, Work, epochs_of
from .files import Files, find_files, packed_pattern, packed_sample, packing_seconds, pattern_of_files
from .media import PRESETS, Medium, guess
from .probe import Probed, probe
from .verdict import Choice, Verdict, judge

if TYPE_CHECKING:
    from ..collection import Collection

__all__ = ["Forecast", "Wanted", "forecast", "open_subject"]

_PAGE_CACHE = 0.7  # of the memory that is free: what a set may take of it, and still be there next epoch
_COPY_BYTES = 4e9  # bytes a second at which decoded samples would come from memory

Progress = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Wanted:
    """How closely to look."""

    medium: Medium | None = None
    """What the set lies on; None: what its path tells."""
    is_measured: bool = False
    """Measure the storage, rather than take its kind's figures."""
    seconds: float = 3.0
    """For each thing that is measured."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What training on a set will cost."""

    subject: Subject
    """What is loaded."""
    pattern: Pattern
    """An epoch's reads."""
    medium: Medium
    """What they go to."""
    is_cold: bool | None
    """Of a storage that was measured: whether the page cache could be emptied before; None: not known."""
    work: Work
    """What records cost workers."""
    demand: Demand
    """What the training asks for."""
    epochs: Epochs
    """What epochs take, as it is."""
    choices: tuple[Choice, ...]
    """All ways that were weighed, that one first."""
    verdict: Verdict
    """What to do."""
    notes: tuple[str, ...]
    """What whoever reads it should know."""


def open_subject(
    source: str | Sequence[str],
    *,
    fields: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset | Files:
    """Return what there is to plan for: a set, or a folder of pictures that are not packed.

    Args:
        source: as `Dataset` takes it, or such a folder.
        fields: as `Dataset` takes them.
        storage_options: likewise.

    Raises:
        ConfigError: an option does not go with it.
    """
    files = find_files(source) if isinstance(source, str) else None
    if files is None:
        return Dataset(source, fields=fields, storage_options=storage_options)
    if fields or storage_options:
        raise ConfigError(f"{source} holds pictures: fields and storage options go with shards and addresses")
    return files


def forecast(
    subject: Dataset | Files,
    setup: Setup,
    demand: Demand,
    wanted: Wanted | None = None,
    *,
    progress: Progress = float,
) -> Forecast:
    """Return what training on a set will cost.

    Args:
        subject: the set, or pictures that are not packed.
        setup: how it is loaded; `batch_size` and `num_workers` are those of one rank.
        demand: what the training asks for.
        wanted: how closely to look.
        progress: told of the seconds that went by.

    Raises:
        ConfigError: there is nothing there, or an option cannot be.
        SampleError: a sample cannot be made.
        StorageError: the storage failed.
    """
    wanted = wanted or Wanted()
    with ExitStack() as stack:
        if isinstance(subject, Files):
            packed = stack.enter_context(packed_sample(subject))
            view: _View = _Pictures(subject, packed.seconds_per_record, setup)
            sample: Collection = packed.dataset
        else:
            if not len(subject):
                raise ConfigError(f"{subject.source} has no records, so there is nothing to plan")
            view, sample = _Records(subject, setup, demand), stack.enter_context(hold(subject))
        work, notes = _measure_work(sample, setup, demand, view, wanted.seconds, progress)
        return _weigh(view, work, demand, wanted, notes, progress)


class _View:
    """What can be planned for: a set, or pictures that are to become one."""

    subject: Subject

    def medium(self) -> Medium:
        """Return what it lies on, by its path."""
        raise NotImplementedError

    def is_mapped(self, num_workers: int) -> bool:
        """Tell whether workers would map its files."""
        raise NotImplementedError

    def pattern(self, medium: Medium) -> Pattern:
        """Return its reads as it is, those of all ranks."""
        raise NotImplementedError

    def probe(self, seconds: float) -> Probed | None:
        """Measure its storage; None where that needs a set."""
        raise NotImplementedError

    def others(self, medium: Medium, work: Work, demand: Demand) -> Iterator[Choice]:
        """Yield the other ways."""
        raise NotImplementedError


class _Records(_View):
    def __init__(self, dataset: Dataset, setup: Setup, demand: Demand) -> None:
        index = dataset.index
        data_bytes = int(index.positions[-1])
        self._dataset, self._setup, self._gpus = dataset, setup, demand.gpus
        self.subject = Subject(
            dataset.source,
            dataset.kind,
            len(dataset),
            data_bytes,
            len(index.shards),
            not is_local(dataset),
            _fits(data_bytes),
        )

    def medium(self) -> Medium:
        return guess(_path_of(self._dataset))

    def is_mapped(self, num_workers: int) -> bool:
        return is_mapped(self._dataset, num_workers=num_workers)

    def pattern(self, medium: Medium) -> Pattern:
        plan = plan_of(self._dataset, self._setup, world_size=self._gpus)
        one = pattern_of(plan, access_of(self._dataset, self._setup, world_size=self._gpus))
        return one if self._gpus == 1 else _times(one, self._gpus)

    def probe(self, seconds: float) -> Probed:
        plan = plan_of(self._dataset, self._setup, world_size=self._gpus)
        access = access_of(self._dataset, self._setup, world_size=self._gpus)
        return probe(self._dataset, ranges_of(plan, access), seconds)

    def others(self, medium: Medium, work: Work, demand: Demand) -> Iterator[Choice]:
        if self.subject.is_network:
            yield Choice("cache", 0.0, _cached(self.subject, self.pattern(medium), medium, work, demand))


class _Pictures(_View):
    def __init__(self, files: Files, seconds_per_record: float, setup: Setup) -> None:
        self._files, self._setup = files, setup
        self._seconds_per_record = seconds_per_record
        count, data_bytes = len(files.items), files.data_bytes
        self.subject = Subject(files.root, "files", count, data_bytes, count, False, _fits(data_bytes))

    def medium(self) -> Medium:
        return guess(self._files.root)

    def is_mapped(self, num_workers: int) -> bool:
        return num_workers > 0

    def pattern(self, medium: Medium) -> Pattern:
        return pattern_of_files(self._files, medium)

    def probe(self, seconds: float) -> Probed | None:
        return None

    def others(self, medium: Medium, work: Work, demand: Demand) -> Iterator[Choice]:
        packed = epochs_of(self.subject, packed_pattern(self._files, self._setup), medium, work, demand)
        yield Choice("pack", packing_seconds(self._files, self._seconds_per_record, medium), packed)


def _measure_work(
    sample: Collection, setup: Setup, demand: Demand, view: _View, seconds: float, progress: Progress
) -> tuple[Work, tuple[str, ...]]:
    """Decode a sample as the workers of all ranks together would; return what it costs, and notes."""
    workers = setup.loader(sample).num_workers
    if setup.num_workers != "auto":
        workers *= demand.gpus
    setup, ragged = fitted(replace(setup, num_workers=workers), sample)
    reads = "mmap" if workers and view.is_mapped(workers) and _has_sums(sample) else "file"
    with setup.loader(sample, reads=reads).sync() as batches:
        rate = timed(batches, seconds, progress=progress)
    work = Work(
        workers,
        rate.samples_per_second,
        rate.cpu_seconds / max(rate.samples, 1),
        rate.batch_bytes / max(rate.samples, 1),
        rate.first_seconds,
        usable_cpus(),
        is_random=setup.transform is not None or any(map(_draws, setup.decode.values())),
    )
    notes = [f"values of {', '.join(ragged)} differ in shape: no batch could be stacked, see --size"] * bool(
        ragged
    )
    return work, tuple(notes)


def _weigh(
    view: _View, work: Work, demand: Demand, wanted: Wanted, notes: tuple[str, ...], progress: Progress
) -> Forecast:
    medium, measured = wanted.medium or view.medium(), None
    probed = view.probe(wanted.seconds) if wanted.is_measured else None
    if wanted.is_measured and probed is None:
        notes += (f"files that are not packed are not measured; these are the figures of {medium.name}",)
    pattern = view.pattern(medium)
    is_cold = None
    if probed is not None:
        progress(wanted.seconds)
        medium, is_cold = probed.medium, probed.is_cold
        measured = pattern.read_bytes / max(probed.traffic.bytes_per_second, 1.0)
        read_cpu = probed.traffic.cpu_seconds / max(probed.traffic.read_bytes, 1)
        work = replace(work, read_cpu=read_cpu)  # also of mapped files, whose pages the kernel must fill
        if is_cold is False:
            notes += (
                "the kernel kept the ranges in its page cache that it was asked to drop, so the storage "
                "may be slower than measured",
            )
    epochs = epochs_of(view.subject, pattern, medium, work, demand, storage_seconds=measured)
    memory = available_memory()
    choices = [Choice("leave", 0.0, epochs), *view.others(medium, work, demand)]
    decoded = view.subject.records * work.batch_bytes
    if not work.is_random and decoded <= memory / 2:
        choices.append(Choice("keep", 0.0, _kept(epochs, decoded)))
    verdict = judge(view.subject, choices, work, demand, memory_bytes=memory)
    return Forecast(
        view.subject, pattern, medium, is_cold, work, demand, epochs, tuple(choices), verdict, notes
    )


def _cached(subject: Subject, pattern: Pattern, medium: Medium, work: Work, demand: Demand) -> Epochs:
    """Return epochs of a set in the network whose bytes a disk of this machine keeps."""
    first = epochs_of(subject, pattern, medium, work, demand)
    later = epochs_of(replace(subject, is_network=False), pattern, PRESETS["sata"], work, demand)
    return replace(first, later=later.later)


def _kept(epochs: Epochs, decoded: float) -> Epochs:
    """Return epochs of which only the first decodes."""
    spared: tuple[StageName, ...] = ("storage", "decode")
    later = tuple(
        replace(stage, seconds=decoded / _COPY_BYTES if stage.name == "decode" else 0.0)
        if stage.name in spared
        else stage
        for stage in epochs.later
    )
    return replace(epochs, later=later)


def _fits(data_bytes: int) -> bool:
    return data_bytes <= available_memory() * _PAGE_CACHE


def _times(pattern: Pattern, ranks: int) -> Pattern:
    """Return the reads of all ranks, each of which has as many."""
    return Pattern(
        pattern.records * ranks,
        pattern.record_bytes * ranks,
        pattern.reads * ranks,
        pattern.seeks * ranks,
        pattern.requests * ranks,
        pattern.read_bytes * ranks,
    )


def _draws(decoder: Any) -> bool:
    return bool(getattr(decoder, "draws", False))


def _has_sums(sample: Collection) -> bool:
    return all(source.index.sums is not None for source in sample.sources)


def _path_of(dataset: Dataset) -> str:
    """Return the path of a set's first shard, or its address."""
    storage = dataset.open_storage()
    try:
        if isinstance(storage, LocalStorage) and dataset.index.shards:
            return storage.path(dataset.index.shards[0])
        return dataset.source
    finally:
        run_blocking(close(storage))
