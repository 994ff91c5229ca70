"""Map: every record of a set decoded, given to a function, and what that returns packed as a new set."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import numpy as np

from .._version import __version__
from .._workers.draw import drawn, states
from ..compose import RecordSet
from ..errors import ConfigError
from ..identity import Identity, identity
from ..importing import pickled
from ..shard.format import NativeFormat
from ..shard.kinds import Fields, check_columns, check_fields
from ..shard.openshard import encoded
from .crews import call_in
from .hiding import check_hides_nothing
from .items import Unreadable
from .mapper import Mapper, as_mapper, unreadable
from .packer import PackReport, refused
from .prepare import Prepared
from .provenance import with_provenance
from .results import kind_for, storable
from .running import Crew, ask, finish, notes_of, report_of, run
from .tasks import ShardTask, cut_evenly
from .workplace import Parts, Workplace

__all__ = ["map"]

_log = logging.getLogger("aioload.packing")

_PROBED = 8  # records by which the size of results is told
_SEARCHED = 100  # for a first good one, where bad ones may be left out
_AUTO_SHARDS = 64  # a shard is made by one process, so there should be some for each
_LEAST_AUTO, _MOST_AUTO = 4 << 20, 256 << 20  # bytes


def map(
    dataset: RecordSet | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    function: Callable[[dict[str, Any]], Mapping[str, Any]],
    destination: str | os.PathLike[str],
    *,
    fields: Mapping[str, str] | None = None,
    decode: Mapping[str, Any] | None = None,
    shard_bytes: int | None = None,
    index_fields: Iterable[str] = (),
    num_workers: int | None = None,
    scheduler: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackReport:
    """Pack what a function makes of each record: the work that is the same in every epoch, done once.

    A run that was stopped goes on where it was when it is started again: shards that are there, and right,
    are not made anew. The set is the same, byte for byte, however many workers made it. Its manifest says
    what it was made of.

    Args:
        dataset: any set but a mix, or what `Dataset` takes.
        function: makes a dict of values of a sample, which it may change. It is called in other processes,
            once for each record, and must return the same for the same: what is random belongs into the
            loader's `transform`. A `"__key__"` that it returns is the record's key, otherwise that stays.
        destination: a folder, or an address in a bucket; it must hold no set.
        fields: names and kinds of the results, in order; by default they are told from the first. Pixels of
            an `image` are stored as a PNG file.
        decode: by field of the set, a decoder or "raw", as `Loader` takes them.
        shard_bytes: about how large a shard becomes, each of which one process makes; by default a 64th of
            all results, from 4 to 256 MiB.
        index_fields: numeric fields whose values the index keeps too.
        num_workers: processes of this machine, by default as many as there are CPUs; 0: this one.
        scheduler: address of a Dask scheduler whose workers do it instead, such as `tcp://host:8786`. They
            must see source and destination, and are sent the options of both, keys among them.
        skip_bad: leave out records that are damaged, or for which the function fails.
        force: begin anew where shards of another run lie, which were made of other data or by another
            function.
        progress: called after each shard with its records and its bytes.
        storage_options: of the destination, as `Writer` takes them.

    Returns:
        What was packed.

    Raises:
        ConfigError: an option cannot work, or the folder is taken, or holds shards of another run.
        SampleError: a record is bad; without `skip_bad`, or none is left.
        StorageError: source or destination failed.
        WorkerError: a process died, again and again.
    """
    started = time.monotonic()
    mapper = as_mapper(dataset, function, decode, is_tolerant=skip_bad)
    made_by = identity(function)
    where = os.fspath(destination)
    wanted = None if fields is None else check_fields(fields)
    if shard_bytes is not None and shard_bytes < 1:
        raise ConfigError(f"shard_bytes must be a positive number, got {shard_bytes}")
    check_hides_nothing(where, storage_options)
    with (
        call_in(num_workers, scheduler) as crew,
        Workplace(where, storage_options, shard_bytes or _MOST_AUTO) as place,
    ):
        facts = _facts(mapper, made_by, wanted, shard_bytes, tuple(index_fields), skip_bad=skip_bad)
        parts, plan = _plan(place, facts, mapper, wanted, crew, force=force)
        metadata = with_provenance(
            mapper.source.metadata,
            source=mapper.source.source,
            fingerprint=mapper.source.table.fingerprint(),
            function=made_by.text,
            identity=made_by.digest,
            certain=made_by.certain,
            aioload=__version__,
        )
        columns = check_columns(index_fields, plan.fields)
        job = _MapJob(parts, plan.fields, columns, metadata, skip_bad, mapper)
        cuts = cut_evenly(mapper.source.table.sizes(), plan.source_bytes)
        tasks = [ShardTask(n, first, stop, n == len(cuts) - 1) for n, (first, stop) in enumerate(cuts)]
        made = run(job, tasks, crew, "record", progress)
        bad = finish(place, made, metadata, "record")
    doubts = (
        f"whether the function has changed since cannot always be told: {doubt}" for doubt in made_by.doubts
    )
    notes = (*notes_of(made), *doubts, *place.notes)
    return report_of(made, time.monotonic() - started, bad, notes)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a look at some records told."""

    fields: Fields
    """Names and kinds of the results."""
    source_bytes: int
    """Bytes of records that make a shard."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What became of some records."""

    fields: Fields = ()
    """Of the first good one."""
    result_bytes: int = 0
    """Of the records that were made."""
    source_bytes: int = 0
    """Of the records that they were made of."""
    bad: tuple[Unreadable, ...] = ()
    """What was bad."""
    draws: tuple[str, ...] = ()
    """The global generators that the function drew from."""


def _facts(
    mapper: Mapper,
    made_by: Identity,
    fields: Fields | None,
    shard_bytes: int | None,
    index_fields: tuple[str, ...],
    *,
    skip_bad: bool,
) -> dict[str, Any]:
    """Return all that the shards of a run depend on, as texts and numbers, in the words of messages."""
    return {
        "command": "map",
        "source": mapper.fingerprint,
        "function": f"{made_by.text} {made_by.digest}",
        "decoders": identity(tuple(sorted(mapper.decode.items()))).digest,
        "fields": None if fields is None else [list(pair) for pair in fields],
        "shard size": shard_bytes,
        "index fields": list(index_fields),
        "way with bad records": "skip" if skip_bad else "raise",
        "version of aioload": __version__,
    }


def _plan(
    place: Workplace,
    facts: dict[str, Any],
    mapper: Mapper,
    fields: Fields | None,
    crew: Crew,
    *,
    force: bool,
) -> tuple[Parts, _Plan]:
    """Return the plan of a run that was stopped, or make one by looking at some records."""
    left = None if force else place.left()
    if left is not None:
        place.check(left, facts)
        plan = _Plan(check_fields(left["plan"]["fields"]), int(left["plan"]["source_bytes"]))
        return place.resume(facts | {"plan": left["plan"]}), plan
    look = _look_at(mapper, fields, crew)
    plan = _Plan(look.fields, _source_bytes(look, mapper.source.table.data_bytes, facts["shard size"]))
    chosen = {"fields": [list(pair) for pair in plan.fields], "source_bytes": plan.source_bytes}
    return place.begin(facts | {"plan": chosen}), plan


def _source_bytes(look: _Look, data_bytes: int, shard_bytes: int | None) -> int:
    """Return the bytes of records whose results make a shard, judging by those that were looked at."""
    growth = look.result_bytes / max(look.source_bytes, 1)
    if shard_bytes is None:  # not by the number of processes: the set is the same for any
        shard_bytes = min(max(round(data_bytes * growth / _AUTO_SHARDS), _LEAST_AUTO), _MOST_AUTO)
    return max(1, round(shard_bytes / growth))


def _look_at(mapper: Mapper, fields: Fields | None, crew: Crew) -> _Look:
    """Have somebody of the crew look: the user's code runs where it will run later."""
    look: _Look = ask(crew, _look, pickled(mapper), fields)
    if not look.result_bytes or (look.bad and not mapper.is_tolerant):
        raise refused(look.bad, "record")
    if look.draws:
        _log.warning(
            "the function draws random numbers (from %s), but what is packed is the same in every epoch, and "
            "another run would pack something else; draw them in the loader's transform",
            ", ".join(look.draws),
        )
    return look


def _look(payload: bytes, fields: Fields | None) -> _Look:
    """Map some records that lie far apart; where all are bad, and may be, others up to a good one."""
    mapper: Mapper = cloudpickle.loads(payload)
    before = states()
    look = _some(mapper, fields)
    draws = drawn(before)
    if draws:  # by other threads of this process perhaps, such as Dask's: the function does it each time
        before = states()
        _some(mapper, fields)
        draws = [name for name in drawn(before) if name in draws]
    return replace(look, draws=tuple(draws))


def _some(mapper: Mapper, fields: Fields | None) -> _Look:
    size = len(mapper.source)
    look = _Look(fields or ())
    for position in np.unique(np.linspace(0, size - 1, min(_PROBED, size)).astype(np.int64)).tolist():
        look = _looked(mapper, look, position)
        if look.bad and not mapper.is_tolerant:
            return look
    for position in range(1, min(_SEARCHED, size)):
        if look.result_bytes:
            break
        look = _looked(mapper, look, position)
    return look


def _looked(mapper: Mapper, look: _Look, position: int) -> _Look:
    """Return what is known with one record more."""
    positions = np.array([position], np.int64)
    (found,) = mapper.results(positions)
    if isinstance(found, Prepared):
        try:
            fields, result_bytes = _measured(found, look.fields)
        except Exception as error:  # of a value that is none
            found = unreadable(error, found.name)
        else:
            places = mapper.source.table.places(positions)
            source_bytes = look.source_bytes + int((places.stop - places.start)[0])
            return replace(
                look, fields=fields, result_bytes=look.result_bytes + result_bytes, source_bytes=source_bytes
            )
    return replace(look, bad=(*look.bad, found))


def _measured(found: Prepared, fields: Fields) -> tuple[Fields, int]:
    """Return the fields, told from the result where they are not known, and the bytes that it takes."""
    fields = fields or check_fields({name: kind_for(name, value) for name, value in found.values.items()})
    form = NativeFormat(fields)
    chunks = form.join(found.key, encoded(form, _stored(found, dict(fields)), found.key))
    return fields, sum(len(chunk) for chunk in chunks)


def _stored(found: Prepared, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return what a function returned as the kinds of fields take it."""
    return {name: storable(kinds.get(name, ""), value) for name, value in found.values.items()}


@dataclass(frozen=True, slots=True)
class _MapJob:
    """What is the same for all shards."""

    parts: Parts
    """Where they go."""
    fields: Fields
    """Names and kinds of the results."""
    columns: tuple[str, ...]
    """Fields whose values the index keeps."""
    metadata: Any
    """Of the set."""
    skip_bad: bool
    """Whether bad records are left out."""
    mapper: Mapper
    """What is done to records."""

    def records(self, task: ShardTask) -> Generator[Prepared | Unreadable, None, None]:
        """Yield what the function makes of each record."""
        kinds = dict(self.fields)
        for found in self.mapper.results(np.arange(task.first, task.stop, dtype=np.int64)):
            if isinstance(found, Unreadable):
                yield found
                continue
            try:
                values = _stored(found, kinds)
            except Exception as error:  # of an array that is no picture, say
                yield unreadable(error, found.name)
            else:
                yield replace(found, values=values)
