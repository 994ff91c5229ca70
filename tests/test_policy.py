"""A policy decides what becomes of bad records, and limits count in the order of the batches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aioload
from aioload import AioloadError, ConfigError, NotFoundError, SampleError, Skip
from aioload.policy import Skipped, Tally, ask, choose


def bad(record: int, shard: str = "s") -> tuple[Skipped, AioloadError, bool]:
    """A record that was left out."""
    return Skipped(0, shard, record, None, "bad"), SampleError(f"record {record}", record=record), False


def missing(record: int, shard: str) -> tuple[Skipped, AioloadError, bool]:
    """A record of a shard that is not there."""
    return Skipped(0, shard, record, None, "gone"), NotFoundError(f"record {record}"), True


# Options ---------------------------------------------------------------------------------------------


def test_skip_is_a_public_name() -> None:
    """The limit of what may be left out is given as `aioload.Skip`."""
    assert aioload.Skip(limit=3) == Skip(3)
    assert aioload.Skip().limit == 100


@pytest.mark.parametrize(
    ("limit", "records", "allowed"),
    [(0, 1000, 0), (7, 3, 7), (0.0, 1000, 0), (0.01, 1000, 10), (0.01, 99, 0), (1.0, 12, 12)],
)
def test_a_limit_is_a_count_or_a_share(limit: float, records: int, allowed: int) -> None:
    """A whole number counts records, a float is a share of the epoch's, rounded down."""
    assert Skip(limit).allowed(records) == allowed


@pytest.mark.parametrize("limit", [-1, -0.1, 1.1, float("nan"), float("inf"), True, "3", None])
def test_a_limit_that_cannot_be_is_refused(limit: Any) -> None:
    """Nonsense as a limit is told when it is given."""
    with pytest.raises(ConfigError, match="must be a count, or a share"):
        Skip(limit)


@pytest.mark.parametrize(("records", "allowed"), [(0, 10), (100, 10), (1000, 10), (5000, 50)])
def test_the_word_skip_means_ten_or_one_in_a_hundred(records: int, allowed: int) -> None:
    """The default of `on_error="skip"` is the larger of the two."""
    policy: Any = choose("skip")

    assert policy.allowed(records) == allowed


async def decide_later(error: AioloadError) -> str:
    """No policy can be a coroutine function: nobody would await it."""
    return "skip"


@pytest.mark.parametrize("option", ["ignore", None, Skip, 3, decide_later, SampleError])
def test_an_option_that_is_none_is_refused(option: Any) -> None:
    """What is neither word, limit nor function is a ConfigError that names them."""
    with pytest.raises(ConfigError, match=r'"raise", "skip", aioload.Skip\(limit=...\) or a plain function'):
        choose(option)


def test_raise_means_no_policy() -> None:
    """The default is to raise."""
    assert choose("raise") is None


# Functions -------------------------------------------------------------------------------------------


def test_a_function_may_leave_out_or_replace() -> None:
    """`"skip"` leaves a record out; what is no word is a sample, whatever it is."""
    error = SampleError("bad", record=3)

    assert ask(lambda error: "skip", error) is None
    assert ask(lambda error: {"n": 1}, error) == ({"n": 1},)
    assert ask(lambda error: "another text", error) == ("another text",)
    assert ask(lambda error: (), error) == ((),)


def test_a_function_may_raise_the_error_it_was_given() -> None:
    """`"raise"` and `raise error` are the same."""
    error = SampleError("bad", record=3)

    def raise_it(error: AioloadError) -> Any:
        raise error

    with pytest.raises(SampleError) as by_word:
        ask(lambda error: "raise", error)
    with pytest.raises(SampleError) as by_hand:
        ask(raise_it, error)

    assert by_word.value is by_hand.value is error


@pytest.mark.parametrize(
    "kind", [ValueError, StopIteration, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
)
def test_a_function_that_raises_is_told(kind: type[BaseException]) -> None:
    """What a function raises becomes one error of ours that names both; nothing ends the loop it runs in."""

    def fail(error: AioloadError) -> Any:
        raise kind("oh no")

    with pytest.raises(AioloadError, match=rf"on_error raised {kind.__name__} \(oh no\) for: bad") as raised:
        ask(fail, SampleError("bad", record=3, shard="s"))

    assert isinstance(raised.value.__cause__, kind)
    assert (raised.value.record, raised.value.shard) == (3, "s")


def test_a_function_that_returns_nothing_is_told() -> None:
    """A forgotten `return` is no sample."""
    with pytest.raises(AioloadError, match="on_error returned None"):
        ask(lambda error: None, SampleError("bad"))


# Counting --------------------------------------------------------------------------------------------


def test_a_limit_holds_in_the_order_of_the_batches() -> None:
    """The record that is one too many is the one that is raised, with a note of the count."""
    tally = Tally(Skip(2).allowed)

    tally.add([bad(1), bad(2)], epoch=4, records=100)
    with pytest.raises(SampleError, match="record 5") as raised:
        tally.add([bad(5), bad(6)], epoch=4, records=100)

    assert "3 records of epoch 4" in raised.value.__notes__[0]
    assert "allows 2" in raised.value.__notes__[0]
    assert [skipped.record for skipped in tally.kept] == [1, 2, 5]


def test_each_iteration_counts_from_nothing() -> None:
    """What was left out before does not count again, in another epoch or in the same one begun anew."""
    tally = Tally(Skip(2).allowed)

    for _ in range(3):
        tally.begin()
        tally.add([bad(1), bad(2)], epoch=0, records=100)

    assert tally.total == 6


def test_a_missing_shard_counts_once() -> None:
    """However many records of a shard are gone with it, they are one against the limit."""
    tally = Tally(Skip(2).allowed)

    tally.add([missing(record, "a") for record in range(50)], epoch=0, records=100)
    tally.add([missing(record, "b") for record in range(50)], epoch=0, records=100)
    with pytest.raises(NotFoundError, match="record 99"):
        tally.add([missing(99, "c")], epoch=0, records=100)

    assert tally.total == 101


def test_what_is_remembered_is_bounded() -> None:
    """The last thousand are kept by name, all are counted."""
    tally = Tally(None)

    for record in range(3000):
        tally.add([bad(record)], epoch=0, records=100)

    assert tally.total == 3000
    assert [skipped.record for skipped in tally.kept] == list(range(2000, 3000))
