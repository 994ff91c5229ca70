"""What epochs cost: the slowest of what works side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.benching import Pattern
from aioload.planning import PRESETS, Demand, Medium, Subject, Work, epochs_of
from aioload.planning.costs import decode_seconds, model_seconds


def subject(*, records: int = 1000, is_network: bool = False, fits: bool = False) -> Subject:
    """Return a set of records of 100 KB."""
    return Subject("x", "aioload", records, records * 100_000, 4, is_network, fits)


def pattern(records: int = 1000) -> Pattern:
    """Return reads of 250 KB."""
    reads = max(records * 2 // 5, 1)
    return Pattern(records, records * 100_000, reads, reads, reads, records * 100_000)


def work(rate: float = 1000.0, *, workers: int = 2, cpus: int = 2, read_cpu: float = 0.0) -> Work:
    """Return what records cost."""
    return Work(workers, rate, 0.001, 150_000, 0.3, cpus, read_cpu=read_cpu)


@given(
    st.integers(1, 10**7),
    st.sampled_from(list(PRESETS.values())),
    st.floats(1, 1e5),
    st.one_of(st.none(), st.floats(1e-4, 10)),
    st.integers(1, 8),
    st.integers(1, 100),
    st.booleans(),
)
def test_an_epoch_takes_as_long_as_its_slowest_stage(
    records: int,
    medium: Medium,
    rate: float,
    step: float | None,
    gpus: int,
    epochs: int,
    fits: bool,
) -> None:
    """No stage takes longer than the epoch, one as long, and later epochs take no more than the first."""
    demand = Demand(64, gpus, step, epochs)

    found = epochs_of(subject(records=records, fits=fits), pattern(records), medium, work(rate), demand)

    assert found.later_seconds == found.limit.seconds == max(stage.seconds for stage in found.later)
    assert found.first_seconds == pytest.approx(0.3 + max(stage.seconds for stage in found.first))
    assert found.later_seconds <= found.first_seconds
    assert found.total(epochs) == pytest.approx(found.first_seconds + (epochs - 1) * found.later_seconds)
    assert [stage.name for stage in found.first][:3] == ["storage", "decode", "copy"]
    assert (len(found.first) == 4) == (step is not None)
    assert all((stage.share_of_step is None) == (step is None) for stage in found.later)


def test_what_stays_in_the_page_cache_is_read_once() -> None:
    """A local set that fits costs its storage in the first epoch alone; one in a network each time."""
    hdd, demand = PRESETS["hdd"], Demand(64)

    local = epochs_of(subject(fits=True), pattern(), hdd, work(), demand)
    large = epochs_of(subject(), pattern(), hdd, work(), demand)
    remote = epochs_of(subject(fits=True, is_network=True), pattern(), hdd, work(), demand)

    assert local.first[0].seconds == large.first[0].seconds > 4
    assert [found.later[0].seconds for found in (local, large, remote)] == [0, *[large.first[0].seconds] * 2]


def test_what_was_measured_counts_in_place_of_the_medium() -> None:
    """Seconds of the epoch's own reads say more than figures of their kind."""
    found = epochs_of(subject(), pattern(), PRESETS["hdd"], work(), Demand(64), storage_seconds=2.5)

    assert found.first[0].seconds == 2.5


def test_the_budget_of_a_step() -> None:
    """A stage that takes twice the model's time has a share of two."""
    demand = Demand(100, 1, 0.05)  # ten steps of 50 ms

    found = epochs_of(subject(), pattern(), PRESETS["nvme"], work(1000.0), demand)

    shares = {stage.name: stage.share_of_step for stage in found.later}
    assert shares["decode"] == pytest.approx(2.0)
    assert shares["model"] == 1.0


@pytest.mark.parametrize(
    ("records", "batch", "gpus", "seconds"), [(1000, 100, 1, 1.0), (1001, 100, 1, 1.1), (1000, 100, 4, 0.3)]
)
def test_the_model_takes_whole_steps(records: int, batch: int, gpus: int, seconds: float) -> None:
    """The last, short batch is a step too, and ranks share the records."""
    assert model_seconds(records, Demand(batch, gpus, 0.1)) == pytest.approx(seconds)


def test_reads_take_cpu_from_workers() -> None:
    """Where workers have all cores, reading costs what it computes; where one is left it costs nothing."""
    full = decode_seconds(1000, 10**9, work(1000.0, read_cpu=1e-9))
    spare = decode_seconds(1000, 10**9, work(1000.0, workers=1, read_cpu=1e-9))

    assert full == pytest.approx(1.5)
    assert spare == pytest.approx(1.0)


def test_without_workers_the_model_waits() -> None:
    """What is decoded in the training thread takes its time beside the model's."""
    demand = Demand(100, 1, 0.05)

    found = epochs_of(subject(), pattern(), PRESETS["nvme"], work(1000.0, workers=0), demand)

    assert found.later_seconds == pytest.approx(1.0 + 0.5)
