"""The public face: sorted, documented, typed, and errors where users look for them."""

from __future__ import annotations

import importlib.resources
import inspect
from collections.abc import Iterator

import pytest

import aioload
from aioload import collate, decode, errors

FRONTS = (aioload, collate, decode, errors)


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
def test_names_are_listed_and_sorted(front: object) -> None:
    """`__all__` holds only names that are there: constants, then classes, then the rest, each sorted."""
    names = front.__all__

    absent = [name for name in names if not hasattr(front, name)]

    assert absent == []
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front.__name__)
def test_every_public_thing_is_documented(front: object) -> None:
    """Each public class and function, and each public method of such a class, has a docstring."""
    silent = [name for name, thing in _public_things(front) if not inspect.getdoc(thing)]

    assert silent == []


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_are_reachable(name: str) -> None:
    """Every error is a name of the front door and a kind of `AioloadError`."""
    error = getattr(aioload, name)

    assert error is getattr(errors, name)
    assert issubclass(error, aioload.AioloadError)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [("ConfigError", ValueError), ("StorageError", OSError), ("NotFoundError", FileNotFoundError)],
)
def test_errors_answer_to_the_builtin_too(name: str, builtin: type[Exception]) -> None:
    """Who catches the builtin error catches ours."""
    error = getattr(aioload, name)

    assert issubclass(error, builtin)


def test_types_are_shipped() -> None:
    """The package carries the marker that tells type checkers to read it."""
    marker = importlib.resources.files(aioload) / "py.typed"

    assert marker.is_file()


def _public_things(front: object) -> Iterator[tuple[str, object]]:
    """The classes and functions of a module's `__all__`, and the public methods of those classes."""
    for name in front.__all__:
        thing = getattr(front, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            yield name, thing
        for inner, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not inner.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                yield f"{name}.{inner}", member
