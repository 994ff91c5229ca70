"""Making: from a row of a job's table to a sample, in steps.

A sample is begun (found, or decoded and prepared), kept where it is to be, and ended (transformed). Whoever
asks for the steps decides whether one sample goes through all, or several go through each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from ..cache.packed import Kept, size_of
from ..cache.stock import IN_MEMORY, TO_KEEP, Stock
from ..errors import SampleError, ShardError
from .draw import USER, Draw, drawn, generator, seed_globals, states
from .files import Unmapped
from .items import Items
from .jobs import CACHED, Recipe, Undecoded
from .signature import wants_rng

__all__ = ["Costs", "Maker", "Making"]

_WATCHED = 8  # calls of `prepare` in each worker that are looked at: whether they draw random numbers


_Entry = tuple[int, ...]
"""One row of `jobs.TABLE`."""

_Rooms = Mapping[str, NDArray[Any]]
"""Where in the batch values of a sample lie, by field, if decoders may write there."""


@dataclass(slots=True)
class Making:
    """A sample on its way."""

    row: int
    """Of its segment."""
    entry: _Entry
    """Of the table."""
    rooms: _Rooms | None = None
    """Where its decoders may write, if anywhere."""
    key: str | None = None
    """That its record has, once it has been looked at."""
    sample: Any = None
    """As it comes to the transform, which takes it away."""
    result: Any = None
    """What has become of it."""
    found: int | None = None
    """Bytes of the memory of its own that it was found in; None: it was made."""
    cost: float | None = None
    """Seconds that it took to make what is to be kept; None: nothing is."""
    spent: float = 0.0
    """Seconds that beginning it took."""
    field: Undecoded | None = None
    """Whose decoder has failed."""
    stage: str | None = None
    """What else runs."""

    @property
    def name(self) -> str | int:
        """Its key or, where its record has none, the record's number."""
        return self.entry[2] if self.key is None else self.key


@dataclass(slots=True)
class Costs:
    """What samples took."""

    decode: float = 0.0
    check: float = 0.0
    """Of it, comparing sums."""
    prepare: float = 0.0
    transform: float = 0.0
    longest: float = 0.0
    """Of all these, for one sample."""
    prepared: int = 0
    """Samples that were decoded and prepared."""
    prepared_bytes: int = 0
    """That the first of them takes when it is kept; 0: that is not known."""


class Maker:
    """Takes samples from step to step.

    Args:
        recipe: what to do with records.
        stock: where samples are kept, if they are.
        raw: returns the memory that a shard's records lie in, mapped or not.
    """

    def __init__(
        self, recipe: Recipe, stock: Stock | None, raw: Callable[[int, int | bool], NDArray[np.uint8]]
    ) -> None:
        self.start()
        self._recipe = recipe
        self._stock = stock
        self._raw = raw
        # nobody can write to what decoders gave
        self._lends = recipe.decodes_alone
        self._wants_rng = recipe.transform is not None and wants_rng(recipe.transform)
        self._seeds = recipe.seeds
        # what the transform draws must not depend on whether anything ran before it
        self._seeds_anew = self._seeds and (recipe.prepare is not None or recipe.stock is not None)
        self._watched = 0
        self._seen_drawn = Counter[str]()  # in how many of these calls numbers came from each generator
        self._decoders = tuple(
            (place, field, decode, bool(getattr(decode, "draws", False)))
            for place, (field, decode) in enumerate(recipe.decoders)
        )
        self._draw = Draw()
        self._ahead: dict[int, Any] = {}  # samples by record, of items that gave many at once

    def start(self) -> Costs:
        """Count from nothing; return where."""
        self.costs = Costs()
        self.notes: list[tuple[str, str]] = []  # what the user should know once
        return self.costs

    def make(self, making: Making) -> None:
        """Take a sample through all steps."""
        # hot: once per record; guarded by benchmarks/photos.py
        if self._recipe.items is not None:
            self._item(self._recipe.items, making)
            return
        self.begin(making)
        self.keep(making)
        self.end(making)

    def begin(self, making: Making) -> None:
        """Find a sample, or make what comes before the transform."""
        began = time.perf_counter()
        kept = None if self._stock is None else self._found(self._stock, making.entry)
        if kept is None:
            self._make_anew(making)
        else:
            making.key, making.sample, making.found, making.cost = kept.key, kept.sample, kept.size, None
        making.spent = time.perf_counter() - began

    def keep(self, making: Making) -> None:
        """Keep a sample that is to be kept."""
        if making.cost is not None and self._stock is not None:
            _, _, record, _, _, _, source, *_ = making.entry
            self._stock.keep(source, record, making.sample, making.key, making.cost)

    def end(self, making: Making) -> None:
        """Make a sample what the user gets."""
        if making.sample is None:  # somebody does this again, and the transform may have changed it
            self.begin(making)
        sample, making.sample = making.sample, None
        transform = self._recipe.transform
        if transform is None:
            making.result = sample
            self.costs.longest = max(self.costs.longest, making.spent)
            return

        began = time.perf_counter()
        entry = making.entry
        if self._seeds_anew:
            seed_globals(*self._words(entry))
        if "__key__" not in sample:
            sample = self._named(sample, making)
        try:
            making.result = self._transformed(transform, sample, entry)
        finally:  # a sample that is left out has taken its time as well
            took = time.perf_counter() - began
            self.costs.transform += took
            self.costs.longest = max(self.costs.longest, making.spent + took)

    def look_ahead(self, items: Items, rows: NDArray[Any]) -> None:
        """Have the samples of some rows made all at once.

        Raises:
            BaseException: whatever user code does; each is then made by itself, which names the one.
        """
        self._ahead.clear()
        began = time.perf_counter()
        if self._seeds:
            seed_globals(*self._words(rows[0].item()))
        try:
            self._ahead.update(items.many(rows["record"].tolist()))
        finally:
            self.costs.transform += time.perf_counter() - began

    def _found(self, stock: Stock, entry: _Entry) -> Kept | None:
        start, stop, record, _, expected, _, source, _, tier = entry
        if tier >= IN_MEMORY:
            return stock.find(source, record, tier, start, stop, expected)
        return stock.find_late(source, record) if tier == TO_KEEP else None

    def _make_anew(self, making: Making) -> None:
        costs, began = self.costs, time.perf_counter()
        try:
            sample = self._decoded(making)
        finally:  # a sample that is left out has taken its time as well
            decoded = time.perf_counter()
            costs.decode += decoded - began
        if self._recipe.prepare is not None:
            try:
                sample = self._prepared(self._recipe.prepare, self._named(sample, making), making)
            finally:
                costs.prepare += time.perf_counter() - decoded
        making.sample = sample
        costs.prepared += 1
        if costs.prepared == 1:
            costs.prepared_bytes = size_of(sample)
        making.cost = time.perf_counter() - began if making.entry[-1] == TO_KEEP else None

    def _decoded(self, making: Making) -> dict[str, Any]:
        start, stop, _, shard, expected, _, source, mapped, _ = entry = making.entry
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
        self.costs.check += time.perf_counter() - began
        making.key, payloads = recipe.formats[source].split(raw.data)
        if self._seeds:
            seed_globals(*self._words(entry))
        rooms = making.rooms
        sample: dict[str, Any] = {}
        for place, field, decode, draws in self._decoders:
            try:
                room = None if rooms is None else rooms.get(field)
                if not draws and room is None:
                    value = decode(payloads[field])
                else:
                    value = self._drawn(place, payloads[field], entry, room)
                # an array over the raw bytes becomes the transform's own, to write to
                lent = not self._lends and type(value) is np.ndarray and not value.flags.writeable
                sample[field] = value.copy("K") if lent else value
            except Exception as error:
                error.add_note(f"while decoding field {field!r}")
                making.field = Undecoded(field, self._stored(field, source))
                raise
        return sample

    def _named(self, sample: Any, making: Making) -> dict[str, Any]:
        """Return a sample that tells where it comes from, as user code gets it."""
        named = {**sample, "__key__": str(making.name)}
        if len(self._recipe.formats) > 1:
            named["__source__"] = making.entry[6]
        return named

    def _prepared(
        self, prepare: Callable[[dict[str, Any]], Any], sample: dict[str, Any], making: Making
    ) -> dict[str, Any]:
        """Have a sample prepared by the user's function."""
        before = states() if self._watched < _WATCHED else None
        making.stage = "prepare"
        result = prepare(sample)
        if not isinstance(result, dict):
            raise SampleError(
                f"prepare must return a dict, as transform gets one; it returned {type(result)}"
            )
        making.stage = None
        if before is not None:
            self._watched += 1
            # twice: other threads of the process, such as those of Dask, may have drawn just now
            self._seen_drawn.update(drawn(before))
            self.notes += [("random", name) for name, times in self._seen_drawn.items() if times > 1]
        return result

    def _transformed(self, transform: Callable[..., Any], sample: Any, entry: _Entry) -> Any:
        if not self._wants_rng:
            return transform(sample)
        return transform(sample, rng=generator(USER, *self._words(entry)))

    def _item(self, items: Items, making: Making) -> None:
        """Have a sample made of nothing but its number; all of it is the user's code, and counts as such."""
        record = making.entry[2]
        began = time.perf_counter()
        if self._seeds:
            seed_globals(*self._words(making.entry))
        try:
            sample = self._ahead.pop(record) if record in self._ahead else items.one(record)
            if self._recipe.transform is not None:
                sample = self._transformed(self._recipe.transform, sample, making.entry)
        finally:  # a sample that is left out has taken its time as well
            spent = time.perf_counter() - began
            self.costs.transform += spent
            self.costs.longest = max(self.costs.longest, spent)
        making.result = sample

    def _words(self, entry: _Entry) -> tuple[int, int, int, int]:
        """Return by which words the randomness of a record goes."""
        _, _, record, _, _, epoch, source, *_ = entry
        return self._recipe.seed, epoch, record, source

    def _stored(self, field: str, source: int) -> str:
        """Return what the bytes of a field are."""
        form = self._recipe.formats[source]
        return form.encodings.get(field) or dict(form.fields).get(field, "bytes")

    def _drawn(self, place: int, data: memoryview, entry: _Entry, room: NDArray[Any] | None) -> Any:
        """Have a value decoded that needs random numbers, or has a place of its own in the batch."""
        _, decode = self._recipe.decoders[place]
        options: dict[str, Any] = {}
        if self._decoders[place][3]:
            options["rng"] = self._draw.at(*self._words(entry), place)
        if room is not None:
            if decode.into(data, room, **options):  # type: ignore[attr-defined]  # who made rooms has looked
                return room
            return self._drawn(place, data, entry, None)
        return decode(data, **options)
