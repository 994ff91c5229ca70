"""Classes that samples are made of, in a module that workers import in no time."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

__all__ = ["Pair", "Point"]

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Pair:
    """A sample that is no dict."""

    image: Any
    label: int
