"""Collating samples: taken apart, each field's values joined, put together as one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ..tree import MismatchError, Structure, align, flatten, paths, unflatten
from .stacking import Place, stack

__all__ = ["Collate", "Join", "as_list", "batch_structure", "collate_by", "default", "keys_of"]

Collate = Callable[[list[Any]], Any]
"""What users may give: a list of samples (or of one field's values) in, a batch out."""

Join = Callable[[Sequence[Any], Place], Any]
"""What makes one leaf of the batch from the values of one field."""


def default(samples: list[Any], *, keys: Sequence[object] | None = None, path: str = "") -> Any:
    """Stack samples by the rules of torch's `default_collate`.

    Args:
        samples: at least one; all made alike.
        keys: key or number of each record for errors to name; default: the `"__key__"` they carry, if any.
        path: where in the samples these values stand, for errors.

    Returns:
        One tree made like a sample, with arrays (tensors where the samples hold tensors) and lists as leaves.

    Raises:
        SampleError: keys, lengths, shapes or kinds of values differ, or a value has no place in a batch; with
            `field`, `records` and, as it applies, `shapes` or `dtypes`.
    """
    return collate_by(samples, keys, path, _stack)


def as_list(samples: list[Any]) -> list[Any]:
    """Leave the samples, or the values of one field, as they are: a list."""
    return samples


def collate_by(samples: list[Any], keys: Sequence[object] | None, path: str, join: Join) -> Any:
    """Take samples apart, join the values of each leaf, and put the batch together."""
    keys = keys_of(samples, keys)
    if not samples:
        raise Place(path).fault("there are none", cure="a batch has at least one sample")

    leaves, structure = flatten(samples[0])
    rows = [leaves]
    for position in range(1, len(samples)):
        leaves, other = flatten(samples[position])
        if other is not structure and other != structure:
            leaves = _aligned(structure, samples, position, Place(path, keys))
        rows.append(leaves)

    columns = zip(paths(structure), zip(*rows, strict=True), strict=True)
    joined = [join(values, Place(_under(path, leaf), keys)) for leaf, values in columns]
    return unflatten(batch_structure(structure), joined)


@lru_cache(maxsize=1024)
def batch_structure(structure: Structure) -> Structure:
    """Make the structure of a batch from that of its samples: tuples become lists, as torch has it."""
    container, keys, children = structure
    return Structure(list if container is tuple else container, keys, tuple(map(batch_structure, children)))


def keys_of(samples: list[Any], keys: Sequence[object] | None) -> Sequence[object] | None:
    """Return the records' keys: as given, or as the samples carry them."""
    if keys is not None or not samples or not isinstance(samples[0], dict) or "__key__" not in samples[0]:
        return keys
    return [sample.get("__key__") if isinstance(sample, dict) else None for sample in samples]


def _stack(values: Sequence[Any], place: Place) -> Any:
    """Stack one field's values."""
    return stack(values, place=place)


def _aligned(structure: Structure, samples: list[Any], position: int, place: Place) -> list[Any]:
    """Take a sample apart in the order of the first one's keys, or say where the two differ."""
    try:
        return align(structure, samples[position])
    except MismatchError as error:
        place = Place(_under(place.field, error.path), place.keys)
        raise place.fault(
            f"it is {error.expected} in {place.name(0)} but {error.found} in {place.name(position)}",
            *(0, position),
            cure="make the samples alike in the transform, or collate them in your own way: "
            "collate=aioload.collate.as_list or aioload.collate.by_field(...)",
        ) from error


def _under(path: str, leaf: str) -> str:
    """Put the path of a leaf under that of its sample."""
    return path + leaf if not path or not leaf or leaf.startswith("[") else f"{path}.{leaf}"
