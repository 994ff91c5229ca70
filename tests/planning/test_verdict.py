"""What to do with a set, on constructed cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.planning import Choice, Demand, Epochs, Stage, Subject, Verdict, Work, judge

MEMORY = 16 << 30


def epochs(first: dict[str, float], later: dict[str, float] | None = None, start: float = 0.0) -> Epochs:
    """Return epochs with these seconds of stages."""

    def stages(seconds: dict[str, float]) -> tuple[Stage, ...]:
        model = seconds.get("model")
        return tuple(
            Stage(name, each, each / model if model else None)  # type: ignore[arg-type]
            for name, each in seconds.items()
        )

    return Epochs(stages(first), stages(first if later is None else later), start)


def verdict(
    *choices: Choice,
    fits: bool = False,
    network: bool = False,
    decoded: float = 1e5,
    random: bool = False,
    step: float | None = None,
    runs: int = 10,
) -> Verdict:
    """Judge choices over a million records of 100 KB."""
    subject = Subject("x", "files", 10**6, 10**11, 10**6, network, fits)
    work = Work(2, 1000.0, 0.002, decoded, 0.3, 4, is_random=random)
    return judge(subject, choices, work, Demand(64, 1, step, runs), memory_bytes=MEMORY)


FILES_ON_A_DISK = Choice("leave", 0, epochs({"storage": 20_000.0, "decode": 1000.0, "copy": 5.0}))
PACKED = Choice("pack", 18_000, epochs({"storage": 4000.0, "decode": 1000.0, "copy": 5.0}))


def test_files_on_a_disk_are_packed() -> None:
    """Where seeks limit for ten epochs, packing pays, and it is told after how many."""
    found = verdict(FILES_ON_A_DISK, PACKED)

    assert (found.action, found.is_worth_it) == ("pack", True)
    assert found.gain_seconds == 10 * 20_000 - (18_000 + 10 * 4000)
    assert found.pays_after_epochs == 2
    assert "saved over 10 epochs" in found.because


def test_for_a_single_epoch_nothing_is_packed() -> None:
    """What costs more than it saves is left."""
    found = verdict(FILES_ON_A_DISK, PACKED, runs=1)

    assert (found.action, found.is_worth_it) == ("leave", False)
    assert found.gain_seconds < 0
    assert "storage limits" in found.because
    assert "packing would cost" in found.because


def test_a_network_is_cached() -> None:
    """A set that comes over the network each epoch is kept on a disk."""
    far = epochs({"storage": 3000.0, "decode": 500.0, "copy": 5.0})
    near = epochs(
        {"storage": 3000.0, "decode": 500.0, "copy": 5.0}, {"storage": 200.0, "decode": 500.0, "copy": 5.0}
    )

    found = verdict(Choice("leave", 0, far), Choice("cache", 0, near), network=True)

    assert (found.action, found.pays_after_epochs) == ("cache", 1)


def test_decoded_samples_are_kept() -> None:
    """Where decoding limits and what comes of it fits into memory, it is kept."""
    slow = epochs({"storage": 10.0, "decode": 900.0, "copy": 1.0})
    kept = epochs(
        {"storage": 10.0, "decode": 900.0, "copy": 1.0}, {"storage": 0.0, "decode": 20.0, "copy": 1.0}
    )

    assert verdict(Choice("leave", 0, slow), Choice("keep", 0, kept)).action == "keep"


def test_a_small_set_needs_nothing() -> None:
    """What fits into memory decoded can be indexed there; keeping it for a loader is no more than that."""
    first, later = (
        {"storage": 9.0, "decode": 90.0, "copy": 0.1},
        {"storage": 0.0, "decode": 90.0, "copy": 0.1},
    )
    kept = epochs(first, {"storage": 0.0, "decode": 0.1, "copy": 0.1})

    found = verdict(
        Choice("leave", 0, epochs(first, later)), Choice("keep", 0, kept), fits=True, decoded=100.0
    )

    assert found.action == "nothing"
    assert "DataLoader" in found.because


def test_a_set_in_memory_whose_model_limits_needs_nothing() -> None:
    """Where all stages have half of their time to spare, any loader will do; with less, not any."""
    spare = epochs({"storage": 0.0, "decode": 40.0, "copy": 1.0, "model": 100.0})
    tight = epochs({"storage": 0.0, "decode": 90.0, "copy": 1.0, "model": 100.0})

    assert verdict(Choice("leave", 0, spare), fits=True, random=True, step=0.1).action == "nothing"
    found = verdict(Choice("leave", 0, tight), fits=True, random=True, step=0.1)
    assert found.action == "leave"
    assert "the model limits" in found.because


def test_a_limit_of_decoding_tells_how_many_cores() -> None:
    """The advice has the number that would keep up with the model."""
    found = verdict(Choice("leave", 0, epochs({"storage": 1.0, "decode": 900.0, "model": 100.0})), step=0.01)

    assert found.action == "leave"
    assert found.advice[0] == "13 cores would keep up with the model"  # 6,400 a second at 2 ms


@pytest.mark.parametrize(("step", "told"), [(0.2, "1 core would"), (0.1, "2 cores would")])
def test_cores_that_others_use_are_told_of(step: float, told: str) -> None:
    """As many cores as there are workers would do: then it is others that keep them."""
    found = verdict(Choice("leave", 0, epochs({"storage": 1.0, "decode": 900.0, "model": 100.0})), step=step)

    assert found.advice[0].startswith(told)
    assert found.advice[0].endswith("if they were not shared with anything else")


seconds = st.floats(0.01, 1e5)


@given(seconds, seconds, seconds, seconds, st.floats(0, 1e5), st.integers(1, 200))
def test_worth_and_epochs_agree(
    first: float, later: float, other_first: float, other_later: float, once: float, runs: int
) -> None:
    """What is worth it is ahead by the end, and at the number of epochs that is told and not before."""
    leave = Choice("leave", 0, epochs({"storage": first}, {"storage": later}))
    pack = Choice("pack", once, epochs({"storage": other_first}, {"storage": other_later}))

    found = verdict(leave, pack, runs=runs)

    assert found.is_worth_it == (found.action == "pack")
    if found.is_worth_it:
        assert pack.total(runs) < leave.total(runs)
    pays = found.pays_after_epochs
    if pays is not None:
        assert pack.total(pays) <= leave.total(pays) * (1 + 1e-9)
        if pays > 2:
            assert pack.total(pays - 2) >= leave.total(pays - 2) * (1 - 1e-9)
