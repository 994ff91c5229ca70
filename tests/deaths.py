"""Transforms that die or hang at one record, and leave a trace of their calls in a file."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "DEATHS",
    "Blocking",
    "Dying",
    "Traced",
    "die_by_exit",
    "die_by_fault",
    "die_by_signal",
    "die_in_mid_answer",
]


def die_by_signal() -> None:
    """As the kernel does it when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_by_exit() -> None:
    """End without a word."""
    os._exit(3)


def die_by_fault() -> None:
    """Read what is not there."""
    ctypes.string_at(0)


def die_in_mid_answer() -> None:
    """Send the length of an answer and the beginning of it."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:  # of the executor's loop in the worker
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000) + b"half")
    os._exit(3)


DEATHS: dict[str, tuple[Callable[[], None], str, int]] = {
    "kill": (die_by_signal, "SIGKILL", -9),
    "exit": (die_by_exit, "exit code 3", 3),
    "fault": (die_by_fault, "SIGSEGV", -11),
}
"""Ways to die: what does it, what the error says of it, and the exit code."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A transform that notes each record it is called with, over all processes."""

    path: Path
    """The file; one line a call."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, f"{sample['n']}\n".encode())
        finally:
            os.close(fd)
        return {"n": sample["n"], "text": sample["text"]}

    @property
    def calls(self) -> Counter[int]:
        """How often each record was worked on so far."""
        return Counter(map(int, self.path.read_text().split()))


@dataclass(frozen=True, slots=True)
class Dying:
    """A transform that dies at one record, each time or only as often as told."""

    then: Traced | Dying
    """What it does first."""
    at: int
    """The record's number."""
    die: Callable[[], None]
    """How."""
    times: int = 1 << 30
    """Deaths in all processes together."""

    @property
    def calls(self) -> Counter[int]:
        """How often each record was worked on so far."""
        return self.then.calls

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        made = self.then(sample)
        if sample["n"] == self.at and self.calls[self.at] <= self.times:
            self.die()
        return made


@dataclass(frozen=True, slots=True)
class Blocking:
    """A transform that never comes back from one record: it reads a pipe that nobody writes to."""

    folder: Path
    """An existing folder for the pipe."""
    at: int
    """The record's number."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == self.at:
            self.wait_for_ever()
        return {"n": sample["n"], "text": sample["text"]}

    def wait_for_ever(self) -> None:
        """Wait for the other end of a pipe."""
        path = self.folder / "never"
        if not path.exists():
            os.mkfifo(path)
        os.open(path, os.O_RDONLY)
