"""The packer: items prepared many at once, written in their order.

Reading waits, so it is done by threads; decoding and encoding images is work, so where those are asked for,
processes do all of it and send the bytes back. In both cases a bounded window of runs is ahead of the writer,
and the order of the records is the order of the items, however many work on them.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from .._workers.processes import Processes
from ..errors import ConfigError, SampleError, WorkerError
from ..machine import usable_cpus
from ..shard.writer import Writer
from .hiding import check_hides_nothing
from .items import Item, Source, Unreadable
from .prepare import CHECKS, Prepared, Recipe, prepare

__all__ = ["PackReport", "check_recipe", "nothing", "pack", "prepare_all", "refused"]

_RUN = 8  # items a task: handing one over costs about as much as reading a small file
_MIN_THREADS = 4  # reads wait for the disk even where there is one CPU


@dataclass(frozen=True, slots=True)
class PackReport:
    """What was packed."""

    records: int
    """Records written."""
    data_bytes: int
    """Bytes of all files of the set."""
    shards: int
    """Shard files."""
    seconds: float
    """How long it took."""
    unreadable: tuple[Unreadable, ...]
    """What was left out."""
    notes: tuple[str, ...]
    """What the source left out, and what of an earlier run was there, in a sentence each."""


def pack(
    source: Source,
    destination: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    shard_bytes: int = 256 << 20,
    index_fields: Iterable[str] = (),
    num_workers: int | None = None,
    skip_bad: bool = False,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack a source into a folder; nothing that looks complete is left unless all went well.

    Args:
        source: what `find_source` found.
        destination: the folder, or an address in a bucket; it must not hold a set.
        recipe: how images are checked and re-encoded.
        shard_bytes: how large a shard may become.
        index_fields: numeric fields whose values the index keeps too.
        num_workers: threads, or processes where images are re-encoded; by default as many as there are CPUs.
        skip_bad: leave out what cannot be read; otherwise all is looked at, and then it is an error.
        progress: called after each item with its cost and its bytes.
        storage_options: of a bucket, as `Writer` takes them.

    Raises:
        ConfigError: an option cannot work, or the folder is taken.
        SampleError: files cannot be read, in `.unreadable`; without `skip_bad`, or none is left.
        ShardError: an archive is cut short or in disorder.
        StorageError: the disk failed.
        WorkerError: a process died.
    """
    if not source.fields:  # nor records that have any
        raise nothing()
    recipe = check_recipe(replace(recipe or Recipe(), kinds=source.fields), num_workers)
    check_hides_nothing(os.fspath(destination), storage_options)
    started = time.monotonic()
    unreadable: list[Unreadable] = []
    options: dict[str, Any] = {
        "shard_bytes": shard_bytes,
        "index_fields": dict.fromkeys((*source.index_fields, *index_fields)),
        "storage_options": storage_options,
    }
    with (
        Writer(destination, source.fields, metadata=source.metadata, **options) as writer,
        closing(prepare_all(source.items, recipe, num_workers)) as outcomes,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", module=r"PIL\b")  # odd tags, large pictures: none of them bad
        for outcome in outcomes:
            bad = outcome if isinstance(outcome, Unreadable) else None
            # after the first bad file nothing will come of the set: the rest is read to name all the others
            if isinstance(outcome, Prepared) and (skip_bad or not unreadable):
                bad = _write(writer, outcome)
            if bad is not None:
                unreadable.append(bad)
            if progress is not None:
                progress(*_extent(outcome))

        _require_readable(unreadable, writer.records, source.noun, skip_bad=skip_bad)

    elapsed = time.monotonic() - started
    return PackReport(
        writer.records,
        writer.total_bytes,
        writer.shards,
        elapsed,
        tuple(unreadable),
        (*source.notes, *writer.notes),
    )


def check_recipe(recipe: Recipe, num_workers: int | None) -> Recipe:
    """Return the recipe, having checked it and the number of workers."""
    if num_workers is not None and num_workers < 1:
        raise ConfigError(f"num_workers must be positive, got {num_workers}")
    if recipe.check not in CHECKS:
        raise ConfigError(f"check must be one of {', '.join(CHECKS)}, got {recipe.check!r}")
    if recipe.resize is not None and recipe.resize < 1:
        raise ConfigError(f"resize must be positive, got {recipe.resize}")
    if recipe.quality is not None and not 1 <= recipe.quality <= 100:
        raise ConfigError(f"quality must be 1 to 100, got {recipe.quality}")
    return recipe


def prepare_all(
    items: Iterable[Item | Unreadable], recipe: Recipe, num_workers: int | None
) -> Generator[Prepared | Unreadable, None, None]:
    """Yield what became of each item, in order; close it when done."""
    workers = num_workers or usable_cpus()
    executor = Processes(workers) if recipe.reencodes else _threads(num_workers or max(workers, _MIN_THREADS))
    pending: deque[Future[list[Prepared | Unreadable]]] = deque()
    try:
        runs = iter(items)
        while run := list(itertools.islice(runs, _RUN)):
            pending.append(executor.submit(prepare, run, recipe))
            if len(pending) > 2 * workers + 2:
                yield from pending.popleft().result()

        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerError(
            "a process that re-encodes images died, perhaps for want of memory; try fewer --workers"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _threads(workers: int) -> Executor:
    return ThreadPoolExecutor(workers, thread_name_prefix="aioload-pack")


def _write(writer: Writer, record: Prepared) -> Unreadable | None:
    """Write a record; a value that does not fit its field is as bad as a file that cannot be read."""
    try:
        writer.write(record.values, key=record.key)
    except SampleError as error:
        return Unreadable(record.name, str(error))
    return None


def _extent(outcome: Prepared | Unreadable) -> tuple[int, int]:
    """Return cost and bytes of an outcome."""
    if isinstance(outcome, Unreadable):
        return outcome.cost, 0
    return outcome.cost, sum(len(value) for value in outcome.values.values() if isinstance(value, bytes))


def _require_readable(unreadable: list[Unreadable], records: int, noun: str, *, skip_bad: bool) -> None:
    if not unreadable and not records:
        raise nothing()

    if unreadable and not (skip_bad and records):
        raise refused(unreadable, noun)


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


def nothing() -> ConfigError:
    """Return the error of a source without records."""
    return ConfigError("nothing to pack: the source is empty")
