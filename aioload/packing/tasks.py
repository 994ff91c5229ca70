"""Tasks: a set made a shard at a time by whoever is at hand, be it processes here or on other machines.

What goes into each shard is planned ahead, so each is made by itself, and has the same bytes whoever makes
it, when and how often. A task whose shard is there already, and right, leaves it alone: so a run goes on
after it was stopped, and a task that was lost on its way may be done twice.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from ..errors import AioloadError, NotFoundError, SampleError, ShardError, WorkerError
from ..shard.footer import Footer, footer_bytes
from ..shard.format import DATA_START, SHARD_TRAILER, NativeFormat, shard_name
from ..shard.index import join_footers, make_manifest, render_index
from ..shard.kinds import Fields
from ..shard.openshard import OpenShard, encoded
from ..shard.reader import Reader, read_whole
from ..shard.whole import read_shard
from .items import Item, Unreadable
from .prepare import Prepared
from .workplace import Parts, Workplace, bad_name

__all__ = [
    "Crew",
    "Job",
    "Made",
    "ShardTask",
    "ask",
    "cut_evenly",
    "cut_full",
    "finish",
    "refused",
    "run",
]

T = TypeVar("T")

_MOST_TRIES = 3  # of a task whose process dies: by then it is the task


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


def cut_evenly(sizes: npt.NDArray[np.int64], most_bytes: int) -> list[tuple[int, int]]:
    """Cut records into runs of about so many bytes: one ends before the record that would be too much.

    Args:
        sizes: bytes of each record.
        most_bytes: of a run; a record that is larger by itself makes one.
    """
    ends = np.cumsum(sizes)
    cuts, first = [], 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        stop = max(int(np.searchsorted(ends, before + most_bytes, side="right")), first + 1)
        cuts.append((first, stop))
        first = stop
    return cuts


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
    if len(footer.ends) + len(bad) != task.size:
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


# running --------------------------------------------------------------------------------------------


class Crew:
    """Who makes the shards; close it when done.

    Args:
        start: calls them in; again, where all were lost.
        stop: ends what they are at, and lets them go.
        width: tells how many tasks they should have at once.
    """

    def __init__(
        self, start: Callable[[], Executor], stop: Callable[[Any], object], width: Callable[[], int]
    ) -> None:
        self.width = width
        self._start = start
        self._stop = stop
        self._executor: Executor | None = None

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Hand over a task.

        Raises:
            BrokenExecutor: they are lost.
        """
        if self._executor is None:
            self._executor = self._start()
        return self._executor.submit(function, *arguments)

    def close(self) -> None:
        """Let all go; others come with the next task. Twice is free."""
        executor, self._executor = self._executor, None
        if executor is not None:
            self._stop(executor)


def run(job: Job, tasks: Iterable[ShardTask], crew: Crew, finished: Callable[[Made], object]) -> None:
    """Have all shards made.

    Args:
        job: what is the same for all.
        tasks: in the order in which they are begun.
        crew: who makes them.
        finished: called with each shard, in the order in which they come; what it raises ends the run.

    Raises:
        WorkerError: processes died again and again over one task, or all were lost.
        AioloadError: a task failed, other than for a bad record.
    """
    waiting, tries = deque(tasks), Counter[int]()
    payload = cloudpickle.dumps(job)
    running: dict[Future[Made], ShardTask] = {}
    while waiting or running:
        lost = _submit(crew, payload, waiting, running)
        for future in () if lost else wait(running, return_when=FIRST_COMPLETED).done:
            try:
                made = future.result()
            except BrokenExecutor:
                lost = True
            except AioloadError:
                raise
            except Exception as error:  # of the engine that was called in
                raise _failed(running[future], error) from error
            else:
                del running[future]
                finished(made)
        if lost:
            tries.update(task.number for task in running.values())
            _check_tries(running.values(), tries)
            waiting.extendleft(sorted(running.values(), key=lambda task: -task.number))
            running.clear()
            crew.close()


def ask(crew: Crew, function: Callable[..., T], *arguments: Any) -> T:
    """Return what one of the crew answers.

    Raises:
        WorkerError: it died, or was lost.
    """
    try:
        return crew.submit(function, *arguments).result()
    except AioloadError:
        raise
    except Exception as error:  # of the engine that was called in
        crew.close()
        raise WorkerError(f"looking at the first records failed: {type(error).__name__}: {error}") from error


def _submit(
    crew: Crew, payload: bytes, waiting: deque[ShardTask], running: dict[Future[Made], ShardTask]
) -> bool:
    """Hand over as many tasks as there are hands; tell whether the hands are gone."""
    width = crew.width()
    while waiting and len(running) < width:
        try:
            running[crew.submit(make, payload, waiting[0])] = waiting[0]
        except BrokenExecutor:
            return True
        waiting.popleft()
    return False


def _check_tries(tasks: Iterable[ShardTask], tries: Counter[int]) -> None:
    for task in tasks:
        if tries[task.number] >= _MOST_TRIES:
            raise WorkerError(
                f"a process died, perhaps for want of memory, each of {_MOST_TRIES} times that shard "
                f"{task.number} (records {task.first} to {task.stop}) was being made; try fewer workers, or "
                "look for a record that ends the process"
            )


def _failed(task: ShardTask, error: Exception) -> WorkerError:
    return WorkerError(
        f"shard {task.number} (records {task.first} to {task.stop}) could not be made: "
        f"{type(error).__name__}: {error}"
    )


def finish(place: Workplace, made: Sequence[Made], metadata: Any, noun: str) -> tuple[Unreadable, ...]:
    """Make a set of all shards.

    Args:
        place: where they are.
        made: all of them, in any order.
        metadata: of the set.
        noun: what messages call an item.

    Returns:
        What was left out, in order.

    Raises:
        SampleError: nothing is left.
    """
    row = sorted(made, key=lambda each: each.task.number)
    unreadable = tuple(bad for each in row for bad in each.unreadable)
    footers = [footer for footer in (each.footer for each in row) if footer is not None]
    if unreadable and not sum(len(footer.ends) for footer in footers):
        raise refused(unreadable, noun)
    index = join_footers(footers, [each.file_bytes for each in row])
    rendered = render_index(index)
    place.finish(index.shards, rendered, make_manifest(index, rendered, metadata).render())
    return unreadable


def refused(unreadable: Sequence[Unreadable], noun: str) -> SampleError:
    """Return the error of records that cannot be packed."""
    first = unreadable[0]
    return SampleError(
        f"{len(unreadable)} of the {noun}s cannot be packed, the first is {first.name}: {first.reason}; "
        "mend or remove them, or leave them out with --skip-bad",
        unreadable=tuple(unreadable),
        noun=noun,
        cause=first.trace or None,
    )
