"""Task: what a worker does with a job, and all that a worker process knows.

A job says where raw records lie in the arena and where the outcome may go; the answer says how much of that
place is in use. Payload never travels with either. The same `Worker` serves in a process of the pool and,
with `num_workers=0`, in the user's own thread.

Nothing that user code raises leaves `Worker.run`: it comes back as texts, since an exception that cannot be
rebuilt on the other side would take the pool down with its cause lost.
"""

from __future__ import annotations

import inspect
import os
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from ..cache.packed import size_of
from ..cache.stock import IN_MEMORY, TO_KEEP, Lost, Stock
from ..collate import apply, default
from ..errors import ConfigError, SampleError, ShardError
from .bulk import LEAST_ROWS, Bulk, columns_of
from .draw import Draw, drawn, generator, states
from .failures import describe, failure_of_batch
from .files import Files, Unmapped
from .items import Items
from .jobs import (
    CACHED,
    MARK,
    TABLE,
    Answer,
    Collate,
    Decode,
    Failure,
    Job,
    Outcome,
    Recipe,
    Segment,
    Undecoded,
)
from .layout import RowWriter, learn
from .leaf import NoRoom
from .packed import descriptor as read_descriptor
from .packed import pack, unpack
from .space import Span

if TYPE_CHECKING:
    from ..cache.memory import MemoryStore

__all__ = ["Rooms", "Worker", "is_lost", "refuse_rng", "wants_rng"]

_WORDS = struct.Struct("<QII")  # of the global generators' seeds
_WATCHED = 8  # calls of `prepare` in each worker that are looked at: whether they draw random numbers
_USER, _GLOBALS = 0, 1  # streams of randomness: a transform's rng, and the global generators


Rooms = Mapping[str, NDArray[Any]]
"""Where in the batch values of a sample lie, by field, if decoders may write there."""


class Worker:
    """Runs jobs over one arena with one recipe.

    Args:
        array: the arena's bytes.
        recipe: what to do with them.
        mark: one `MARK`, kept up to date for whoever watches.
        memory: where samples are kept in memory, if they are.
        caught: what becomes a failure when user code raises it. In a process of its own that is everything;
            in the user's thread Ctrl-C stays Ctrl-C, and `sys.exit` in a signal handler ends the program.
    """

    def __init__(
        self,
        array: NDArray[np.uint8],
        recipe: Recipe,
        *,
        mark: NDArray[np.void] | None = None,
        memory: MemoryStore | None = None,
        caught: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    ) -> None:
        self._caught = caught
        place = np.zeros(1, MARK) if mark is None else mark
        self._mark_row, self._mark_began = place["row"], place["began"]
        self._row = 0  # of the job's table, at which the segment begins
        self._array = array
        # read-only: a job may be done twice, so nothing may change the raw bytes
        self._records = array.view()
        self._records.flags.writeable = False
        self._recipe = recipe
        # nobody can write to what decoders gave
        self._lends = recipe.decodes_alone
        self._wants_rng = recipe.transform is not None and wants_rng(recipe.transform)
        self._seeds = recipe.seeded and recipe.seed_globals
        # what the transform draws must not depend on whether anything ran before it
        self._seeds_anew = self._seeds and (recipe.prepare is not None or recipe.stock is not None)
        self._stock = None if recipe.stock is None else Stock(recipe.stock, memory)
        self._watched = 0
        self._seen_drawn = Counter[str]()  # in how many of these calls numbers came from each generator
        self._decoders = tuple(
            (place, field, decode, bool(getattr(decode, "draws", False)))
            for place, (field, decode) in enumerate(recipe.decoders)
        )
        self._draw = Draw()
        self._files = Files(recipe.paths)
        self._bulk = Bulk(recipe, self._raw)
        self._ahead: dict[int, Any] = {}  # samples by record, of items that gave many at once
        self._failed: Undecoded | None = None  # at which a decoder has just failed
        self._prepares = False  # it is `prepare` that runs
        self._notes: list[tuple[str, str]] = []
        self._decode_seconds = self._transform_seconds = self._collate_seconds = 0.0
        self._prepare_seconds, self._prepared_count, self._prepared_bytes = 0.0, 0, 0
        self._check_seconds = self._longest_seconds = 0.0
        self._has_run = False

    def close(self) -> None:
        """Give back what is open for samples that are kept."""
        if self._stock is not None:
            self._stock.close()

    def run(self, job: Job) -> Answer:
        """Do a job. Never raises for the user's reasons."""
        self._decode_seconds = self._transform_seconds = self._collate_seconds = 0.0
        self._prepare_seconds, self._prepared_count, self._prepared_bytes = 0.0, 0, 0
        self._notes = []
        began = self._mark_none()
        self._check_seconds = self._longest_seconds = self._bulk.check_seconds = 0.0
        faults = _faults() if self._recipe.paths else 0
        outcomes = (self._collate(job),) if isinstance(job, Collate) else tuple(self._decode(job))
        if self._stock is not None and isinstance(job, Decode) and any(map(is_lost, outcomes)):
            self._stock.find_lost(self._table(job.table))
        self._mark_row[0] = -1
        self._mark_began[0] = 0.0
        seconds = (self._decode_seconds, self._transform_seconds, self._collate_seconds)
        # the first sample of all may have imported much, which tells nothing about samples
        longest, self._has_run = self._longest_seconds if self._has_run else 0.0, True
        return Answer(
            outcomes,
            *seconds,
            os.getpid(),
            _faults() - faults if self._recipe.paths else 0,
            began=began,
            stopped=time.perf_counter(),
            check_seconds=self._check_seconds + self._bulk.check_seconds,
            longest_seconds=longest,
            prepare_seconds=self._prepare_seconds,
            prepared=self._prepared_count,
            prepared_bytes=self._prepared_bytes,
            kept=None if self._stock is None else self._stock.take_tally(),
            notes=tuple(self._notes),
        )

    def _mark_none(self) -> float:
        """Note that what happens from now on is about no single record; return the time."""
        self._mark_row[0] = -1
        self._mark_began[0] = now = time.perf_counter()
        return now

    def _decode(self, job: Decode) -> Iterator[Outcome]:
        table = self._table(job.table)
        if job.files and self._stock is not None:
            self._stock.know(job.files)
        first = 0
        for segment in job.segments:
            rows = table[first : first + segment.rows]
            self._row = first
            first += segment.rows
            yield self._segment(segment, rows, job)

    def _segment(self, segment: Segment, rows: NDArray[Any], job: Decode) -> Outcome:
        try:
            if self._recipe.items is not None and self._recipe.items.batched:
                self._look_ahead(self._recipe.items, rows)
            if segment.layout is not None:
                return self._rows(segment, rows)
            if job.collect:
                return self._collected(segment, rows)
            keys: list[str | int] = []
            entries = enumerate(rows.tolist())
            samples = [self._guarded(row, entry, segment, keys) for row, entry in entries]
            return self._packed(segment, samples, keys, learn_layout=job.learn)
        except NoRoom as small:
            return Outcome(need=small.need)
        except _Failed as failed:
            return Outcome(failure=failed.failure)
        except self._caught as error:
            return Outcome(failure=failure_of_batch(error, f"batch {segment.step}", rows))

    def _rows(self, segment: Segment, rows: NDArray[Any]) -> Outcome:
        """Write samples straight into their rows of the batch."""
        assert segment.layout is not None
        assert segment.batch is not None
        writer = RowWriter(segment.layout, self._place(segment.batch), segment.batch_rows)
        if not self._in_bulk(segment, rows, writer):
            writer.forget_texts()
            keys: list[str | int] = []
            places = self._direct(writer)
            for row, entry in enumerate(rows.tolist(), segment.first):
                rooms = {field: target[row] for field, target in places}
                sample = self._guarded(row - segment.first, entry, segment, keys, rooms)
                if not writer.write(row, sample, rooms):
                    return Outcome(misfit=True)
        texts = writer.pack_texts(self._place(segment.place))
        return Outcome(used=texts[-1].stop if texts else 0, texts=texts)

    def _in_bulk(self, segment: Segment, rows: NDArray[Any], writer: RowWriter) -> bool:
        """Write all records at once where nothing has to be done to them; tell whether that went well."""
        if len(rows) < LEAST_ROWS or not self._bulk.possible:
            return False
        self._mark_none()
        began = time.perf_counter()
        written = self._bulk.write(rows, writer, segment.first)
        self._decode_seconds += time.perf_counter() - began
        return written

    def _collected(self, segment: Segment, rows: NDArray[Any]) -> Outcome:
        """Pack the samples that can be made, and tell of those that cannot."""
        samples: list[Any] = []
        keys: list[str | int] = []
        made: list[int] = []  # rows of the batch
        failures: list[Failure] = []
        for row, entry in enumerate(rows.tolist()):
            known: list[str | int] = []
            try:
                samples.append(self._guarded(row, entry, segment, known))
                keys += known
                made.append(segment.first + row)
            except _Failed as failed:
                failures.append(failed.failure)
        self._mark_none()
        tree = samples, keys, np.array(made, np.int64)
        where, used = pack(tree, self._place(segment.place))
        return Outcome(used=used, descriptor=where, failures=tuple(failures))

    def _packed(
        self, segment: Segment, samples: list[Any], keys: list[str | int], *, learn_layout: bool
    ) -> Outcome:
        """Pack a whole batch, collated, or samples that wait for the rest of theirs."""
        self._mark_none()
        layout = learn(samples) if learn_layout else None
        rows = np.arange(segment.first, segment.first + segment.rows)
        tree = self._batch(samples, keys) if segment.whole else (samples, keys, rows)
        where, used = self._pack(tree, segment.place)
        return Outcome(used=used, descriptor=where, layout=layout)

    def _batch(self, samples: list[Any], keys: list[str | int]) -> Any:
        began = time.perf_counter()
        try:
            return apply(self._recipe.collate or default, samples, keys=keys)
        finally:
            self._collate_seconds += time.perf_counter() - began

    def _pack(self, tree: Any, place: Span) -> tuple[Span, int]:
        """Pack something into a place; return where its descriptor lies, and the bytes in use."""
        began = time.perf_counter()
        try:
            return pack(tree, self._place(place))
        finally:
            self._collate_seconds += time.perf_counter() - began

    def _collate(self, job: Collate) -> Outcome:
        """Make a batch of the samples of several segments."""
        try:
            samples: list[Any] = []
            keys: list[str | int] = []
            rows: list[int] = []
            for place, where in job.parts:
                part = self._place(place)
                if self._recipe.collate is not None:
                    part = part.copy()  # it may write to them, and the job may be done twice
                some, their_keys, their_rows = unpack(part, read_descriptor(part, where))
                samples += some
                keys += their_keys
                rows += their_rows.tolist()
            if rows != sorted(rows):  # a sample that came in another's place
                by_row = sorted(range(len(rows)), key=rows.__getitem__)
                samples, keys = [samples[at] for at in by_row], [keys[at] for at in by_row]
            where, used = self._pack(self._batch(samples, keys), job.place)
            return Outcome(used=used, descriptor=where)
        except NoRoom as small:
            return Outcome(need=small.need)
        except self._caught as error:
            return Outcome(failure=failure_of_batch(error, f"batch {job.step}", self._table(job.table)))

    def _guarded(
        self,
        row: int,
        entry: tuple[int, ...],
        segment: Segment,
        keys: list[str | int],
        rooms: Rooms = MappingProxyType({}),
    ) -> Any:
        """Make one sample; whatever goes wrong becomes a failure that names it."""
        had_torch = "torch" in sys.modules
        self._mark_began[0] = time.perf_counter()
        self._mark_row[0] = self._row + row
        before = len(keys)
        try:
            sample = self._sample(entry, keys, rooms)
            if self._seeds and not had_torch and "torch" in sys.modules:
                # user code has just imported it, and may have drawn before its generator was set: once again
                del keys[before:]
                sample = self._sample(entry, keys, rooms)
        except self._caught as error:  # user code may raise anything, SystemExit among it
            record, shard = entry[2:4]
            key = keys[-1] if len(keys) > before else None
            field, self._failed = self._failed, None
            stage, self._prepares = "prepare" if self._prepares else None, False
            failure = describe(error, segment.first + row, shard, record, key, field, stage)
            raise _Failed(failure) from error
        else:
            return sample

    def _sample(self, entry: tuple[int, ...], keys: list[str | int], rooms: Rooms) -> Any:
        # hot: once per record; guarded by benchmarks/photos.py
        if self._recipe.items is not None:
            return self._item(self._recipe.items, entry, keys)
        start, stop, record, _, expected, epoch, source, _, tier = entry
        recipe = self._recipe
        begun = time.perf_counter()
        kept = None
        if tier >= IN_MEMORY:
            assert self._stock is not None
            kept = self._stock.find(source, record, tier, start, stop, expected)
        elif tier == TO_KEEP and self._stock is not None:
            kept = self._stock.find_late(source, record)
        if kept is None:
            key, sample = self._made(entry, keys, rooms)
        else:
            key, sample = kept.key, kept.sample
            keys.append(record if key is None else key)
        had = time.perf_counter()
        if recipe.transform is None:
            if had - begun > self._longest_seconds:
                self._longest_seconds = had - begun
            return sample

        if self._seeds_anew:
            _seed_globals(recipe.seed, epoch, record, source)
        if "__key__" not in sample:
            sample = self._named(sample, key, entry)
        try:
            return self._transformed(recipe.transform, sample, entry)
        finally:  # a sample that is left out has taken its time as well
            ended = time.perf_counter()
            self._transform_seconds += ended - had
            self._longest_seconds = max(self._longest_seconds, ended - begun)

    def _made(self, entry: tuple[int, ...], keys: list[str | int], rooms: Rooms) -> tuple[str | None, Any]:
        """Make what comes before the transform, and keep it if it is to be kept; return its key and it."""
        record, source, tier = entry[2], entry[6], entry[8]
        began = time.perf_counter()
        try:
            key, sample = self._decoded(entry, keys, rooms)
        finally:  # as above
            decoded = time.perf_counter()
            self._decode_seconds += decoded - began
        if self._recipe.prepare is not None:
            try:
                sample = self._prepared(self._named(sample, key, entry))
            finally:
                self._prepare_seconds += time.perf_counter() - decoded
        self._prepared_count += 1
        if self._prepared_count == 1:
            self._prepared_bytes = size_of(sample)
        if tier == TO_KEEP and self._stock is not None:
            self._stock.keep(source, record, sample, key, time.perf_counter() - began)
        return key, sample

    def _decoded(self, entry: tuple[int, ...], keys: list[str | int], rooms: Rooms) -> tuple[str | None, Any]:
        start, stop, record, shard, expected, epoch, source, mapped, _ = entry
        recipe, began = self._recipe, time.perf_counter()
        raw = self._raw(shard, mapped)[start:stop]
        if len(raw) < stop - start:
            raise Unmapped
        if recipe.checked[source] and google_crc32c.value(raw) != expected:
            if mapped == CACHED:
                raise Unmapped  # the cache fetches again what is damaged
            raise ShardError(
                "its bytes do not have the checksum of the index; repack the shard or run `aioload verify`"
            )
        checked = time.perf_counter()
        self._check_seconds += checked - began
        key, payloads = recipe.formats[source].split(raw.data)
        keys.append(record if key is None else key)
        if self._seeds:
            _seed_globals(recipe.seed, epoch, record, source)
        sample: dict[str, Any] = {}
        for place, field, decode, draws in self._decoders:
            try:
                room = rooms.get(field)
                if not draws and room is None:
                    value = decode(payloads[field])
                else:
                    value = self._drawn(place, payloads[field], entry, room)
                # an array over the raw bytes becomes the transform's own, to write to
                lent = not self._lends and type(value) is np.ndarray and not value.flags.writeable
                sample[field] = value.copy("K") if lent else value
            except Exception as error:
                error.add_note(f"while decoding field {field!r}")
                self._failed = Undecoded(field, self._stored(field, source))
                raise
        return key, sample

    def _named(self, sample: Any, key: str | None, entry: tuple[int, ...]) -> dict[str, Any]:
        """Return a sample that tells where it comes from, as user code gets it."""
        named = {**sample, "__key__": str(entry[2]) if key is None else key}
        if len(self._recipe.formats) > 1:
            named["__source__"] = entry[6]
        return named

    def _prepared(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Have a sample prepared by the user's function."""
        assert self._recipe.prepare is not None
        before = states() if self._watched < _WATCHED else None
        self._prepares = True
        result = self._recipe.prepare(sample)
        if not isinstance(result, dict):
            raise SampleError(
                f"prepare must return a dict, as transform gets one; it returned {type(result)}"
            )
        self._prepares = False
        if before is not None:
            self._watched += 1
            # twice: other threads of the process, such as those of Dask, may have drawn just now
            self._seen_drawn.update(drawn(before))
            self._notes += [("random", name) for name, times in self._seen_drawn.items() if times > 1]
        return result

    def _transformed(self, transform: Callable[..., Any], sample: Any, entry: tuple[int, ...]) -> Any:
        if not self._wants_rng:
            return transform(sample)
        _, _, record, _, _, epoch, source, *_ = entry
        return transform(sample, rng=generator(_USER, self._recipe.seed, epoch, record, source))

    def _item(self, items: Items, entry: tuple[int, ...], keys: list[str | int]) -> Any:
        """Have a sample made of nothing but its number; all of it is the user's code, and counts as such."""
        _, _, record, _, _, epoch, source, *_ = entry
        began = time.perf_counter()
        keys.append(record)
        if self._seeds:
            _seed_globals(self._recipe.seed, epoch, record, source)
        try:
            sample = self._ahead.pop(record) if record in self._ahead else items.one(record)
            if self._recipe.transform is not None:
                sample = self._transformed(self._recipe.transform, sample, entry)
        finally:  # a sample that is left out has taken its time as well
            spent = time.perf_counter() - began
            self._transform_seconds += spent
            self._longest_seconds = max(self._longest_seconds, spent)
        return sample

    def _look_ahead(self, items: Items, rows: NDArray[Any]) -> None:
        """Have samples made all at once; where that fails each is made by itself, which names the one."""
        self._mark_none()
        self._ahead.clear()
        first = rows[0]
        began = time.perf_counter()
        if self._seeds:
            words = (int(first[name]) for name in ("epoch", "record", "source"))
            _seed_globals(self._recipe.seed, *words)
        try:
            self._ahead.update(items.many(rows["record"].tolist()))
        except self._caught:
            self._ahead.clear()
        self._transform_seconds += time.perf_counter() - began

    def _stored(self, field: str, source: int) -> str:
        """Return what the bytes of a field are."""
        form = self._recipe.formats[source]
        return form.encodings.get(field) or dict(form.fields).get(field, "bytes")

    def _direct(self, writer: RowWriter) -> list[tuple[str, NDArray[Any]]]:
        """Return the fields whose decoders can write straight to their rows, and these."""
        if not self._lends:
            return []
        columns = columns_of(writer.structure, tuple(field for field, _ in self._recipe.decoders))
        return [
            (field, writer.targets[column])
            for column, (field, decode) in zip(columns or (), self._recipe.decoders, strict=False)
            if hasattr(decode, "into") and writer.targets[column].ndim > 1
        ]

    def _drawn(self, place: int, data: memoryview, entry: tuple[int, ...], room: NDArray[Any] | None) -> Any:
        """Have a value decoded that needs random numbers, or has a place of its own in the batch."""
        _, decode = self._recipe.decoders[place]
        options: dict[str, Any] = {}
        if self._decoders[place][3]:
            _, _, record, _, _, epoch, source, *_ = entry
            options["rng"] = self._draw.at(self._recipe.seed, epoch, record, source, place)
        if room is not None:
            if decode.into(data, room, **options):  # type: ignore[attr-defined]  # `_direct` has looked
                return room
            return self._drawn(place, data, entry, None)
        return decode(data, **options)

    def _raw(self, shard: int, mapped: int | bool) -> NDArray[np.uint8]:
        """Return the memory that a shard's records lie in; it cannot be written to."""
        return self._files.array(shard) if mapped else self._records

    def _place(self, span: Span) -> NDArray[np.uint8]:
        return self._array[span.start : span.stop]

    def _table(self, span: Span) -> NDArray[Any]:
        return self._place(span).view(TABLE)


class _Failed(Exception):
    """Carries a failure out of the loop over records."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def wants_rng(transform: Callable[..., Any]) -> bool:
    """Tell whether a transform names a parameter `rng`.

    Raises:
        ConfigError: it requires another parameter beside the sample, which nobody would pass.
    """
    return _parameters(transform, "transform")


def _parameters(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function that takes a sample names a parameter `rng`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False  # written in C: it takes the sample alone

    named = [p for p in parameters if p.name == "rng" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    places = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p not in named
    ]
    # the first place is the sample's; whatever else must be given, nobody would give
    if not places or places[0] in named or required not in ([], places[:1]):
        names = ", ".join(p.name for p in parameters)
        raise ConfigError(
            f"{name} must take a sample, and besides it at most a parameter named rng; it takes ({names})"
        )
    return bool(named)


def refuse_rng(prepare: Callable[..., Any]) -> None:
    """Refuse a `prepare` that asks for random numbers, or for anything but the sample.

    Raises:
        ConfigError: it does.
    """
    if _parameters(prepare, "prepare"):
        raise ConfigError(
            "prepare must always give the same for a record and gets no rng; draw random numbers in transform"
        )


def is_lost(outcome: Outcome) -> bool:
    """Tell whether a sample that was kept could not be had."""
    failures = (outcome.failure, *outcome.failures)
    return any(failure is not None and failure.kind == Lost.__name__ for failure in failures)


def _faults() -> int:
    """Return how often this process has waited for the disk because of a page that was not in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _seed_globals(seed: int, epoch: int, record: int, source: int) -> None:
    """Set the global generators for one record."""
    # not a SeedSequence: out of the caches, as between two photos, it takes 60 us where this takes 4
    name = repr((_GLOBALS, seed, epoch, record, source)).encode()
    long, word, other = _WORDS.unpack(blake2b(name, digest_size=_WORDS.size).digest())
    random.seed(long)
    np.random.seed(word)  # the old global generator: user code that draws from it is what this is for
    # not torch.manual_seed: it sets every device's generator, at half a millisecond a record
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:  # torch may be there in part, while another thread of the user's imports it
        generator.manual_seed(other)
