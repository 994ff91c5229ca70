"""What batches are, in a line of text: for processes that read epochs and tell what they found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from batches import plain

import aioload

__all__ = ["READER", "digest", "print_epochs"]

READER = """
    import json, sys
    from pathlib import Path

    import aioload

    sys.path.insert(0, str(Path(aioload.__file__).parents[1] / "tests"))
    from digests import print_epochs

    if __name__ == "__main__":
        print_epochs(*map(json.loads, sys.argv[1:]))
"""
"""A script that calls `print_epochs` with its arguments, each a line of JSON."""


def digest(batches: Iterable[Any]) -> str:
    """Return what tells batches from others."""
    return hashlib.sha256(repr([plain(batch) for batch in batches]).encode()).hexdigest()


def print_epochs(*epochs: dict[str, dict[str, Any]]) -> None:
    """Say "ready", wait for a line, then print the digest of each batch, and what the network gave.

    Args:
        epochs: what each makes its `dataset` and its `loader` with.
    """
    print("ready", flush=True)  # noqa: T201 - these are what the parent reads
    input()
    for epoch in epochs:
        dataset = aioload.Dataset(**epoch["dataset"])
        with aioload.Loader(dataset, **epoch["loader"]).sync() as batches:
            for batch in batches:
                print(digest([batch]), flush=True)  # noqa: T201 - as above
            print(json.dumps(dataset.traffic()), flush=True)  # noqa: T201 - as above
