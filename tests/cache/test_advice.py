"""Advice: a cache is suggested where it pays and fits, and what it did is told."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.cache.advice import Rooms, advise, describe
from aioload.machine import parse_bytes
from aioload.stats import LoaderStats

ROOMS = Rooms(records=10_000, memory=8 << 30)


def stats(**values: Any) -> LoaderStats:
    """Return what a loader counted that spends nearly all in `prepare`, whose results take 100 KiB each."""
    usual = {
        "samples": 1000,
        "prepared_samples": 1000,
        "measured_samples": 10,
        "prepared_bytes": 10 * 100 << 10,
        "decode_seconds": 1.0,
        "prepare_seconds": 8.0,
        "transform_seconds": 0.5,
        "collate_seconds": 0.5,
    }
    return LoaderStats(**(usual | values))


def test_a_cache_that_pays_is_suggested() -> None:
    """With its size, what it would take off the workers, and how much faster they could be."""
    text = "\n".join(advise(stats(), ROOMS))

    assert "decode and prepare take 90% of the workers' time" in text
    assert "kept, all samples take 976.6 MiB" in text
    assert 'cache=Memory("996.1 MiB")' in text
    assert "up to 9.5 x as fast" in text


@given(st.integers(1, 10**7))
def test_the_size_that_is_suggested_can_be_given(prepared_bytes: int) -> None:
    """What stands in the line is taken by the option as it stands there, and holds all samples."""
    text = "\n".join(advise(stats(prepared_bytes=prepared_bytes), ROOMS))

    told = re.search(r'"(.+?)"', text)

    assert told is not None
    assert parse_bytes(told[1], name="limit") >= prepared_bytes / 10 * ROOMS.records * 0.97


def test_what_does_not_fit_into_memory_goes_to_the_disk() -> None:
    """Nobody is told to keep more than memory has to spare."""
    text = "\n".join(advise(stats(), Rooms(10_000_000, 8 << 30)))

    assert "cache=Disk(path" in text
    assert "memory has 8.0 GiB to spare" in text


@pytest.mark.parametrize(
    "values",
    [
        {"prepare_seconds": 0.0, "decode_seconds": 0.1},
        {"prepared_samples": 20},
        {"prepared_bytes": 10 * 100 << 20},
        {"samples": 0},
    ],
    ids=["cheap", "young", "large", "nothing"],
)
def test_what_would_not_pay_is_not_suggested(values: dict[str, Any]) -> None:
    """Cheap work, results that take longer to copy than to make, and loaders that have just begun."""
    assert advise(stats(**values), ROOMS) == []


def test_decoding_alone_is_told_of_as_one() -> None:
    """Where nothing is prepared, the line speaks of decoding."""
    text = "\n".join(advise(stats(decode_seconds=9.0, prepare_seconds=0.0), ROOMS))

    assert "decode takes 90% of the workers' time, for what is always the same" in text


def test_what_a_cache_did_is_told() -> None:
    """Hit rate, bytes, what it saved, what was damaged, and the names."""
    found = stats(
        sample_hits=750,
        sample_misses=250,
        sample_cache_bytes=3 << 20,
        saved_seconds=7.5,
        sample_cache_seconds=0.5,
        sample_errors=2,
    )

    lines = describe(found, ["abc (set 123)"])

    assert lines[0].startswith("cache:   75% of 1,000 samples were found (3.0 MiB), which saved 7.0 s")
    assert "2 were not what had been kept" in lines[1]
    assert lines[2].strip() == "kept as abc (set 123)"
