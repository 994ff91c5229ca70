"""Scanning: how a foreign shard is looked through for its records, and what that tells.

A scanner is pure: it asks for ranges of bytes and is sent them, so the same one runs over a local file and
over a network. Records lie end to end: what lies between two of them belongs to the one before it, and what
comes before the first or after the last to none. Where a shard is cut or damaged so that one cannot go on,
the rest of the file makes one last record, whose bytes say what is wrong with it when they are split.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Scanned", "Scanner", "run"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """What a scanner found in a shard."""

    data_start: int
    """Byte where the first record begins."""
    ends: npt.NDArray[np.uint64]
    """[records] where each record ends, in bytes of the file."""
    far: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """[k, 2] a record's number, and the byte where its bytes begin, where that is before its span."""
    damage: str | None = None
    """Why the last record cannot be read; None: all can."""
    holes: tuple[str, ...] = ()
    """What cannot be read in the middle; each is part of a record, whose `split` raises."""
    fields: tuple[tuple[str, str], ...] = ()
    """Names and kinds of the fields, as the first record has them."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the record format must know, as JSON has it."""
    is_guess: bool = False
    """Whether no record tells the fields, so that those of any other shard are better."""

    def __repr__(self) -> str:
        return f"<Scanned records={len(self.ends)} damage={self.damage!r}>"

    @property
    def wholes(self) -> int:
        """How many records can be cut, but for holes: all, less the last where there is damage."""
        return len(self.ends) - (self.damage is not None)

    @property
    def data_bytes(self) -> int:
        """Bytes from the beginning of the first record to the end of the last."""
        return int(self.ends[-1]) - self.data_start if len(self.ends) else 0


Scanner = Generator[tuple[int, int], memoryview, Scanned]
"""Asks for ranges of a shard's bytes, `start` and `stop` within its size, and is sent exactly these."""


def run(
    scanner: Generator[tuple[int, int], memoryview, T], read: Callable[[int, int], bytes | memoryview]
) -> T:
    """Return what a scanner, or a part of one, finds through a reader that blocks.

    Args:
        scanner: has not begun.
        read: returns the bytes from `start` to `stop`; all of them.
    """
    try:
        start, stop = next(scanner)
        while True:
            start, stop = scanner.send(memoryview(read(start, stop)))
    except StopIteration as end:
        found: T = end.value
        return found
