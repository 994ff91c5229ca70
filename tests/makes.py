"""Classes that user code makes samples of, or raises, in a module that workers import in no time."""

from __future__ import annotations

import threading
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

__all__ = ["Awkward", "Pair", "Point"]

Point = namedtuple("Point", ["x", "y"])


class Awkward(Exception):
    """Cannot be made again from its arguments, and holds what cannot be pickled."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} because of {reason}")
        self.lock = threading.Lock()


@dataclass
class Pair:
    """A sample that is no dict."""

    image: Any
    label: int
