"""Diagnosis: which stage limits, what tells so and what would help, from numbers alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.diagnosis import Stage, diagnose
from aioload.report import render
from aioload.stats import LoaderStats

BUSY = {"worker_seconds": 20.0, "busy_seconds": 19.0, "work_seconds": 18.0, "wait_work_seconds": 7.0}
IDLE = {"worker_seconds": 20.0, "busy_seconds": 6.0, "work_seconds": 5.0, "wait_work_seconds": 7.0}
LOCAL = {"mapped": True, "num_workers": 2, "cpus": 2, "prefetch": 6, "reads_in_flight": 4}


def counted(**counts: Any) -> LoaderStats:
    """Return ten seconds of a loop that waits for eight of them."""
    usual = {"batches": 100, "samples": 1600, "wait_seconds": 8.0, "consumer_seconds": 2.0}
    return LoaderStats(**{**usual, **LOCAL, **counts})


CASES = {
    "the loop hardly waits": ("model", {**BUSY, "wait_seconds": 0.2, "consumer_seconds": 9.8}),
    "busy, decoding": ("decode", {**BUSY, "decode_seconds": 15.0, "check_seconds": 0.1}),
    "busy, preparing": ("prepare", {**BUSY, "decode_seconds": 5.0, "prepare_seconds": 11.0}),
    "busy, transforming": ("transform", {**BUSY, "decode_seconds": 5.0, "transform_seconds": 11.0}),
    "busy, collating": ("collate", {**BUSY, "decode_seconds": 5.0, "collate_seconds": 11.0}),
    "busy, writing rows": ("collate", {**BUSY, "decode_seconds": 3.0}),
    "busy, waiting for mapped files": ("storage", {**BUSY, "decode_seconds": 15.0, "check_seconds": 13.0}),
    "busy, comparing sums of what was read": (
        "decode",
        {**BUSY, "decode_seconds": 15.0, "check_seconds": 13.0, "mapped": False},
    ),
    "busy with a few slow samples": ("order", {**BUSY, "transform_seconds": 17.0, "uneven_seconds": 12.0}),
    "one worker busy with a few slow samples": (
        "transform",
        {**BUSY, "transform_seconds": 17.0, "uneven_seconds": 12.0, "num_workers": 1},
    ),
    "all samples left out": ("transform", {**BUSY, "transform_seconds": 17.0, "samples": 0}),
    "busy handing over": ("order", {**BUSY, "work_seconds": 5.0, "decode_seconds": 4.0}),
    "idle, bytes on their way": (
        "storage",
        {**IDLE, "wait_read_seconds": 6.5, "wait_work_seconds": 1.0, "reads": 10, "read_seconds": 30.0},
    ),
    "idle, and no memory": ("memory", {**IDLE, "wait_memory_seconds": 7.0}),
    "bytes on their way for want of memory": (
        "memory",
        {**IDLE, "wait_memory_seconds": 7.0, "wait_read_seconds": 6.5, "wait_work_seconds": 1.0},
    ),
    "busy, and no memory for more": (
        "decode",
        {**BUSY, "decode_seconds": 15.0, "wait_memory_seconds": 7.0},
    ),
    "idle behind slow samples": ("order", {**IDLE, "uneven_seconds": 4.0, "wait_late_seconds": 7.0}),
    "idle, held back": ("order", {**IDLE, "wait_held_seconds": 7.0, "decode_seconds": 4.0}),
    "idle, planning": ("order", {**IDLE, "wait_work_seconds": 1.0}),
    "in the user's thread, decoding": (
        "decode",
        {"num_workers": 0, "wait_work_seconds": 7.0, "wait_read_seconds": 1.0, "decode_seconds": 6.0},
    ),
    "in the user's thread, reading": (
        "storage",
        {"num_workers": 0, "wait_work_seconds": 1.0, "wait_read_seconds": 7.0, "decode_seconds": 1.0},
    ),
    "copies that the loop waits for": (
        "copy",
        {**BUSY, "device_batches": 100, "device_seconds": 8.0, "device_wait_seconds": 7.0},
    ),
    "copies that the model stands still for": (
        "copy",
        {
            **BUSY,
            "device_batches": 100,
            "wait_seconds": 0.2,
            "consumer_seconds": 9.8,
            "device_stall_seconds": 3.0,
        },
    ),
    "copies, but other waits are longer": (
        "decode",
        {**BUSY, "decode_seconds": 15.0, "device_batches": 100, "device_wait_seconds": 2.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_stage_that_limits(name: str) -> None:
    """What workers did while the loop waited tells which it is."""
    stage, counts = CASES[name]

    found = diagnose(counted(**counts))

    assert found.stage == stage
    assert found.evidence
    assert found.advice


def test_what_came_before_the_first_batch_says_nothing() -> None:
    """A minute of imports and first reads, all of it in decoding: what follows is transforms."""
    start = counted(batches=1, samples=16, wait_seconds=60.0, first_batch_seconds=60.0, consumer_seconds=0.0)
    start = replace(start, decode_seconds=110.0, work_seconds=112.0)
    later = counted(**BUSY, first_batch_seconds=60.0, decode_seconds=112.0, transform_seconds=15.0)
    later = replace(later, wait_seconds=68.0, work_seconds=130.0, start=start)

    found = diagnose(later)

    assert found.stage == "transform"
    assert found.stall == pytest.approx(0.8)
    assert found.rate == pytest.approx((1600 - 16) / 10)


def test_a_window_is_told_by_itself() -> None:
    """The difference of two looks: it was decoding for long, and is reading now."""
    before = counted(**BUSY, decode_seconds=17.0)
    after = replace(
        before,
        batches=200,
        samples=3200,
        wait_seconds=16.0,
        consumer_seconds=4.0,
        worker_seconds=40.0,
        busy_seconds=20.0,
        work_seconds=19.0,
        wait_read_seconds=8.0,
    )

    assert diagnose(before).stage == "decode"
    assert diagnose(after.since(before)).stage == "storage"


@pytest.mark.parametrize(
    ("stats", "told"),
    [(LoaderStats(), "no batch"), (LoaderStats(batches=1, samples=8, wait_seconds=1.0), "one batch is too")],
    ids=["none", "one"],
)
def test_too_little_to_tell(stats: LoaderStats, told: str) -> None:
    """Before a loop has gone round once nothing is claimed."""
    stats = replace(stats, first_batch_seconds=stats.wait_seconds)

    found = diagnose(stats)

    assert told in found.evidence
    assert (found.stall, found.rate, found.reach) == (0, 0, 0)


def test_a_few_batches_are_named_as_such() -> None:
    """It says how many there were."""
    found = diagnose(counted(**BUSY, decode_seconds=15.0, batches=3))

    assert "of 3 batches only" in found.evidence


def test_what_the_loop_would_reach() -> None:
    """The next slowest stage decides: the rest of the work, the model, or reads."""
    work = {**BUSY, "decode_seconds": 12.0, "transform_seconds": 6.0, "busy_seconds": 18.0}

    by_work = diagnose(counted(**work))
    by_model = diagnose(replace(counted(**work), consumer_seconds=9.0, wait_seconds=1.0))
    by_reads = diagnose(counted(**work, reads=100, read_seconds=30.0, reads_in_flight=4))
    none = diagnose(counted(**work, consumer_seconds=9.9, wait_seconds=0.1))

    assert by_work.reach == pytest.approx(1600 * 2 / 6)
    assert by_model.reach == pytest.approx(1600 / 9)
    assert by_reads.reach == pytest.approx(1600 * 4 / 30)
    assert none.reach == pytest.approx(1600 * 2 / 18)


@pytest.mark.parametrize(
    ("counts", "advice"),
    [
        ({**BUSY, "decode_seconds": 15.0, "cpus": 8}, "num_workers=8"),
        ({**BUSY, "decode_seconds": 15.0, "cpus": 2}, "or more CPUs"),
        ({**BUSY, "decode_seconds": 15.0, "cpus": 8, "queued_seconds": 12.0}, "CPUs that nobody else"),
        ({**BUSY, "transform_seconds": 15.0, "blocked_seconds": 12.0}, "num_workers=4"),
        ({**CASES["in the user's thread, decoding"][1]}, "num_workers='auto'"),
        ({**CASES["idle, held back"][1]}, "raise prefetch (it is 6)"),
        ({**CASES["idle, and no memory"][1], "memory_limit": 1 << 20}, "memory_limit (it is 1.0 MiB)"),
        ({**CASES["idle, bytes on their way"][1], "read_bytes": 10 << 10}, "block_bytes"),
        ({**CASES["idle, bytes on their way"][1], "read_bytes": 10 << 20, "requests": 10}, "cache_dir="),
        ({**CASES["copies that the loop waits for"][1], "device_staged": 90}, "page-locked"),
        ({**CASES["the loop hardly waits"][1]}, "nothing: the model limits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_advice_fits_the_settings(counts: dict[str, Any], advice: str) -> None:
    """The next step is one that is left."""
    assert advice in diagnose(counted(**counts)).advice


seconds = st.floats(0, 1e6, allow_nan=False)


@given(
    st.fixed_dictionaries(
        {
            one.name: seconds if one.type == "float" else st.integers(0, 10**9)
            for one in fields(LoaderStats)
            if one.type in ("float", "int")
        }
    ),
    st.booleans(),
)
def test_any_numbers_give_a_diagnosis(counts: dict[str, Any], mapped: bool) -> None:
    """One stage of those there are, shares that are shares, and no reach below the rate."""
    stats = LoaderStats(**counts, mapped=mapped)

    found = diagnose(stats)

    assert found.stage in get_args(Stage)
    assert 0 <= found.stall <= 1
    assert 0 <= found.rate <= found.reach
    assert render(stats)


@given(st.sampled_from(sorted(CASES)), st.integers(1, 1000))
def test_how_long_it_ran_does_not_matter(name: str, times: int) -> None:
    """As much of everything, many times over, is the same diagnosis."""
    stats = counted(**CASES[name][1])
    counts = {
        one.name: times * getattr(stats, one.name)
        for one in fields(LoaderStats)
        if one.name != "start" and not one.metadata
    }

    assert diagnose(replace(stats, **counts)).stage == diagnose(stats).stage


def test_a_report_is_about_ten_lines() -> None:
    """Stall, throughput, the limit with its evidence, the reach and the next step are each on a line."""
    stats = counted(**BUSY, decode_seconds=15.0, reads=3, device_batches=3)

    lines = render(stats, {"num_workers": "as asked for"}).splitlines()

    assert len(lines) <= 11
    assert "160 samples/s; it waited 80% of its time" in lines[1]
    assert lines[2].startswith("limit:   decode: 79% of the work on samples")
    assert [line.split(":")[0] for line in lines[2:5]] == ["limit", "reach", "next"]


def test_a_single_batch_is_told_as_one() -> None:
    """Neither as none nor as several."""
    assert "of 1 batch only" in diagnose(counted(**BUSY, decode_seconds=15.0, batches=1)).evidence


@pytest.mark.parametrize(
    ("workers", "told"), [(0, "in the training thread"), (1, "in 1 worker"), (2, "in 2 workers")]
)
def test_workers_are_counted(workers: int, told: str) -> None:
    """One is one, and none is the thread that trains."""
    lines = render(counted(**{**BUSY, "num_workers": workers}, decode_seconds=15.0)).splitlines()

    assert [line.endswith(told) for line in lines if line.startswith("work:")] == [True]


def test_workers_that_died_are_told() -> None:
    """What their replacement costs looks like work of some stage, and is none."""
    often = diagnose(counted(**BUSY, decode_seconds=15.0, restarts=8))
    one_in_an_hour = diagnose(
        replace(counted(**BUSY, restarts=1), worker_seconds=7200.0, busy_seconds=7000.0)
    )

    assert "8 workers died" in often.evidence
    assert often.advice.startswith("find out first why workers die")
    assert "died" not in one_in_an_hour.evidence + one_in_an_hour.advice


def test_batches_without_samples_are_told() -> None:
    """If all samples are left out, a rate of zero has its reason."""
    found = diagnose(counted(**BUSY, decode_seconds=15.0, samples=0))

    assert "all were left out" in found.evidence
    assert (found.rate, found.reach) == (0, 0)
