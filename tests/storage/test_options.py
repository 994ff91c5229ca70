"""Options of network storage are checked, have the defaults that are documented, and hide what is secret."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import pytest

from aioload.errors import ConfigError
from aioload.storage.options import NetworkOptions

SECRET = "hunter2"


def test_defaults() -> None:
    """What the documents promise; a None is a default too."""
    options = NetworkOptions.parse(None)

    assert dataclasses.asdict(options) == {
        "endpoint": None,
        "region": None,
        "access_key_id": None,
        "secret_access_key": None,
        "anonymous": False,
        "headers": None,
        "connect_timeout": 5.0,
        "read_timeout": 10.0,
        "deadline": 120.0,
        "attempts": 6,
        "hedge": True,
        "max_in_flight": None,
    }
    assert (
        NetworkOptions.parse({"read_timeout": None, "attempts": None}) == options == NetworkOptions.parse({})
    )


def test_values_are_taken() -> None:
    """Sizes may be texts, and times whole numbers."""
    options = NetworkOptions.parse(
        {"max_in_flight": "64MiB", "deadline": 30, "attempts": 1, "hedge": False, "headers": {"X-A": "b"}}
    )

    assert (options.max_in_flight, options.deadline, options.attempts) == (64 << 20, 30.0, 1)
    assert (options.hedge, options.headers) == (False, {"X-A": "b"})


def test_unknown_names_are_listed_with_the_known_ones() -> None:
    """A misspelt option is found at once."""
    with pytest.raises(ConfigError, match=r"retries, timeout; known are endpoint, region, .*max_in_flight"):
        NetworkOptions.parse({"timeout": 1, "retries": 2, "hedge": True})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("endpoint", ["", 1, b"http://host", "http://host\n"]),
        ("endpoint", ["host:9000", "http://", "http://host:99999", "ftp://host", f"http://host?x={SECRET}"]),
        ("region", ["", 1, "us east", "snow\N{SNOWMAN}"]),
        ("access_key_id", ["", 1]),
        ("secret_access_key", ["", 1, f"{SECRET}\n"]),
        ("anonymous", [1, "yes"]),
        (
            "headers",
            [[], "X: y", {"X Y": "z"}, {"": "z"}, {1: "z"}, {"X": 1}, {"X": f"{SECRET}\r\nRange: x"}],
        ),
        ("headers", [{"Range": "x"}, {"ACCEPT-encoding": "gzip"}, {"Host": "x"}, {"x": "1", "X": "2"}]),
        ("headers", [{"X": "\N{SNOWMAN}"}, {"X": "nul\0"}]),
        ("connect_timeout", [0, -1, math.inf, math.nan, "5", True]),
        ("read_timeout", [0, math.nan]),
        ("deadline", [0, math.inf, 10**400]),
        ("attempts", [0, 1.5, True, "6"]),
        ("hedge", [0, None.__class__]),
        ("max_in_flight", [0, -1, "lots", 1.5]),
    ],
)
def test_values_that_cannot_be_are_config_errors(name: str, values: list[Any]) -> None:
    """The message names the option and quotes no secret."""
    for value in values:
        with pytest.raises(ConfigError) as caught:
            NetworkOptions.parse({name: value})

        assert name in str(caught.value)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("given", ["endpoint=x", [("endpoint", "x")], 5])
def test_only_a_mapping_is_taken(given: Any) -> None:
    """Anything else is told what to be."""
    with pytest.raises(ConfigError, match="must be a dict of options by name; known are"):
        NetworkOptions.parse(given)


def test_secrets_are_not_shown_and_travel() -> None:
    """Options may be printed, and pickled by whoever owns them."""
    options = NetworkOptions.parse(
        {
            "endpoint": f"http://user:{SECRET}@host",
            "access_key_id": SECRET,
            "secret_access_key": SECRET,
            "headers": {"Authorization": f"Bearer {SECRET}"},
        }
    )

    assert SECRET not in repr(options) + str(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_headers_are_a_copy() -> None:
    """What the caller changes later changes nothing."""
    headers = {"X": "before"}
    options = NetworkOptions.parse({"headers": headers})

    headers["X"] = "after"

    assert options.headers == {"X": "before"}
