"""Draw: random numbers for decoders, from a generator that is set anew for each value.

Making a generator takes as long as a hundredth of a photo; setting the state of one that is there, a tenth of
that. The state is a hash of what the value is called, so it is as good as any.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

__all__ = ["Draw"]

_LOW = (1 << 128) - 1


class Draw:
    """One generator, PCG64, at the place in its streams that belongs to a value."""

    def __init__(self) -> None:
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._state: dict[str, Any] = dict(self._generator.bit_generator.state)

    def at(self, *name: int) -> np.random.Generator:
        """Return the generator for what has this name; it is the same object each time.

        Args:
            name: seed, epoch, record, and whatever else tells values apart.
        """
        # hot: once per value
        number = int.from_bytes(blake2b(repr(name).encode(), digest_size=32).digest(), "little")
        self._state["state"] = {"state": number & _LOW, "inc": number >> 128 | 1}
        self._generator.bit_generator.state = self._state
        return self._generator
