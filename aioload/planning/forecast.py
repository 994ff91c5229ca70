"""Forecast: what training on a set will cost, before any of it runs; brings the parts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..benching.held import hold
from ..benching.pattern import Pattern
from ..benching.runs import Progress, lasts, timed
from ..benching.setup import TO_STACK, Setup, fitted
from ..dataset import Dataset
from ..errors import ConfigError
from ..machine import available_memory, usable_cpus
from .costs import Demand, Epochs, StageName, Subject, Work, epochs_of
from .files import Files, find_files, packed_sample
from .media import Medium
from .verdict import Choice, Verdict, judge
from .views import Pictures, Shards, View

if TYPE_CHECKING:
    from ..collection import Collection

__all__ = ["Forecast", "Wanted", "forecast", "open_subject", "seconds_of"]

_CROWDED = 1.5  # times the CPU time that jobs took: beyond, what was measured is not this program's alone
_DISK_CPU, _NETWORK_CPU = 0.25e-9, 1e-9  # seconds a byte in reads of 256 KiB, see DESIGN.md
_COPY_BYTES = 4e9  # bytes a second at which decoded samples would come from memory


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
            view: View = Pictures(subject, packed.seconds_per_record, setup)
            sample: Collection = packed.dataset
        else:
            if not len(subject):
                raise ConfigError(f"{subject.source} has no records, so there is nothing to plan")
            view, sample = Shards(subject, setup, demand), stack.enter_context(hold(subject))
        work, notes = _measure_work(sample, setup, demand, view, wanted.seconds, progress)
        return _weigh(view, work, demand, wanted, notes, progress)


def seconds_of(wanted: Wanted) -> float:
    """Return about how long all of it takes, for a bar."""
    return lasts(wanted.seconds) + wanted.is_measured * wanted.seconds


def _measure_work(
    sample: Collection, setup: Setup, demand: Demand, view: View, seconds: float, progress: Progress
) -> tuple[Work, tuple[str, ...]]:
    """Decode a sample as the workers of all ranks together would; return what it costs, and notes."""
    workers = setup.loader(sample).num_workers
    if setup.num_workers != "auto":
        workers *= demand.gpus
    setup, ragged = fitted(replace(setup, num_workers=workers), sample)
    # mapped where that can be: what reads cost comes from elsewhere, and the workers should not wait for any
    reads = "mmap" if workers and _has_sums(sample) else "file"
    with setup.loader(sample, reads=reads).sync() as batches:
        rate = timed(batches, seconds, lambda taken: batches.stats().samples, progress=progress)
        stats = batches.stats()
    core_seconds = rate.cpu_seconds / max(rate.samples, 1)
    work = Work(
        num_workers=workers,
        samples_per_second=rate.samples_per_second,
        core_seconds=core_seconds,
        batch_bytes=rate.batch_bytes / max(rate.samples, 1),
        first_batch_seconds=rate.first_seconds,
        cpus=usable_cpus(),
        is_random=setup.transform is not None or any(map(_draws, setup.decode.values())),
        read_cpu=_read_cpu(view, workers),
    )
    notes = []
    if ragged:
        notes.append(f"values of {', '.join(ragged)} differ in shape and were kept as lists: {TO_STACK}")
    wanted = (stats.work_seconds - stats.blocked_seconds) / max(stats.samples, 1)
    if workers and core_seconds and wanted > _CROWDED * core_seconds:
        notes.append(
            f"other programs had the CPUs for much of the time: workers got {core_seconds / wanted:.0%} of "
            "what they asked for, and decode more when they are alone"
        )
    return work, tuple(notes)


def _weigh(
    view: View, work: Work, demand: Demand, wanted: Wanted, notes: tuple[str, ...], progress: Progress
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
    choices = [Choice("leave", 0.0, epochs), *view.others(medium, work, demand, epochs)]
    decoded = view.subject.records * work.batch_bytes
    if not work.is_random and decoded <= memory / 2:
        choices.append(Choice("keep", 0.0, _kept(epochs, decoded)))
    verdict = judge(view.subject, choices, work, demand, memory_bytes=memory)
    return Forecast(
        view.subject, pattern, medium, is_cold, work, demand, epochs, tuple(choices), verdict, notes
    )


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


def _read_cpu(view: View, workers: int) -> float:
    """Return the usual CPU seconds of a byte that is read."""
    if view.subject.is_network:
        return _NETWORK_CPU
    return 0.0 if view.is_mapped(workers) else _DISK_CPU


def _draws(decoder: Any) -> bool:
    return bool(getattr(decoder, "draws", False))


def _has_sums(sample: Collection) -> bool:
    return all(source.index.sums is not None for source in sample.sources)
