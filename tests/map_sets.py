"""Map-style data sets as users write them; without torch, so that workers which import this start at once."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SIZE", "Drawing", "Failing", "Holder", "Killing", "Numbers", "Together"]

SIZE = 61


class Numbers:
    """Samples in which the number can be read off each part."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        return {"n": number, "x": np.full((2, 3), number), "text": f"t{number}"}


class Drawing(Numbers):
    """Samples that are drawn from global generators."""

    def __getitem__(self, number: int) -> Any:
        return {"n": number, "drawn": [random.random(), np.random.random()]}


class Failing(Numbers):
    """Samples of which some cannot be made."""

    def __init__(self, *numbers: int) -> None:
        super().__init__()
        self.bad = numbers

    def __getitem__(self, number: int) -> Any:
        if number in self.bad:
            raise IndexError(f"nothing at {number}")
        return super().__getitem__(number)


class Killing(Numbers):
    """Samples of which one kills its process, the first time or always."""

    def __init__(self, path: Path, number: int, *, always: bool = False) -> None:
        super().__init__()
        self.path, self.number, self.always = path, number, always

    def __getitem__(self, number: int) -> Any:
        if number == self.number and (self.always or not self.path.exists()):
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


class Together(Numbers):
    """Samples that are asked for together; each tells how many there were."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = bad

    def __getitem__(self, number: int) -> Any:
        raise AssertionError("samples are asked for together")

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        if set(numbers) & set(self.bad):
            raise ValueError(f"bad ones among {numbers}")
        return [{"n": number, "together": len(numbers)} for number in numbers]


class Holder(Numbers):
    """Samples out of something that is held."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def __getitem__(self, number: int) -> Any:
        return number, np.asarray(self.held[number])
