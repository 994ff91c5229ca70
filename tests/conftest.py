"""What every test has: settings of hypothesis, a tiny packed set, a check that nothing is left behind."""

from __future__ import annotations

import gc
import inspect
import io
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import leaks
import numpy as np
import pytest
from PIL import Image
from servers.seaweed import seaweed

import aioload

__all__ = ["seaweed"]  # a fixture of every test, made elsewhere

pytest.register_assert_rewrite("aioload.testing")  # so that the contract's tests say what differs

# The gate must give the same answer for the same tree; at a desk every run tries something new.
hypothesis.settings.register_profile("desk", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("full", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "desk"),
)

TINY_RECORDS = 24


@dataclass(frozen=True, slots=True)
class TinySet:
    """A packed set on disk beside what was packed into it."""

    path: Path
    """The folder that `Writer` made; shared by all tests, so copy it before damaging it."""

    pixels: list[np.ndarray]
    """uint8 (8, 6, 3), one a record: what a lossless decode must give."""

    labels: list[int]
    """0, 1, 2, 0, 1, 2, …"""

    names: list[str]
    """Text of one word, some of it outside ASCII."""

    keys: list[str]
    """The key of each record."""


def pytest_configure() -> None:
    """Make this process the heir of processes whose parent a test has killed."""
    leaks.adopt_orphans()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # as a shell starts what runs in the background: tests of Ctrl-C would wait for ever
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing goes to the cache folder of whoever runs the tests, who would find it full of their sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("no-home")))
        yield


@pytest.fixture(autouse=True, scope="module")
def lasting_left_out() -> None:
    """Leave what lasts, torch and thousands of tests, out of collections: each would take half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[leaks.LoopErrors]:
    """Fail a test that leaves a process, thread, shared memory, temporary file, task or many descriptors."""
    if isinstance(request.node, pytest.Function) and inspect.iscoroutinefunction(request.node.obj):
        request.getfixturevalue("no_task_left")  # opens the test's loop, which outlives the look below
    before = leaks.observe()
    with leaks.LoopErrors() as loop_errors:
        yield loop_errors

        found = leaks.leftovers(before) + loop_errors.messages

    if found:
        pytest.fail("\n".join(["left behind:", *found]), pytrace=False)


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Look at the test's own loop before pytest-asyncio cancels what still runs there."""
    yield
    if pending := leaks.pending_tasks():
        pytest.fail("\n".join(["left behind:", *pending]), pytrace=False)


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> TinySet:
    """Pack 24 small records with an image, an int and a str each; written once, to be read only."""
    random = np.random.default_rng(2)
    tiny = TinySet(
        path=tmp_path_factory.mktemp("tiny") / "set",
        pixels=[random.integers(0, 256, (8, 6, 3), dtype=np.uint8) for _ in range(TINY_RECORDS)],
        labels=[record % 3 for record in range(TINY_RECORDS)],
        names=[("plain", "naïve", "零")[record % 3] + str(record) for record in range(TINY_RECORDS)],
        keys=[f"tiny/{record:04}" for record in range(TINY_RECORDS)],
    )

    with aioload.Writer(tiny.path, fields={"image": "image", "label": "int", "name": "str"}) as writer:
        for pixels, label, name, key in zip(tiny.pixels, tiny.labels, tiny.names, tiny.keys, strict=True):
            writer.write({"image": png(pixels), "label": label, "name": name}, key=key)

    return tiny


def png(pixels: np.ndarray) -> bytes:
    """Encode pixels without loss."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png")
    return file.getvalue()
