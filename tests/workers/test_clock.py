"""Clock: what a process needs of CPUs is told apart from its waits, with or without the kernel's help."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioload._workers import clock
from aioload._workers.clock import CpuClock


def count(stop: int) -> int:
    """Compute something."""
    return sum(range(stop))


@pytest.mark.parametrize("text", [None, "", "12"])
def test_without_the_kernels_account_work_is_counted_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    """No such file, or one that says nothing: then waiting for a CPU is not counted."""
    if text is not None:
        (tmp_path / "schedstat").write_text(text)
    monkeypatch.setattr(clock, "_FILE", str(tmp_path / "schedstat"))
    own = CpuClock()

    before = own.seconds()
    count(100_000)
    after = own.seconds()

    assert after[0] > before[0]
    assert (before[1], after[1]) == (0, 0)
    assert own._fd == -1


def test_waiting_for_a_cpu_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the kernel's second number, in nanoseconds."""
    file = tmp_path / "schedstat"
    file.write_text("5000000000 1000000000 7\n")
    monkeypatch.setattr(clock, "_FILE", str(file))
    own = CpuClock()

    before = own.seconds()
    file.write_text("5000000000 9000000000 8\n")

    assert own.seconds()[1] - before[1] == pytest.approx(8)
