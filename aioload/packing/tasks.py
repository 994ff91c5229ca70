"""Tasks: a set made a shard at a time by whoever is at hand, be it processes here or on other machines.

What goes into each shard is planned ahead, so each is made by itself, and has the same bytes whoever makes
it, when and how often. A task whose shard is there already, and right, leaves it alone: so a run goes on
after it was stopped, and a task that was lost on its way may be done twice.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import cloudpickle
import numpy as np
import numpy.typing as npt

from ..errors import AioloadError, NotFoundError, SampleError, ShardError
from ..shard.footer import Footer, footer_bytes
from ..shard.format import DATA_START, SHARD_TRAILER, NativeFormat, shard_name
from ..shard.kinds import Fields
from ..shard.openshard import OpenShard, encoded
from ..shard.reader import Reader, read_whole
from ..shard.whole import read_shard
from .items import Item, Unreadable
from .prepare import Prepared
from .workplace import Parts, bad_name

__all__ = ["Job", "Made", "ShardTask", "cut_evenly", "cut_full", "forget", "make"]


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be."""

    number: int
    """Of the shard."""
    first: int
    """The first record, or item, of the source."""
    stop: int
    """The one after the last."""
    is_last: bool
    """Whether no shard follows."""
    items: tuple[Item | Unreadable, ...] = ()
    """What goes into it, where it is a few names."""

    @property
    def size(self) -> int:
        """How many records or items."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A shard that was made, or why it was not."""

    task: ShardTask
    """Which."""
    footer: Footer | None
    """What it knows of its records; None where a record is bad and none may be left out."""
    file_bytes: int
    """Size of its file."""
    unreadable: tuple[Unreadable, ...]
    """What is not in it."""
    was_there: bool = False
    """Whether an earlier run had made it."""


class Job(Protocol):
    """What is the same for all shards of a run; travels to whoever makes them."""

    @property
    def parts(self) -> Parts:
        """Where it goes."""

    @property
    def fields(self) -> Fields:
        """Names and kinds."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields whose values the index keeps, too."""

    @property
    def metadata(self) -> Any:
        """Of the set."""

    @property
    def skip_bad(self) -> bool:
        """Whether bad records may be left out; else the first ends a shard."""

    def records(self, task: ShardTask) -> Generator[Prepared | Unreadable, None, None]:
        """Yield what becomes of each record of a shard, in order."""


# planning -------------------------------------------------------------------------------------------


def cut_evenly(sizes: Iterable[npt.NDArray[np.int64]], most_bytes: int) -> list[tuple[int, int]]:
    """Cut records into runs of about so many bytes: one ends before the record that would be too much.

    Args:
        sizes: bytes of each record, some at a time.
        most_bytes: of a run; a record that is larger by itself makes one.
    """
    cuts: list[tuple[int, int]] = []
    first = before = held = 0  # the open run's first record; records of earlier parts; the open run's bytes
    for part in sizes:
        ends = held + np.cumsum(part)
        base = 0  # of the bytes in `ends`, those before the open run
        while (place := int(np.searchsorted(ends, base + most_bytes, side="right"))) < len(part):
            place += before + place == first  # too large by itself
            cuts.append((first, before + place))
            first = before + place
            base = int(ends[place - 1]) if place else held
        before += len(part)
        held = int(ends[-1]) - base if len(part) else held
    return [*cuts, (first, before)] if first < before else cuts


def cut_full(
    sizes: Sequence[int], shard_bytes: int, columns: int, description_bytes: int
) -> list[tuple[int, int]]:
    """Cut records as `Writer` does: a shard ends where its file would become larger than it should.

    Args:
        sizes: bytes of each record as it is stored.
        shard_bytes: of a file.
        columns: that the index keeps.
        description_bytes: of a shard's description.
    """
    cuts, first, data_bytes = [], 0, 0
    for place, size in enumerate(sizes):
        footer = footer_bytes(place - first + 1, columns, description_bytes)
        if place > first and DATA_START + data_bytes + size + footer + SHARD_TRAILER.size > shard_bytes:
            cuts.append((first, place))
            first, data_bytes = place, 0
        data_bytes += size
    if first < len(sizes):
        cuts.append((first, len(sizes)))
    return cuts


# making ---------------------------------------------------------------------------------------------


def make(payload: bytes, task: ShardTask) -> Made:
    """Make a shard, unless it is there.

    Args:
        payload: the pickled `Job`.
        task: which shard.

    Raises:
        ConfigError: the run is not known here.
        StorageError: source or destination failed.
    """
    job = _job(payload)
    empty = Footer.empty(job.fields, job.columns)
    with job.parts.reader() as reader:
        job.parts.check(reader)
        made = _there(reader, job, task, empty)
    return _make(job, task, empty) if made is None else made


def forget() -> None:
    """Let go of what this process has opened for a run."""
    _job.cache_clear()


@functools.lru_cache(maxsize=1)  # a process works for one run at a time, and opens its source once
def _job(payload: bytes) -> Job:
    job: Job = cloudpickle.loads(payload)
    return job


def _there(reader: Reader, job: Job, task: ShardTask, empty: Footer) -> Made | None:
    """Return a shard that an earlier run has made, if it is right to the last byte."""
    try:
        footer, size = read_shard(reader, task.number)
        bad = _bad(reader, task.number)
    except (NotFoundError, ShardError):
        return None
    metadata = job.metadata if task.is_last else None
    described = (footer.fields, [*footer.columns], footer.last, footer.metadata)
    if described != (empty.fields, [*empty.columns], task.is_last, metadata):
        return None
    if len(footer.ends) + sum(each.cost > 0 for each in bad) != task.size:  # others are no records
        return None
    return Made(task, footer, size, bad, was_there=True)


def _bad(reader: Reader, number: int) -> tuple[Unreadable, ...]:
    try:
        return tuple(Unreadable(**each) for each in json.loads(read_whole(reader, bad_name(number))))
    except NotFoundError:
        return ()
    except (ValueError, TypeError) as error:
        raise ShardError(f"{bad_name(number)} is damaged: {error}", shard=bad_name(number)) from error


def _make(job: Job, task: ShardTask, empty: Footer) -> Made:
    files, name = job.parts.files(), shard_name(task.number)
    try:
        shard = OpenShard(files, task.number, empty)
        try:
            unreadable = _fill(shard, job, task)
            if unreadable and not job.skip_bad:
                shard.discard()
                files.give_up(name)
                return Made(task, None, 0, unreadable)
            if unreadable:
                # first: with the shard there, it is known what is not in it
                files.put(bad_name(task.number), json.dumps([asdict(bad) for bad in unreadable]).encode())
            footer = shard.footer(last=task.is_last, metadata=job.metadata if task.is_last else None)
            return Made(task, footer, shard.finish(footer), unreadable)
        except BaseException:
            shard.discard()
            files.give_up(name)
            raise
    except OSError as error:
        if isinstance(error, AioloadError):
            raise
        raise files.translated(error) from error


def _fill(shard: OpenShard, job: Job, task: ShardTask) -> tuple[Unreadable, ...]:
    """Write the records of a shard; return what is not in it, of which the first is enough if none may be."""
    form = NativeFormat(job.fields)
    unreadable: list[Unreadable] = []
    with closing(job.records(task)) as records:
        for record in records:
            bad = record if isinstance(record, Unreadable) else _append(shard, form, job.columns, record)
            if bad is None:
                continue
            unreadable.append(bad)
            if not job.skip_bad:
                break
    return tuple(unreadable)


def _append(
    shard: OpenShard, form: NativeFormat, columns: tuple[str, ...], record: Prepared
) -> Unreadable | None:
    try:
        values = encoded(form, record.values, record.key)
        chunks = form.join(record.key, values)
    except SampleError as error:
        return Unreadable(record.name, str(error), record.cost)
    shard.append(chunks, sum(map(len, chunks)), [values[name] for name in columns])
    return None
