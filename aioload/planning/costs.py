"""Costs: what an epoch takes in each stage, and all of it together; pure.

The model: storage, workers, bus and model work side by side, so a long epoch takes as long as the slowest of
them. Three things are added to that: reads cost CPU that workers would have had, a first epoch waits for its
first batch, and without workers decoding and the model take turns.

- storage: seeks, bytes and requests of the epoch's plan, on a medium. Files that fit into the page cache
  cost nothing from the second epoch on.
- decode: records over the rate that was measured with as many workers at once as there will be, because two
  cores at once are slower than one alone. More ranks on a machine share its workers.
- bus: bytes of batches over what page-locked copies give.
- model: steps of the step time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .media import Medium, read_seconds

if TYPE_CHECKING:
    from ..benching.pattern import Pattern

__all__ = ["BUS_BYTES", "Demand", "Epochs", "Stage", "StageName", "Subject", "Work", "epochs_of"]

BUS_BYTES = 12e9
"""Bytes a second to a device from page-locked memory: 16 lanes of PCIe 3 carry 15.8 GB/s, of which copies
get three quarters."""

StageName = Literal["storage", "decode", "copy", "model"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is to be loaded."""

    source: str
    """Where it lies."""
    kind: str
    """`aioload`, `tar`, `tfrecord`, `mds`, or `files`: pictures that are not packed."""
    records: int
    """How many there are."""
    data_bytes: int
    """Bytes of all of them."""
    shards: int
    """Files that hold them."""
    is_network: bool
    """Whether it lies behind an address or in a storage of the user's."""
    fits_in_memory: bool
    """Whether this machine can keep all of it in its page cache."""


@dataclass(frozen=True, slots=True)
class Work:
    """What records cost workers, measured."""

    num_workers: int
    """Processes at once."""
    samples_per_second: float
    """What they gave together."""
    core_seconds: float
    """That one record takes of all processes together: CPU time, not waiting."""
    batch_bytes: float
    """That come of one record."""
    first_batch_seconds: float
    """From the start to the first batch."""
    cpus: int
    """Of this machine, that may be used."""
    is_random: bool = False
    """Whether a sample differs from epoch to epoch, so that it cannot be kept."""
    read_cpu: float = 0.0
    """CPU seconds of a byte that is read beside the workers."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the training asks for."""

    batch_size: int
    """Samples in a batch, on each rank."""
    gpus: int = 1
    """Ranks on this machine."""
    step_seconds: float | None = None
    """Of the model, for one batch; None: not known."""
    epochs: int = 10
    """That are to be run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage takes of an epoch."""

    name: StageName
    """Which."""
    seconds: float
    """In which it is busy, if nobody holds it up."""
    share_of_step: float | None
    """Of the model's time: above 1 the model waits for it. None where that is not known."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """What the first epoch and each later one take."""

    first: tuple[Stage, ...]
    """Stages of the first."""
    later: tuple[Stage, ...]
    """Stages of each further one."""
    start_seconds: float
    """Before the first batch of the first epoch."""
    is_serial: bool = False
    """Whether records are decoded in the training thread, so that the model waits meanwhile."""

    @property
    def first_seconds(self) -> float:
        """The first epoch."""
        return self.start_seconds + self._together(self.first)

    @property
    def later_seconds(self) -> float:
        """A later epoch."""
        return self._together(self.later)

    @property
    def limit(self) -> Stage:
        """The stage that later epochs wait for."""
        return max(self.later, key=lambda stage: stage.seconds)

    def total(self, epochs: int) -> float:
        """Return what so many epochs take."""
        return self.first_seconds + max(epochs - 1, 0) * self.later_seconds

    def _together(self, stages: tuple[Stage, ...]) -> float:
        """Return how long stages take that work side by side, but for those of one thread."""
        longest = max(stage.seconds for stage in stages)
        in_turn = sum(stage.seconds for stage in stages if stage.name in ("decode", "model"))
        return max(longest, in_turn) if self.is_serial else longest


def epochs_of(
    subject: Subject,
    pattern: Pattern,
    medium: Medium,
    work: Work,
    demand: Demand,
    *,
    storage_seconds: float | None = None,
) -> Epochs:
    """Return what epochs take.

    Args:
        subject: what is loaded.
        pattern: its reads, for one epoch of all ranks.
        medium: where it lies.
        work: what its records cost.
        demand: what the training asks for.
        storage_seconds: of an epoch's reads, where that was measured; else the medium tells.
    """
    storage = storage_seconds
    if storage is None:
        storage = read_seconds(
            medium,
            reads=pattern.reads,
            seeks=pattern.seeks,
            requests=pattern.requests,
            read_bytes=pattern.read_bytes,
        )
    model = model_seconds(subject.records, demand)
    copy = subject.records * work.batch_bytes / BUS_BYTES / demand.gpus
    is_kept = subject.fits_in_memory and not subject.is_network

    def stages(storage_seconds: float) -> tuple[Stage, ...]:
        decode = decode_seconds(subject.records, pattern.read_bytes if storage_seconds else 0, work)
        found: list[tuple[StageName, float]] = [
            ("storage", storage_seconds),
            ("decode", decode),
            ("copy", copy),
        ]
        if model is not None:
            found.append(("model", model))
        return tuple(Stage(name, seconds, seconds / model if model else None) for name, seconds in found)

    first, later = stages(storage), stages(0.0 if is_kept else storage)
    return Epochs(first, later, work.first_batch_seconds, is_serial=not work.num_workers)


def decode_seconds(records: int, read_bytes: int, work: Work) -> float:
    """Return how long workers are busy with so many records, while so many bytes are read beside them."""
    alone = records / work.samples_per_second if work.samples_per_second > 0 else math.inf
    if work.num_workers < work.cpus:
        return alone  # a core is left for the reads
    return alone + read_bytes * work.read_cpu / work.cpus


def model_seconds(records: int, demand: Demand) -> float | None:
    """Return how long the model takes for so many records on all ranks; None where nobody knows."""
    if demand.step_seconds is None:
        return None
    return math.ceil(records / (demand.batch_size * demand.gpus)) * demand.step_seconds
