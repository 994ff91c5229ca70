"""Mapper: records read, decoded and given to a function, wherever that is done."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import cloudpickle
import numpy as np

from .._workers.failures import message_of, shortened
from .._workers.signature import wants_rng
from ..compose import RecordSet
from ..dataset import Dataset
from ..decode import Decoder, for_kind
from ..errors import AioloadError, ConfigError, SampleError
from ..shard.kinds import KEY_NAME
from .items import Unreadable
from .prepare import Prepared

__all__ = ["Mapper", "as_mapper", "unreadable"]

_AT_A_TIME = 4096  # records whose places are looked up at once


@dataclass(frozen=True)
class Mapper:
    """Reads records, decodes them, and calls the function; it travels to other processes."""

    source: RecordSet
    """The set."""
    decode: Mapping[str, Decoder]
    """The user's decoders."""
    function: Callable[[dict[str, Any]], Any]
    """What is done to each sample."""
    fingerprint: str
    """Of the set as it was when the run was planned."""
    is_tolerant: bool
    """Whether bad records may be left out."""

    def __post_init__(self) -> None:
        if self.is_tolerant:
            _tolerate(self.source)

    def __reduce__(self) -> tuple[Any, ...]:
        # made again rather than filled: the copy's sets are to be as tolerant
        return Mapper, (self.source, self.decode, self.function, self.fingerprint, self.is_tolerant)

    @cached_property
    def decoders(self) -> dict[str, Any]:
        """What makes values of the bytes of each field; asked for first, it compares the set."""
        if self.source.table.fingerprint() != self.fingerprint:
            raise ConfigError(
                f"{self.source.source} has changed since the run was planned, or is another one as seen from "
                "here; start again"
            )
        return dict(self.source.decoders_of(self.source.fields, self.decode))

    def results(self, positions: np.ndarray[Any, Any]) -> Iterator[Prepared | Unreadable]:
        """Yield what the function makes of records, in this order; what is bad stands in its place."""
        decoders = self.decoders
        for source, record, raw in self._raw(positions):
            yield self._result(decoders, source, record, raw)

    def _raw(self, positions: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, memoryview | AioloadError]]:
        for first in range(0, len(positions), _AT_A_TIME):
            places = self.source.table.places(positions[first : first + _AT_A_TIME])
            rows = zip(places.source.tolist(), places.record.tolist(), strict=True)
            for source, run_of in groupby(rows, key=lambda row: row[0]):
                dataset = self.source.sources[source]
                assert isinstance(dataset, Dataset)
                for record, raw in dataset.outcomes(_ranges([record for _, record in run_of])):
                    yield source, record, raw

    def _result(
        self, decoders: Mapping[str, Any], source: int, record: int, raw: memoryview | AioloadError
    ) -> Prepared | Unreadable:
        dataset = self.source.sources[source]
        assert isinstance(dataset, Dataset)
        name, key = f"record {record} of {dataset.source}", None
        if isinstance(raw, AioloadError):
            return unreadable(raw, name)
        try:
            key, payloads = dataset.split_record(record, raw)
            name = name if key is None else f"{name} ({key})"
            sample: dict[str, Any] = {}
            for each, decode in decoders.items():
                value = dataset.decode_field(decode, payloads[each], record, key, each)
                # an array over the raw bytes becomes the function's own, to write to
                lent = type(value) is np.ndarray and not value.flags.writeable
                sample[each] = value.copy("K") if lent else value
            sample[KEY_NAME] = given = str(record) if key is None else key
            if len(self.source.sources) > 1:
                sample["__source__"] = source
            result = self.function(sample)
            return _prepared(result, name, key, given)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            return unreadable(error, name)


def as_mapper(
    dataset: Any, function: Callable[..., Any], decode: Mapping[str, Any] | None, *, is_tolerant: bool
) -> Mapper:
    """Check what was given."""
    source = dataset if hasattr(dataset, "table") else Dataset(dataset)
    if not isinstance(source, RecordSet):
        raise ConfigError("a mix repeats records, so it cannot be mapped; map its sources")
    if not callable(function):
        raise ConfigError(f"function must be callable, got {function!r}")
    if is_tolerant:
        _tolerate(source)
    if wants_rng(function):
        raise ConfigError(
            "the function takes rng, but what is packed is the same in every epoch; draw in the loader's "
            "transform"
        )
    decoders = {name: for_kind("bytes") if each == "raw" else each for name, each in (decode or {}).items()}
    for name, each in decoders.items():
        if name not in source.fields:
            raise ConfigError(f"decode names {name!r}, which is none of the fields {list(source.fields)}")
        if not callable(each):
            raise ConfigError(f'decode[{name!r}] must be a decoder or "raw", got {each!r}')
        if getattr(each, "draws", False):
            raise ConfigError(f"decode[{name!r}] draws random numbers; leave that to the loader", field=name)
    if not len(source):
        raise ConfigError(f"{source.source} has no records")
    try:
        cloudpickle.dumps((function, decoders))
    except Exception as error:  # whatever its classes raise
        raise ConfigError(
            f"the function cannot be sent to other processes ({type(error).__name__}: {error}); make what "
            "it holds (a lock, a socket, an open file) inside of it"
        ) from error
    return Mapper(source, decoders, function, source.table.fingerprint(), is_tolerant)


def _tolerate(source: RecordSet) -> None:
    """Let shards of others be missing, or damaged from some record on: those are bad records then."""
    for each in source.sources:
        each.tolerate()


def _ranges(records: list[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges of neighbours, in their order."""
    ranges: list[tuple[int, int]] = []
    for record in records:
        if ranges and ranges[-1][1] == record:
            ranges[-1] = ranges[-1][0], record + 1
        else:
            ranges.append((record, record + 1))
    return ranges


def _prepared(result: Any, name: str, key: str | None, given: str) -> Prepared:
    if not isinstance(result, Mapping):
        raise SampleError(
            f"the function returned {type(result).__name__}, not a dict of values; no record can be left out"
        )
    values = {field: value for field, value in result.items() if field not in (KEY_NAME, "__source__")}
    chosen = result.get(KEY_NAME, given)
    return Prepared(name, (key or "") if chosen == given else chosen, values, 1)


def unreadable(error: BaseException, name: str) -> Unreadable:
    """Return what is said of a record at which something was raised, by us or by the user's code."""
    reason = message_of(error)
    if isinstance(error, AioloadError):
        return Unreadable(name, reason)
    told = f"{type(error).__name__}: {reason}"
    return Unreadable(name, told, trace=shortened("".join(traceback.format_exception(error))))
