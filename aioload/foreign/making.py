"""Making: the index of a foreign set: what is known of shards is taken over, others are looked through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..shard.sidecar import Part, Sidecar, join
from .build import ASKED_AT_ONCE, Progress, depth_of, look_at_all
from .crew import Crew, Task
from .lost import lost_part

if TYPE_CHECKING:
    from ..shard.scan import Scanned
    from ..storage import Storage
    from .kinds import Shards
    from .lost import Losses

__all__ = ["Bar", "Known", "Making", "make", "no_bar", "take_over"]

_log = logging.getLogger("aioload.index")

Bar = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows how far a work of so many bytes is."""


def no_bar(what: str, total: int) -> AbstractContextManager[Progress]:
    """Show nothing."""
    return nullcontext(int)


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What other indexes know of the shards of a set."""

    parts: Mapping[int, Part]
    """By number, of those that have not changed since."""
    told: Mapping[int, tuple[str, str | None]]
    """By number, format and compression of these."""
    wants_sums: bool
    """Whether somebody had sums made of any of the shards, as they are or as they were."""


def take_over(names: Sequence[str], marks: Sequence[str], others: Iterable[Sidecar]) -> Known:
    """Look what other indexes know.

    Args:
        names: of the shards.
        marks: of their content.
        others: indexes, better ones first, whose shards have names as here.
    """
    numbers = {name: number for number, name in enumerate(names)}
    parts: dict[int, Part] = {}
    told: dict[int, tuple[str, str | None]] = {}
    wants_sums = False
    for other in others:
        for place, name in enumerate(other.index.shards):
            number = numbers.get(name)
            if number is None:
                continue
            wants_sums |= other.wants_sums
            is_same = other.marks[place] == marks[number] and other.losses[place] is None
            is_same &= bool(other.index.shard_bytes[place])  # what is empty is of any format
            if is_same and (number not in parts or (parts[number].sums is None and other.summed[place])):
                parts[number] = other.part(place)
                told[number] = other.format, other.codecs.get(name)
    return Known(parts, told, wants_sums)


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """What is to be made an index of."""

    label: str
    """What messages call the set."""
    shards: Shards
    """Theirs."""
    storage: Storage
    """Where they lie, unpacked."""
    sizes: Sequence[int]
    """Of the shards as they are stored."""
    losses: Losses
    """Told of shards of which nothing can be had."""
    bar: Bar
    """Shows progress."""
    root: Path | None = None
    """Folder of the shards, where they lie on this machine and are not compressed."""


async def make(making: Making, known: Known, *, checksums: bool) -> Sidecar:
    """Return the index of a set, without its key and marks.

    Args:
        making: the set.
        known: what need not be found out.
        checksums: with a sum of each record; those that are known are kept anyway.

    Raises:
        ShardError: a shard is meaningless, or fails its sum.
        NotFoundError: a shard is not there.
        StorageError: the storage failed.
    """
    shards, losses = making.shards, making.losses
    parts = dict(known.parts)
    await _scan(making, parts)
    if checksums or shards.hashes:
        await _sum(making, parts)
    losses.check()
    for number in range(len(shards.names)):
        loss = losses.of(number)
        if loss is not None:
            parts[number] = lost_part(loss, shards.records_of(number))
    joined = join(shards.names, [parts[number] for number in range(len(shards.names))], shards.kind)
    codecs = {} if shards.kind == "mds" else {name: how.codec for name, how in shards.packed.items()}
    return replace(joined, codecs=codecs, wants_sums=checksums or known.wants_sums)


async def _scan(making: Making, parts: dict[int, Part]) -> None:
    """Look through the shards of which nothing is known."""
    names, losses = making.shards.names, making.losses
    wanted = [number for number in range(len(names)) if number not in parts and number not in losses]
    sizes = await _sizes(making, wanted)

    async def look(place: int) -> None:
        number = wanted[place]
        if number in losses:
            return
        with losses.noted(number):
            task = Task(making.shards.kind, names[number], sizes[number], making.shards.records_of(number))
            scanned = await crew.scan(making.storage, task, progress, depth=depth)
            _warn_of_holes(task.name, scanned)
            parts[number] = Part(task.size, scanned)

    depth = depth_of(len(wanted))
    if wanted:
        total = sum(sizes.values())
        with making.bar(f"indexing {making.label}", total) as progress:
            async with Crew(making.root, total, len(wanted)) as crew:
                await look_at_all(len(wanted), look)


def _warn_of_holes(name: str, scanned: Scanned) -> None:
    if scanned.holes:
        more = f"; and {len(scanned.holes) - 1} more such places" if len(scanned.holes) > 1 else ""
        _log.warning("%s is damaged, but can be read on: %s%s", name, scanned.holes[0], more)


async def _sizes(making: Making, wanted: Sequence[int]) -> dict[int, int]:
    """Return the sizes of shards as they are read, having them unpacked where they are compressed."""
    sizes = {number: making.sizes[number] for number in wanted}
    names, losses = making.shards.names, making.losses
    packed = [number for number in wanted if names[number] in making.shards.packed]

    async def look(place: int) -> None:
        with losses.noted(packed[place]):
            sizes[packed[place]] = await making.storage.size(names[packed[place]])

    await look_at_all(len(packed), look, ASKED_AT_ONCE)
    return sizes


async def _sum(making: Making, parts: dict[int, Part]) -> None:
    """Sum the records of shards that have no sums; compare shards with their own sums on the way."""
    names, hashes = making.shards.names, making.shards.hashes
    wanted = sorted(number for number, part in parts.items() if part.sums is None)
    total = sum(parts[number].scanned.data_bytes for number in wanted)

    async def look(place: int) -> None:
        number, name = wanted[place], names[wanted[place]]
        with making.losses.noted(number):
            part, known = parts[number], hashes.get(name)
            sums = await crew.sum(making.storage, name, part, known, progress, depth=depth)
            parts[number] = replace(part, sums=sums)

    depth = depth_of(len(wanted))
    if wanted:
        with making.bar(f"summing {making.label}", total) as progress:
            async with Crew(making.root, total, len(wanted)) as crew:
                await look_at_all(len(wanted), look)
