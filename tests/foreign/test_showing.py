"""Showing: an index that is made on first use shows how far it is, where somebody sits before a terminal."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import foreign_sets
import pytest

from aioload import Dataset
from aioload.foreign import showing


class Stream(io.StringIO):
    """What was written to standard error."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Tell whether somebody sits before it."""
        return self._is_terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two seconds go by between two looks at the clock."""
    seconds = iter(range(0, 1 << 20, 2))
    monkeypatch.setattr(showing, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch, stream: Stream | None) -> Dataset:
    """Open a set of three shards for the first time."""
    for number in range(3):
        (folder / f"{number}.tar").write_bytes(foreign_sets.make_tar(range(2)))
    monkeypatch.setattr(sys, "stderr", stream)
    dataset = Dataset(folder)
    assert len(dataset) == 6
    return dataset


@pytest.mark.usefixtures("clock")
def test_the_first_use_shows_a_line_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the set's name, a share, a rate and the time left; it is gone at the end, and only comes once."""
    stream = Stream(is_terminal=True)

    dataset = opened(tmp_path, monkeypatch, stream)
    shown = stream.getvalue().split("\r\x1b[K")
    len(Dataset(tmp_path))

    assert shown[0] == shown[-1] == ""
    assert all(text.startswith(f"indexing {dataset.source}: ") for text in shown[1:-1])
    assert "33% of" in shown[1]
    assert shown[-2].endswith("B/s, 0:00 left")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().split("\r\x1b[K") == shown


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("stream", [Stream(is_terminal=False), None], ids=["file", "none"])
def test_elsewhere_only_the_log_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: Stream | None
) -> None:
    """A file, or no standard error at all, gets nothing; the log has the beginning and the end."""
    with caplog.at_level(logging.INFO, "aioload.index"):
        dataset = opened(tmp_path, monkeypatch, stream)

    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(f"indexing {dataset.source}: ")
    assert last.startswith(f"indexing {dataset.source}: done in")
    assert stream is None or stream.getvalue() == ""


def test_what_is_done_at_once_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that nobody could read is not written."""
    stream = Stream(is_terminal=True)
    monkeypatch.setattr(showing, "_QUIET_SECONDS", 1e9)

    opened(tmp_path, monkeypatch, stream)

    assert stream.getvalue() == ""
