"""Packing by tasks: what goes into each shard is known ahead, so others make the shards, here or elsewhere.

Of files and of records that are kept as they are, sizes are known before they are read, and the shards are
those of a `Writer`. Of all else (archives of others, images that are made smaller, records that are left out)
they are estimated: shards hold the same records in the same order, but other numbers of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..dataset import Dataset
from ..errors import ConfigError, SampleError, StorageError
from ..shard.footer import Footer
from ..shard.format import NativeFormat
from ..shard.kinds import Fields, check_columns, check_fields, encode
from .crews import call_in
from .foreign import items_of
from .hiding import check_hides_nothing
from .items import Item, Source, Unreadable
from .packer import PackReport, check_recipe, nothing, prepare_all
from .prepare import Prepared, Recipe, prepare
from .running import finish, notes_of, report_of, run
from .tasks import ShardTask, cut_full
from .workplace import Parts, Workplace

__all__ = ["pack_by_tasks"]

_OF_FILES = ("folder", "flat", "csv", "jsonl")
_THREADS = 4  # of a task: reads of small files wait for the disk


def pack_by_tasks(
    source: Source,
    destination: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    shard_bytes: int = 256 << 20,
    index_fields: Iterable[str] = (),
    num_workers: int | None = None,
    scheduler: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack a source, a shard a task; a run that was stopped goes on where it was.

    Args:
        source: what `find_source` found: files, or a set whose records can be read one by one.
        destination: the folder, or an address in a bucket; it must not hold a set.
        recipe: how images are checked and re-encoded.
        shard_bytes: how large a shard may become.
        index_fields: numeric fields whose values the index keeps too.
        num_workers: processes of this machine, by default as many as there are CPUs; 0: this one.
        scheduler: address of a Dask scheduler whose workers do it instead. They must see source and
            destination, and are sent the options of both, keys among them.
        skip_bad: leave out what cannot be read; otherwise the first of it is an error.
        force: begin anew where shards of another run lie.
        progress: called after each shard with its items and its bytes.
        storage_options: of a bucket, as `Writer` takes them.

    Raises:
        ConfigError: an option cannot work, the folder is taken, or holds shards of another run; or the source
            can only be read from front to back.
        SampleError: files cannot be read, in `.unreadable`; without `skip_bad`, or none is left.
        StorageError: the disk failed.
        WorkerError: a process died, again and again.
    """
    started = time.monotonic()
    if shard_bytes < 1:
        raise ConfigError(f"shard_bytes must be a positive number, got {shard_bytes}")
    if source.dataset is None and source.kind not in _OF_FILES:
        raise ConfigError(
            f"a source of {source.kind} is read from front to back, so it cannot be packed by many at once "
            "(nor can archives that are compressed as a whole); pack it without a scheduler"
        )
    where = os.fspath(destination)
    check_hides_nothing(where, storage_options)
    recipe = check_recipe(replace(recipe or Recipe(), kinds=source.fields), num_workers or None)
    fields = check_fields(source.fields) if source.fields else ()
    columns = check_columns(dict.fromkeys((*source.index_fields, *index_fields)), fields)
    items = () if source.dataset is not None else tuple(source.items)
    sizes = _sizes(source, items, fields)
    if not sizes:
        raise nothing()
    tasks = _tasks(sizes, items, shard_bytes, Footer.empty(fields, columns))
    facts = {
        "command": "pack",
        "source": _source_of(source, items, sizes),
        "fields": [list(pair) for pair in fields],
        "recipe": {name: value for name, value in asdict(recipe).items() if name != "kinds"},
        "shard size": shard_bytes,
        "index fields": list(columns),
        "way with bad records": "skip" if skip_bad else "raise",
        "version of aioload": __version__,
    }
    with call_in(num_workers, scheduler) as crew, Workplace(where, storage_options, shard_bytes) as place:
        left = None if force else place.left()
        if left is not None:
            place.check(left, facts)
        parts = place.begin(facts) if left is None else place.resume(facts)
        job = _PackJob(
            parts=parts,
            fields=fields,
            columns=columns,
            metadata=source.metadata,
            skip_bad=skip_bad,
            recipe=recipe,
            dataset=source.dataset,
            all_fields=source.all_fields,
        )
        made = run(job, tasks, crew, source.noun, progress)
        bad = finish(place, made, source.metadata, source.noun)
    notes = (*source.notes, *notes_of(made), *place.notes)
    return report_of(made, time.monotonic() - started, bad, notes)


@dataclass(frozen=True)
class _PackJob:
    """What is the same for all shards."""

    parts: Parts
    """Where they go."""
    fields: Fields
    """Names and kinds."""
    columns: tuple[str, ...]
    """Fields whose values the index keeps."""
    metadata: Any
    """Of the set."""
    skip_bad: bool
    """Whether bad records are left out."""
    recipe: Recipe
    """How images are checked and re-encoded."""
    dataset: Dataset | None
    """Whose records these are; None: a task brings its items."""
    all_fields: bool
    """Of a set: whether no field of an archive may be left out."""

    def records(self, task: ShardTask) -> Generator[Prepared | Unreadable, None, None]:
        """Yield the records to be."""
        items: Iterable[Item | Unreadable] = task.items
        _check_seen(task)
        if self.dataset is not None:
            ranges = [(task.first, task.stop)]
            items = items_of(self.dataset, ranges, all_fields=self.all_fields, ends=task.is_last)
        if self.recipe.reencodes:  # work for this process, of which there are as many as should be
            for item in items:
                yield from prepare([item], self.recipe)
        else:
            with closing(prepare_all(items, self.recipe, _THREADS)) as prepared:
                yield from prepared


def _check_seen(task: ShardTask) -> None:
    """Refuse to leave out all files as bad where the source is not to be seen at all.

    Raises:
        StorageError: it is not.
    """
    raws = (raw for item in task.items if isinstance(item, Item) for raw in item.raw.values())
    first = next((Path(raw) for raw in raws if not isinstance(raw, bytes)), None)
    if first is None or first.exists():
        return
    if not first.parent.is_dir() or not any(first.parent.iterdir()):  # as where nothing is mounted
        raise StorageError(f"{first} was there when packing began, and now its whole folder is empty or gone")


def _tasks(
    sizes: list[int], items: Sequence[Item | Unreadable], shard_bytes: int, empty: Footer
) -> list[ShardTask]:
    cuts = cut_full(sizes, shard_bytes, len(empty.columns), len(empty.describe()))
    return [
        ShardTask(number, first, stop, number == len(cuts) - 1, tuple(items[first:stop]))
        for number, (first, stop) in enumerate(cuts)
    ]


def _sizes(source: Source, items: Sequence[Item | Unreadable], fields: Fields) -> list[int]:
    """Return the bytes of each record to be, as far as they are known before it is read."""
    if source.dataset is not None:
        parts = list(source.dataset.table.sizes())
        return np.concatenate(parts).tolist() if parts else []
    kinds = dict(fields)
    head = NativeFormat(fields).header_bytes if fields else 0
    return [0 if isinstance(item, Unreadable) else head + _item_bytes(item, kinds) for item in items]


def _item_bytes(item: Item, kinds: Mapping[str, str]) -> int:
    total = len(item.key.encode())
    for name, value in item.values.items():
        try:
            total += len(encode(kinds[name], value, name))
        except SampleError:
            continue  # it will be told of when it is its turn
    for raw in item.raw.values():
        total += len(raw) if isinstance(raw, bytes) else _size_and_time(raw)[0]
    return total


def _size_and_time(path: str) -> tuple[int, int]:
    """Return the bytes of a file and when it was changed, in nanoseconds; zeros where it cannot be read."""
    try:
        status = Path(path).stat()
    except OSError:
        return 0, 0  # it will be told of when it is its turn
    return status.st_size, status.st_mtime_ns


def _source_of(source: Source, items: Sequence[Item | Unreadable], sizes: list[int]) -> str:
    """Return a name for the content: of files, their names, sizes and times, and what is known of them."""
    if source.dataset is not None:
        return source.dataset.index.fingerprint()
    digest = blake2b(digest_size=16)
    for item, size in zip(items, sizes, strict=True):
        digest.update(repr((item.name, size)).encode())
        if isinstance(item, Item):
            times = [_size_and_time(raw)[1] for raw in item.raw.values() if isinstance(raw, str)]
            digest.update(repr((item.key, sorted(item.values.items()), times)).encode())
    return digest.hexdigest()
