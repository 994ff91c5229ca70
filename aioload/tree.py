"""Trees: nested containers taken apart into leaves and a structure, and put together again.

Containers are mappings (key order kept), lists, tuples, namedtuples and dataclass instances; all else is a
leaf. A structure is a value: hashable, comparable, picklable. It holds the container classes and keys and
nothing of the data, so samples of the same make have equal structures, and for a flat dict even the same one.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

__all__ = ["LEAF", "MismatchError", "Structure", "align", "flatten", "paths", "unflatten"]


class Structure(NamedTuple):
    """The make of one tree.

    A named tuple since structures are compared once per sample: in C, at once where parts are the same.
    """

    container: type | None
    """The class to build again; None for a leaf."""
    keys: tuple[Any, ...]
    """Keys of a dict or names of a dataclass's fields; empty for sequences."""
    children: tuple[Structure, ...]
    """One structure per part, in order."""


LEAF = Structure(None, (), ())


class MismatchError(Exception):
    """A tree is made differently from the structure it was held against; for callers to translate.

    Args:
        path: where, as in `paths`.
        expected: what the structure has there, in words.
        found: what the tree has there, in words.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(f"{path or 'the tree'} is {expected} in one and {found} in the other")
        self.path = path
        self.expected = expected
        self.found = found


# classes known to be leaves; what else there is costs a cached look-up by class
_PLAIN = frozenset({bool, bytes, float, int, memoryview, np.bool_, np.ndarray, str, *np.sctypeDict.values()})


def flatten(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Structure]:
    """Take a tree apart.

    Args:
        tree: what to take apart.
        is_leaf: tells containers that are to stay whole, such as a list of texts in a batch.

    Returns:
        Its leaves in order, and the structure that `unflatten` needs to build it again.
    """
    # hot: once per record
    if type(tree) is dict and is_leaf is None:
        leaves = list(tree.values())
        if _PLAIN.issuperset(map(type, leaves)) or not any(map(_make, map(type, leaves))):
            return leaves, _flat(tuple(tree))

    leaves = []
    return leaves, _walk(tree, leaves, is_leaf or _never)


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    """Build the tree of this structure with these leaves; a dataclass without running its `__init__`.

    Raises:
        ValueError: the number of leaves is not the structure's.
    """
    rest = iter(leaves)
    try:
        tree = _build(structure, rest)
    except StopIteration:
        raise ValueError(f"{len(leaves)} leaves are too few for this structure") from None
    if next(rest, rest) is not rest:
        raise ValueError(f"{len(leaves)} leaves are too many for this structure")
    return tree


@lru_cache(maxsize=1024)
def paths(structure: Structure) -> tuple[str, ...]:
    """Name the place of each leaf, as in `meta.boxes[2]`; the path of a lone leaf is empty."""
    return tuple(_walk_paths(structure, ""))


def align(structure: Structure, tree: Any, path: str = "") -> list[Any]:
    """Take a tree apart in the order of another's structure; the order of dict keys may differ.

    Raises:
        MismatchError: container classes, keys or lengths differ.
    """
    container, _ = own = _outline(tree)
    if container is not structure.container or not _same_parts(structure, own):
        raise MismatchError(path, _words(structure.container, _parts(structure)), _words_of(tree, own))
    if container is None:
        return [tree]

    leaves: list[Any] = []
    for step, child, part in _steps(structure, tree):
        leaves += align(child, part, _join(path, step))
    return leaves


@lru_cache(maxsize=4096)
def _make(kind: type) -> type | None:
    """Return the class that an instance of this class is built again as; None for a leaf."""
    if issubclass(kind, Mapping):
        return OrderedDict if issubclass(kind, OrderedDict) else dict
    if issubclass(kind, tuple):
        return kind if hasattr(kind, "_fields") else tuple
    if issubclass(kind, list):
        return list
    return kind if dataclasses.is_dataclass(kind) else None


@lru_cache(maxsize=1024)
def _flat(keys: tuple[Any, ...]) -> Structure:
    """Make the structure of a flat dict, the same object for the same keys."""
    return Structure(dict, keys, (LEAF,) * len(keys))


def _walk(tree: Any, leaves: list[Any], is_leaf: Callable[[Any], bool]) -> Structure:
    """Append the leaves and return the structure."""
    kind: Any = type(tree)  # Any: mypy takes classes for unhashable
    container = _make(kind)
    if container is None or is_leaf(tree):
        leaves.append(tree)
        return LEAF

    if issubclass(container, dict):
        children = tuple([_walk(part, leaves, is_leaf) for part in tree.values()])
        return Structure(container, tuple(tree), children)
    if issubclass(container, list | tuple):
        return Structure(container, (), tuple([_walk(part, leaves, is_leaf) for part in tree]))
    names = _field_names(container)
    return Structure(container, names, tuple([_walk(getattr(tree, name), leaves, is_leaf) for name in names]))


def _never(tree: Any) -> bool:
    return False


def _build(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Build one container from the leaves that are next."""
    container, keys, children = structure
    if container is None:
        return next(leaves)

    parts = [next(leaves) if child is LEAF else _build(child, leaves) for child in children]
    if issubclass(container, dict):
        return container(zip(keys, parts, strict=True))
    if issubclass(container, list | tuple):
        return container(*parts) if hasattr(container, "_fields") else container(parts)

    # neither __init__ nor __post_init__: what they check holds for one sample, not for a batch
    tree: Any = container.__new__(container)
    for name, part in zip(keys, parts, strict=True):
        object.__setattr__(tree, name, part)
    return tree


def _walk_paths(structure: Structure, path: str) -> Iterator[str]:
    """Yield the path of each leaf below."""
    if structure.container is None:
        yield path
    for step, child in zip(_step_names(structure), structure.children, strict=True):
        yield from _walk_paths(child, _join(path, step))


def _step_names(structure: Structure) -> list[str]:
    """Name the parts of one container: `name` or `[2]`."""
    names = getattr(structure.container, "_fields", structure.keys)
    if names or not structure.children:
        return [name if isinstance(name, str) else f"[{name!r}]" for name in names]
    return [f"[{position}]" for position in range(len(structure.children))]


def _join(path: str, step: str) -> str:
    """Put one step behind a path."""
    return path + step if step.startswith("[") or not path else f"{path}.{step}"


def _outline(tree: Any) -> tuple[type | None, tuple[Any, ...] | int]:
    """Return the class a tree is built again as, and its keys or length."""
    kind: Any = type(tree)  # Any: as in _walk
    container = _make(kind)
    if container is None:
        return None, 0
    if issubclass(container, dict):
        return container, tuple(tree)
    return container, len(tree) if issubclass(container, list | tuple) else _field_names(container)


def _parts(structure: Structure) -> tuple[Any, ...] | int:
    """Return keys or length as `_outline` does."""
    container = structure.container
    sequence = container is None or issubclass(container, list | tuple)
    return len(structure.children) if sequence else structure.keys


def _same_parts(structure: Structure, outline: tuple[type | None, tuple[Any, ...] | int]) -> bool:
    """Tell whether keys (in any order) or lengths agree."""
    mine, theirs = _parts(structure), outline[1]
    if isinstance(mine, tuple) and isinstance(theirs, tuple):
        return len(mine) == len(theirs) and set(mine) == set(theirs)
    return mine == theirs


def _steps(structure: Structure, tree: Any) -> Iterator[tuple[str, Structure, Any]]:
    """Yield name, structure and part of each child, in the structure's order."""
    container = structure.container
    if container is not None and issubclass(container, dict):
        parts = [tree[key] for key in structure.keys]
    elif container is not None and issubclass(container, list | tuple):
        parts = list(tree)
    else:
        parts = [getattr(tree, name) for name in structure.keys]
    return zip(_step_names(structure), structure.children, parts, strict=True)


def _words_of(tree: Any, outline: tuple[type | None, tuple[Any, ...] | int]) -> str:
    """Describe a tree's outermost make; a leaf by its class."""
    container, parts = outline
    if container is not None:
        return _words(container, parts)
    return "None" if tree is None else f"a value of type {type(tree).__name__}"


def _words(container: type | None, parts: tuple[Any, ...] | int) -> str:
    """Describe a container by its keys or length."""
    if container is None:
        return "a single value"
    if isinstance(parts, tuple) and issubclass(container, dict):
        return f"a dict with the keys {list(parts)}"
    return f"a {container.__name__}" + (f" of {parts}" if isinstance(parts, int) else "")


def _field_names(container: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(container))
