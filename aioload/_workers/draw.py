"""Draw: random numbers for user code and decoders, and who drew others.

Making a generator takes as long as a hundredth of a photo; setting the state of one that is there, a tenth of
that. The state is a hash of what the value is called, so it is as good as any.
"""

from __future__ import annotations

import random
import struct
import sys
from hashlib import blake2b
from typing import Any

import numpy as np

__all__ = ["USER", "Draw", "drawn", "generator", "seed_globals", "states"]

USER, _GLOBALS = 0, 1  # streams of randomness: a transform's rng, and the global generators
_LOW = (1 << 128) - 1
_WORDS = struct.Struct("<QII")  # of the global generators' seeds


def generator(*words: int) -> np.random.Generator:
    """Return `np.random.default_rng(words)`, of which words of 32 bits are quicker to come by as an array."""
    return np.random.default_rng(np.array(words, np.uint32) if max(words) < 1 << 32 else words)


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


def states() -> dict[str, Any]:
    """Return the states of the global generators, by name."""
    found: dict[str, Any] = {"random": random.getstate()}
    kind, words, *rest = np.random.get_state()
    found["numpy.random"] = kind, np.asarray(words).tobytes(), rest
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        found["torch"] = generator.get_state().numpy().tobytes()
    return found


def drawn(before: dict[str, Any]) -> list[str]:
    """Return the global generators that were drawn from since their states were looked at."""
    after = states()
    return [name for name, state in before.items() if after[name] != state]


def seed_globals(seed: int, epoch: int, record: int, source: int) -> None:
    """Set the global generators for one record."""
    # not a SeedSequence: out of the caches, as between two photos, it takes 60 us where this takes 4
    name = repr((_GLOBALS, seed, epoch, record, source)).encode()
    long, word, other = _WORDS.unpack(blake2b(name, digest_size=_WORDS.size).digest())
    random.seed(long)
    np.random.seed(word)  # the old global generator: user code that draws from it is what this is for
    # not torch.manual_seed: it sets every device's generator, at half a millisecond a record
    of_torch = getattr(sys.modules.get("torch"), "default_generator", None)
    if of_torch is not None:  # torch may be there in part, while another thread of the user's imports it
        of_torch.manual_seed(other)
