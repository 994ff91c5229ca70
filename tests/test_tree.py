"""Trees taken apart and put together again."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.tree import LEAF, MismatchError, align, flatten, paths, unflatten

Point = namedtuple("Point", ["x", "y"])


@dataclass(frozen=True, slots=True)
class Box:
    """A dataclass that refuses what a batch would hold."""

    low: Any
    high: Any
    area: Any = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not isinstance(self.low, int):
            raise TypeError("low must be one number")


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)
TREES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), parts, max_size=3)
        | st.builds(Point, parts, parts)
        | st.builds(Box, st.integers(), parts)
        | st.dictionaries(st.text(max_size=2), parts, max_size=2).map(OrderedDict)
    ),
    max_leaves=12,
)


@given(tree=TREES)
def test_unflatten_is_the_inverse_of_flatten(tree: Any) -> None:
    """A tree taken apart and put together is equal to itself, classes and key order included."""
    leaves, structure = flatten(tree)

    again = unflatten(structure, leaves)

    assert repr(again) == repr(tree)


@given(tree=TREES)
def test_every_leaf_has_a_path_of_its_own(tree: Any) -> None:
    """There are as many paths as leaves."""
    leaves, structure = flatten(tree)

    names = paths(structure)

    assert len(names) == len(leaves)


@given(tree=TREES)
def test_structures_are_values(tree: Any) -> None:
    """Equal makes give structures that are equal, hash alike and survive pickling."""
    structure = flatten(tree)[1]

    copy = cloudpickle.loads(cloudpickle.dumps(structure))

    assert copy == structure
    assert hash(copy) == hash(structure)


@given(tree=TREES)
def test_align_agrees_with_flatten(tree: Any) -> None:
    """Held against its own structure, a tree gives its leaves in order."""
    leaves, structure = flatten(tree)

    aligned = align(structure, tree)

    assert aligned == leaves


def test_paths_read_like_code() -> None:
    """Keys are joined by dots, positions and other keys stand in brackets."""
    tree = {"meta": {"boxes": [0, Point(1, 2)], 7: 3}, "x": (4,), "box": Box(5, 6)}

    names = paths(flatten(tree)[1])

    assert names == (
        *("meta.boxes[0]", "meta.boxes[1].x", "meta.boxes[1].y", "meta[7]"),
        *("x[0]", "box.low", "box.high", "box.area"),
    )


def test_a_lone_value_is_a_leaf_without_a_path() -> None:
    """What is no container is its own tree."""
    leaves, structure = flatten(3)

    assert leaves == [3]
    assert structure is LEAF
    assert paths(structure) == ("",)


def test_flat_dicts_share_one_structure() -> None:
    """The structures of records of the same fields are the same object, so that comparing costs nothing."""
    first = flatten({"image": np.zeros(3), "label": 1})[1]

    second = flatten({"image": np.ones(4), "label": 2})[1]

    assert first is second


def test_a_dataclass_is_built_without_its_checks() -> None:
    """A batch of dataclasses holds arrays where a sample's own checks allow numbers alone."""
    structure = flatten(Box(1, 2))[1]

    batch = unflatten(structure, ["many", "more", 0])

    assert batch.low == "many"
    assert batch.high == "more"


def test_other_mappings_become_dicts() -> None:
    """A mapping that is no dict is a container, too, and built again as a dict."""
    leaves, structure = flatten(MappingProxyType({"a": 1}))

    again = unflatten(structure, leaves)

    assert again == {"a": 1}
    assert type(again) is dict


@pytest.mark.parametrize("leaves", [[], [1], [1, 2, 3]])
def test_wrong_number_of_leaves_is_refused(leaves: list[int]) -> None:
    """Too few and too many leaves are an error, not a shorter tree."""
    structure = flatten({"a": 1, "b": 2})[1]

    with pytest.raises(ValueError, match=r"leaves are too"):
        unflatten(structure, leaves)


def test_align_takes_keys_in_any_order() -> None:
    """The order of keys is the structure's, at every depth."""
    structure = flatten({"a": {"b": 1, "c": 2}, "d": 3})[1]

    leaves = align(structure, {"d": "D", "a": {"c": "C", "b": "B"}})

    assert leaves == ["B", "C", "D"]


@pytest.mark.parametrize(
    ("other", "path", "found"),
    [
        ({"a": {"b": [1, 2]}}, "", "a dict with the keys ['a']"),
        ({"a": {"b": [1, 2], "e": 0}, "d": 3}, "a", "a dict with the keys ['b', 'e']"),
        ({"a": {"b": [1]}, "d": 3}, "a.b", "a list of 1"),
        ({"a": {"b": (1, 2)}, "d": 3}, "a.b", "a tuple of 2"),
        ({"a": {"b": None}, "d": 3}, "a.b", "None"),
        ({"a": {"b": [1, 2]}, "d": [3]}, "d", "a list of 1"),
    ],
)
def test_align_tells_where_makes_differ(other: Any, path: str, found: str) -> None:
    """The first difference is named by path, and both sides are described."""
    structure = flatten({"a": {"b": [1, 2]}, "d": 3})[1]

    with pytest.raises(MismatchError) as caught:
        align(structure, other)

    assert caught.value.path == path
    assert caught.value.found == found
