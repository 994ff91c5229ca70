"""Collating field by field, each in its own way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError
from .padding import Pad
from .samples import Collate, default, keys_of
from .stacking import Place

__all__ = ["ByField", "apply", "by_field"]


def by_field(collates: Mapping[str, Collate], rest: Collate = default) -> ByField:
    """Make a collate that treats single top-level fields in their own way.

    Args:
        collates: what to call with the list of a field's values: `{"boxes": as_list, "tokens": pad()}`.
        rest: what collates the samples without these fields; it returns a dict.

    Raises:
        ConfigError: a field's collate wants to add lengths, which only a whole sample has a place for.
    """
    for name, collate in collates.items():
        if isinstance(collate, Pad) and collate.lengths is not None:
            raise ConfigError(
                f"pad(lengths=...) for field {name!r} has no place to put them; use it as rest="
            )
    return ByField(collates=dict(collates), rest=rest)


def apply(
    collate: Collate, samples: list[Any], *, keys: Sequence[object] | None = None, path: str = ""
) -> Any:
    """Call a collate, and tell the records' keys to those that can use them."""
    if isinstance(collate, Pad | ByField):
        return collate(samples, keys=keys, path=path)
    if collate is default:
        return default(samples, keys=keys, path=path)
    return collate(samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByField:
    """The collate that `by_field` makes."""

    collates: Mapping[str, Collate]
    """What to call with the values of single fields."""
    rest: Collate = default
    """What to call with the samples without them."""

    def __call__(self, samples: list[Any], *, keys: Sequence[object] | None = None, path: str = "") -> Any:
        """Collate samples that are dicts, field by field."""
        keys = keys_of(samples, keys)
        self._check(samples, Place(path, keys))
        others = [{name: sample[name] for name in sample if name not in self.collates} for sample in samples]
        batch = apply(self.rest, others, keys=keys, path=path) if any(others) else {}
        if not isinstance(batch, dict):
            raise ConfigError(f"by_field needs a rest= that returns a dict, not a {type(batch).__name__}")
        batch = dict(batch)
        for name, collate in self.collates.items():
            values = [sample[name] for sample in samples]
            batch[name] = apply(collate, values, keys=keys, path=f"{path}.{name}" if path else name)

        order = [name for name in samples[0] if name in batch]
        return {name: batch[name] for name in dict.fromkeys([*order, *batch])}

    def _check(self, samples: list[Any], place: Place) -> None:
        """Refuse samples without these fields."""
        for position, sample in enumerate(samples):
            missing = (
                self.collates
                if not isinstance(sample, dict)
                else [n for n in self.collates if n not in sample]
            )
            if missing:
                raise place.fault(
                    f"by_field names fields that are not there, {sorted(missing)}",
                    position,
                    cure="name fields that every sample has after the transform",
                )
