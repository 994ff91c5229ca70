"""Compose: sets made of others without touching a shard: selections, several end to end, weighted mixes."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from .collection import Collection, Source
from .concat import ConcatTable
from .deal import MAX_POSITIONS
from .errors import ConfigError
from .mixing import MixTable
from .picks import Picks, as_picks, compose, deal_out, part_sizes
from .shares import Weights, as_weights, is_whole
from .subset import SubsetTable

if TYPE_CHECKING:
    from .table import RecordTable, Table

__all__ = ["Concat", "Mix", "RecordSet", "Selection"]

_MAX_SOURCES = 256  # of a mix: their cursors ride in the state, which stays small


class RecordSet(Collection):
    """A collection whose records are there once each, so that some can be selected."""

    @property
    @abstractmethod
    def table(self) -> RecordTable:
        """The records, as a loader sees them."""

    def select(self, wanted: range | slice | Sequence[int] | Sequence[bool] | NDArray[Any]) -> Selection:
        """Return some of the records as a set of their own; no shard is touched.

        Args:
            wanted: a range or a slice, which take no memory; a mask, with a truth value for each record; or
                numbers of records, of which none may come twice, at eight bytes each. Without a shuffle
                samples come in the order given. A block shuffle reads together what lies together and is
                neighbours in the list, so a list in wild order costs a read for each record.

        Raises:
            ConfigError: there is no such record, or one comes twice.
        """
        return Selection(self, as_picks(wanted, len(self)))

    def split(self, parts: Mapping[str, float], *, seed: int = 0) -> dict[str, Selection]:
        """Return disjoint parts of the records by name, drawn at random and each in the order of the records.

        Who gets what depends on the number of records, the parts and the seed alone.

        Args:
            parts: what each gets: shares that sum to 1, or numbers of records, which may leave some out.
            seed: of the draw.

        Raises:
            ConfigError: the parts cannot be.
        """
        sizes = part_sizes(parts, len(self))
        return dict(zip(parts, map(self.select, deal_out(sizes, len(self), seed)), strict=True))


class Selection(RecordSet):
    """Some records of a set; `select` and `split` make it.

    Args:
        parent: the set.
        picks: numbers of records, none twice.
    """

    def __init__(self, parent: RecordSet, picks: Picks) -> None:
        self._parent = parent
        self._picks = picks
        self._table: SubsetTable | None = None
        self.source = f"{parent.source} ({len(picks)} of its records)"

    @property
    def table(self) -> RecordTable:
        """The records, as a loader sees them."""
        if self._table is None:
            self._table = SubsetTable(self._parent.table, self._picks)
        return self._table

    @property
    def sources(self) -> tuple[Source, ...]:
        """The packed sets of the set."""
        return self._parent.sources

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields."""
        return self._parent.fields

    @property
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""
        return self._parent.encodings

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it."""
        return self._parent.defaults

    @property
    def metadata(self) -> Any:
        """The set's."""
        return self._parent.metadata

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._picks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self._parent, self._picks)

    def select(self, wanted: range | slice | Sequence[int] | Sequence[bool] | NDArray[Any]) -> Selection:
        """Return some of the selected records, numbered as here; see `RecordSet.select`."""
        return Selection(self._parent, compose(self._picks, as_picks(wanted, len(self))))


class Concat(RecordSet):
    """Several sets, one after the other, as one.

    Args:
        parts: the sets, with the same fields.

    Raises:
        ConfigError: there is none, or their fields differ.
    """

    def __init__(self, parts: Sequence[RecordSet]) -> None:
        self._parts = _same_fields("Concat", parts)
        self._table: ConcatTable | None = None
        self.source = " + ".join(part.source for part in self._parts)

    @property
    def table(self) -> RecordTable:
        """The records, as a loader sees them."""
        if self._table is None:
            self._table = ConcatTable([part.table for part in self._parts])
        return self._table

    @property
    def sources(self) -> tuple[Source, ...]:
        """The packed sets of all parts."""
        return tuple(source for part in self._parts for source in part.sources)

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields."""
        return self._parts[0].fields

    @property
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""
        return self._parts[0].encodings

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it."""
        return _all_defaults(self._parts)

    @property
    def metadata(self) -> Any:
        """What all parts have kept alike, else None."""
        return _common_metadata(self._parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Concat, (self._parts,)


class Mix(Collection):
    """Several sets, drawn from at given weights.

    In an epoch each source gives its weight's share of the samples, rounded up or down, and in any 1,000
    consecutive ones it is never as much as 1% of them away from it (measured: half a percent). Each goes
    through its records in epochs of its own, every record once in each, and goes on from one epoch of the
    mix to the next where it stopped. With `shuffle=True` a rank reads lanes of each source that no other
    rank reads, if the number of ranks divides the lanes. What a transform draws depends on the seed, the
    source's epoch and the record in it.

    Args:
        parts: the sets, with the same fields, and the weight of each; weights need not sum to 1.
        length: samples of an epoch; by default it ends as `stop` says.
        stop: "first": when the first source has given all its records; "all": when the last has, while the
            others start over.

    Raises:
        ConfigError: the sets do not go together, or weights, length or stop cannot be.
    """

    def __init__(
        self, parts: Sequence[tuple[RecordSet, float]], *, length: int | None = None, stop: str = "first"
    ) -> None:
        if any(len(pair) != 2 for pair in parts):
            raise ConfigError("Mix takes pairs of a set and its weight, such as Mix([(a, 0.7), (b, 0.3)])")
        if len(parts) > _MAX_SOURCES:
            raise ConfigError(
                f"a mix has at most {_MAX_SOURCES} sources, got {len(parts)}; use Concat for some"
            )
        self._parts = _same_fields("Mix", [part for part, _ in parts])
        self._first_weights = self._weights = as_weights([weight for _, weight in parts])
        if length is not None and not (is_whole(length) and 0 < length <= MAX_POSITIONS):
            raise ConfigError(f"length must be a whole number from 1 to {MAX_POSITIONS}, got {length!r}")
        if stop not in ("first", "all"):
            raise ConfigError(f'stop must be "first" or "all", got {stop!r}')
        self._length = None if length is None else int(length)
        self._stop = stop
        self._table: MixTable | None = None
        self.source = "mix of " + ", ".join(part.source for part in self._parts)

    @property
    def weights(self) -> Weights:
        """The weights, as they were given or set last."""
        return self._weights

    def set_weights(self, weights: Sequence[float]) -> None:
        """Change the weights, beginning with the next epoch that a loader begins from its start.

        Raises:
            ConfigError: they cannot be.
        """
        changed = as_weights(weights)
        if len(changed) != len(self._parts):
            raise ConfigError(f"the mix has {len(self._parts)} sources, got {len(changed)} weights")
        self._weights = changed

    @property
    def table(self) -> MixTable:
        """The records, as a loader sees them in epoch 0, with the weights that the mix was made with."""
        if self._table is None:
            tables = [part.table for part in self._parts]
            self._table = MixTable(tables, self._first_weights, self._length, self._stop)
        return self._table

    @property
    def sources(self) -> tuple[Source, ...]:
        """The packed sets of all parts."""
        return tuple(source for part in self._parts for source in part.sources)

    @property
    def fields(self) -> dict[str, str]:
        """Names and kinds of the fields."""
        return self._parts[0].fields

    @property
    def encodings(self) -> dict[str, str]:
        """By field, what its bytes are where they are not as in a set of aioload's own."""
        return self._parts[0].encodings

    @property
    def defaults(self) -> Mapping[str, Any]:
        """By field, what samples have where a record lacks it."""
        return _all_defaults(self._parts)

    @property
    def metadata(self) -> Any:
        """What all parts have kept alike, else None."""
        return _common_metadata(self._parts)

    def __len__(self) -> int:
        """Return the number of samples of an epoch, with the weights as they were set last."""
        return len(self.table_at(self.table, 0))

    def __reduce__(self) -> tuple[Any, ...]:
        pairs = tuple(zip(self._parts, self._first_weights, strict=True))
        return _remade_mix, (pairs, self._length, self._stop, self._weights)

    def table_at(self, table: Table, epoch: int) -> Table:
        """Return the table of an epoch that begins, after one that ran with `table`."""
        if not isinstance(table, MixTable) or table.weights == self._weights:
            return table
        return table.reweighed(self._weights, epoch)

    def saved(self, table: Table) -> dict[str, Any] | None:
        """Return the weights, if they were changed, and where the sources stood then."""
        assert isinstance(table, MixTable)
        if table.weights == self._weights == self._first_weights and not any(table.before):
            return None
        return {
            "epoch": table.since,
            "draws": list(table.before),
            "weights": list(table.weights),
            "next_weights": list(self._weights),
        }

    def table_of(self, saved: Mapping[str, Any] | None) -> Table:
        """Return the table of a state.

        Raises:
            ConfigError: it is not one of this mix's.
        """
        if saved is None:
            return self.table
        self._check_saved(saved)
        return self.table.reweighed(as_weights(saved["weights"]), saved["epoch"], saved["draws"])

    def resume(self, saved: Mapping[str, Any] | None) -> None:
        """Take the weights that were set when a state was taken."""
        self._weights = self._first_weights if saved is None else as_weights(saved["next_weights"])

    def _check_saved(self, saved: Mapping[str, Any]) -> None:
        lists, count = ("draws", "weights", "next_weights"), len(self._parts)
        sound = set(saved) == {"epoch", *lists} and all(isinstance(saved[name], list) for name in lists)
        sound = sound and all(len(saved[name]) == count for name in lists)
        numbers = [saved["epoch"], *saved["draws"]] if sound else []
        if not sound or not all(is_whole(number) and number >= 0 for number in numbers):
            raise ConfigError(
                f"the state's mix is {dict(saved)}, which cannot be of this one of {count} sources"
            )


def _remade_mix(pairs: Any, length: int | None, stop: str, weights: Weights) -> Mix:
    mix = Mix(pairs, length=length, stop=stop)
    mix.set_weights(weights)
    return mix


def _same_fields(name: str, parts: Sequence[Any]) -> tuple[RecordSet, ...]:
    """Check that sets go together."""
    if not parts:
        raise ConfigError(f"{name} needs at least one set")
    for part in parts:
        if isinstance(part, Mix):
            raise ConfigError(
                f"{name} takes sets with records of their own, not a mix; name the mix's sources"
            )
        if not isinstance(part, RecordSet):
            raise ConfigError(f"{name} takes sets, got {part!r}; open it with aioload.Dataset")
    first = _described(parts[0])
    for part in parts[1:]:
        others = _described(part)
        names = first.keys() | others.keys()
        differ = sorted(field for field in names if first.get(field) != others.get(field))
        if differ:
            one = ", ".join(f"{field} {first.get(field, 'missing')}" for field in differ)
            other = ", ".join(f"{field} {others.get(field, 'missing')}" for field in differ)
            raise ConfigError(
                f"{name} takes sets with the same fields, but {parts[0].source} has {one} where "
                f"{part.source} has {other}; pack them alike",
                field=differ[0],
            )
    _all_defaults(parts)
    return tuple(parts)


def _all_defaults(parts: Sequence[Collection]) -> dict[str, Any]:
    """Return the defaults of sets that go together: there is one decoder for each field.

    Raises:
        ConfigError: two sets have different ones for a field.
    """
    found: dict[str, Any] = {}
    for part in parts:
        for field, value in part.defaults.items():
            if pickle.dumps(found.setdefault(field, value)) != pickle.dumps(value):
                raise ConfigError(
                    f"the sets have different defaults for the field {field!r}; give all the same",
                    field=field,
                )
    return found


def _described(part: Collection) -> dict[str, str]:
    """Return the kind of each field, and what its bytes are where that is told besides."""
    encodings = part.encodings
    return {
        field: f"{kind} ({encodings[field]})" if field in encodings else kind
        for field, kind in part.fields.items()
    }


def _common_metadata(parts: Sequence[Collection]) -> Any:
    first = parts[0].metadata
    return first if all(part.metadata == first for part in parts[1:]) else None
