"""Sweep: whoever goes through a file gets its bytes, a few of them before they were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import foreign_sets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioload import Dataset, ShardError
from aioload.foreign import sweep
from aioload.foreign.sweep import sweeping
from aioload.storage import MemoryStorage

DATA = bytes(range(256)) * 2


@pytest.fixture
def small() -> Iterator[None]:
    """Let windows and pieces be a few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_PIECE_BYTES", 16)
        patch.setattr(sweep, "_LEAST_BYTES", 8)
        patch.setattr(sweep, "_NEAR_BYTES", 4)
        yield


class Counting(MemoryStorage):
    """Notes what is read, and how many reads are under way at most."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.places: list[tuple[int, int]] = []
        self.most = self._now = 0

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a file, after all others that can begin."""
        self.places.append((start, start + len(out)))
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            await super().read_into(name, start, out)
        finally:
            self._now -= 1


@pytest.mark.usefixtures("small")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(-40, 40), st.integers(0, 60), st.booleans()), max_size=12),
    st.integers(0, 4),
)
def test_any_walk_gets_the_bytes_of_the_file(steps: list[tuple[int, int, bool]], depth: int) -> None:
    """Forwards, backwards, by hops, in windows of any size, and to the end of the file."""

    async def walk() -> None:
        at = 0
        async with sweeping(MemoryStorage({"x": DATA}), "x", len(DATA), depth) as file:
            for move, length, hops in steps:
                start = min(max(at + move * (10 if hops else 1), 0), len(DATA))
                stop = min(start + length, len(DATA))
                assert await file.read(start, stop) == DATA[start:stop]
                at = stop

    anyio.run(walk)


@pytest.mark.usefixtures("small")
async def test_who_goes_straight_on_is_read_ahead_of() -> None:
    """So many pieces at once, none twice, and no byte beyond the file."""
    storage = Counting({"x": DATA})

    async with sweeping(storage, "x", len(DATA), 3) as file:
        for start in range(0, len(DATA), 16):
            assert await file.read(start, start + 16) == DATA[start : start + 16]

    assert storage.most == 4
    assert sorted(storage.places) == [(start, start + 16) for start in range(0, len(DATA), 16)]


@pytest.mark.usefixtures("small")
async def test_who_hops_gets_only_what_is_asked_for() -> None:
    """Also where windows are small."""
    storage = Counting({"x": DATA})
    asked = [(0, 16), (100, 116), (200, 216), (216, 220), (220, 224), (224, 228), (400, 416)]

    async with sweeping(storage, "x", len(DATA), 3) as file:
        for start, stop in asked:
            await file.read(start, stop)

    assert storage.places == asked


@pytest.mark.usefixtures("small")
async def test_errors_are_those_of_whoever_takes_the_bytes() -> None:
    """What cannot be read ahead is no error until it is asked for, and then a bare one."""
    storage = Counting({"x": DATA[:100]})

    async def go_to(end: int) -> None:
        async with sweeping(storage, "x", len(DATA), 3) as file:
            for start in range(0, end, 16):
                assert await file.read(start, start + 16) == DATA[start : start + 16]

    await go_to(96)
    with pytest.raises(ShardError, match="ends at byte 100"):
        await go_to(112)


def test_one_large_shard_is_read_by_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index and its sums come from reads that are under way together, and are the right ones."""
    (tmp_path / "x.tfrecord").write_bytes(foreign_sets.make_tfrecord(range(400)))
    expected = Dataset(tmp_path / "x.tfrecord").make_index(checksums=True).index
    files = {"x.tfrecord": (tmp_path / "x.tfrecord").read_bytes()}
    files["index.json"] = b'{"wids_version": 1, "shardlist": [{"url": "x.tfrecord"}]}'
    monkeypatch.setattr("aioload.shard.tfrecord._WINDOW_BYTES", 512)
    monkeypatch.setattr("aioload.foreign.build.PIECE_BYTES", 512)
    monkeypatch.setattr(sweep, "_PIECE_BYTES", 512)
    monkeypatch.setattr(sweep, "_LEAST_BYTES", 100)
    storage = Counting(files)

    found = Dataset(storage).make_index(checksums=True).index

    assert storage.most > 4
    assert found.sums is not None
    assert expected.sums is not None
    assert found.sums.tolist() == expected.sums.tolist()
    assert found.positions.tolist() == expected.positions.tolist()
