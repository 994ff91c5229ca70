"""Items: a data set of the user's, which makes samples of their numbers; there are no records to read."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..travel import packed

__all__ = ["Items"]


@dataclass(frozen=True, slots=True)
class Items:
    """What gives samples by number. It travels to each worker once, with all that it holds."""

    dataset: Any
    """Has `__getitem__`, or `__getitems__` where samples are asked for together."""
    batched: bool = False
    """Whether they are."""

    def __reduce__(self) -> tuple[Callable[..., Items], tuple[bytes, bool]]:
        return _unpacked, (packed(self.dataset), self.batched)

    def one(self, number: int) -> Any:
        """Return one sample."""
        if self.batched:
            return self.many([number])[number]
        return self.dataset[number]

    def many(self, numbers: list[int]) -> dict[int, Any]:
        """Return samples by number, asked for together; one that is wanted twice comes once."""
        found = list(self.dataset.__getitems__(numbers))
        if len(found) != len(numbers):
            raise ValueError(f"__getitems__ gave {len(found)} samples for {len(numbers)} numbers")
        return dict(zip(numbers, found, strict=True))


def _unpacked(data: bytes, batched: bool) -> Items:
    return Items(pickle.loads(data), batched)
