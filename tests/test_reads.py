"""Reads: the same batches and the same errors whether records are read or mapped."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from fakes import FaultyStorage

import aioload
from aioload import AioloadError, ConfigError, Dataset, Loader, NotFoundError, ShardError, Skip, machine
from aioload.storage import LocalStorage

Reads = Literal["file", "mmap"]
FIELDS = {"n": "int", "name": "str", "blob": "bytes", "array": "ndarray"}
RECORDS = 240


def sample(record: int) -> dict[str, Any]:
    """Make a sample whose every field tells which it is."""
    return {
        "n": record,
        "name": f"ü{record}",
        "blob": bytes([record % 251]) * (record % 7 * 300),
        "array": np.full((3, 40), record, np.int32),
    }


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack records into several shards."""
    folder = tmp_path_factory.mktemp("many") / "set"
    with aioload.Writer(folder, fields=FIELDS, shard_bytes=64 << 10) as writer:
        for record in range(RECORDS):
            writer.write(sample(record))
    return folder


def content(loader: Loader, epochs: int = 1) -> list[Any]:
    """Return all that comes out, as plain lists."""
    found = []
    with loader.sync() as source:
        for _ in range(epochs):
            found += [
                [batch["n"].tolist(), batch["name"], batch["blob"], batch["array"].tolist()]
                for batch in source
            ]
    return found


def shard_of(folder: Path, number: int) -> Path:
    """Return the file of a shard."""
    return folder / f"shard-{number:05}.aio"


def outcome(folder: Path, reads: Reads, **options: Any) -> tuple[list[list[int]], str, type | None]:
    """Return the batches before the first error, and the error."""
    found: list[list[int]] = []
    with Loader(folder, batch_size=8, num_workers=2, reads=reads, **options).sync() as source:
        try:
            for batch in source:
                found.append(batch["n"].tolist())  # noqa: PERF401 - what came before the error counts
        except AioloadError as error:
            return found, str(error).replace(str(folder), ""), type(error)
    return found, "", None


def plus(sample: dict[str, Any]) -> dict[str, Any]:
    """Change a sample in place, as transforms do."""
    sample["array"] += 1
    return sample


@pytest.mark.parametrize("shuffle", [False, True, "full"])
@pytest.mark.parametrize("transform", [None, plus])
@pytest.mark.parametrize("batch_size", [3, 64])
def test_content_is_the_same(
    many: Path, shuffle: Any, transform: Callable[..., Any] | None, batch_size: int
) -> None:
    """Two epochs, with and without user code, in every order."""
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "transform": transform}

    expected = content(Loader(many, num_workers=0, **options), epochs=2)

    assert content(Loader(many, num_workers=2, reads="mmap", **options), epochs=2) == expected
    assert content(Loader(many, num_workers=2, reads="file", **options), epochs=2) == expected


def test_small_local_sets_are_mapped(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default files of this machine are mapped, unless they take more than a quarter of its memory."""
    with Loader(many, batch_size=8, num_workers=1).sync() as source:
        list(source)
    mapped = source.stats()
    monkeypatch.setattr(machine, "_LOCAL_FILESYSTEMS", frozenset())
    with Loader(many, batch_size=8, num_workers=1).sync() as source:
        list(source)

    assert (mapped.mapped, mapped.read_bytes) == (True, 0)
    assert mapped.record_bytes > 0
    assert not source.stats().mapped
    assert source.stats().read_bytes > 0


def test_without_workers_files_are_read(many: Path) -> None:
    """A file that is cut would end the user's own process."""
    with Loader(many, batch_size=8, num_workers=0, reads="mmap").sync() as source:
        list(source)

    assert not source.stats().mapped


def test_what_is_not_local_cannot_be_mapped(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for it is an error that says what to do."""
    monkeypatch.setattr(Dataset, "open_storage", lambda self: FaultyStorage(LocalStorage(self.source), {}))

    loader = Loader(many, batch_size=8, num_workers=1, reads="mmap")

    with pytest.raises(ConfigError, match="reads='file'"):
        iter(loader.sync())


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "flipped", "folder"])
def test_failures_are_the_same(many: Path, tmp_path: Path, shuffle: bool, harm: str) -> None:
    """A shard that is gone, cut, empty or damaged: the same batches before the same error."""
    folder = tmp_path / "set"
    shutil.copytree(many, folder)
    shard = shard_of(folder, 1)
    content = bytearray(shard.read_bytes())
    if harm in ("missing", "folder"):
        shard.unlink()
    else:
        content[len(content) // 2] ^= 1
        shard.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "flipped": content}[harm])
    if harm == "folder":
        shard.mkdir()

    mapped = outcome(folder, "mmap", shuffle=shuffle)

    assert mapped == outcome(folder, "file", shuffle=shuffle)
    assert mapped[2] in (ShardError, NotFoundError, aioload.StorageError)


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_what_is_left_out_is_the_same(many: Path, tmp_path: Path, harm: str) -> None:
    """Under a policy of skipping the rest of the set comes out."""
    folder = tmp_path / "set"
    shutil.copytree(many, folder)
    shard = shard_of(folder, 1)
    content = shard.read_bytes()
    shard.unlink()
    if harm == "cut":
        shard.write_bytes(content[: len(content) // 2])

    mapped = outcome(folder, "mmap", on_error=Skip(200))

    assert mapped == outcome(folder, "file", on_error=Skip(200))
    assert mapped[2] is None
    assert 0 < sum(map(len, mapped[0])) < RECORDS


class CutAt:
    """Cuts a shard in the middle, in the worker that comes to a record."""

    def __init__(self, shard: Path, record: int) -> None:
        self.shard = shard
        self.record = record

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == self.record:
            os.truncate(self.shard, 4096)
        return sample


def test_a_file_that_is_cut_while_it_is_mapped(many: Path, tmp_path: Path) -> None:
    """SIGBUS ends the worker; the records are read again, and what is gone is a ShardError at its place."""
    folder = tmp_path / "set"
    shutil.copytree(many, folder)
    shard, table = shard_of(folder, 1), Dataset(many).table
    first = int(np.searchsorted(table.places(np.arange(RECORDS)).shard, 1))
    last_there = first + int((table.places(np.arange(first, RECORDS)).stop <= 4096).sum()) - 1

    found, message, kind = outcome(folder, "mmap", transform=CutAt(shard, first), worker_timeout=30)

    assert kind is ShardError
    assert "ends at byte 4096" in message
    assert [n for batch in found for n in batch] == list(range(len(found) * 8))
    assert first - 8 < len(found) * 8 <= last_there + 1
    assert signal.SIGBUS.name not in message


def test_a_cut_file_costs_few_workers(many: Path, tmp_path: Path) -> None:
    """Once a file has been cut it is mapped no more: workers do not die over each of its records."""
    folder = tmp_path / "set"
    shutil.copytree(many, folder)
    shard, table = shard_of(folder, 1), Dataset(many).table
    first = int(np.searchsorted(table.places(np.arange(RECORDS)).shard, 1))
    options: dict[str, Any] = {"transform": CutAt(shard, first), "on_error": Skip(200), "prefetch": 2}
    loader = Loader(folder, batch_size=4, num_workers=1, reads="mmap", **options)

    with loader.sync() as source:
        rows = sum(len(batch.get("n", ())) for batch in source)

    assert rows == RECORDS - len(loader.skipped)
    assert loader.stats().restarts <= 4


def test_many_shards_take_few_descriptors(tmp_path: Path) -> None:
    """More shards than a worker keeps mapped."""
    folder = tmp_path / "set"
    with aioload.Writer(folder, fields={"n": "int"}, shard_bytes=256) as writer:
        for record in range(2400):
            writer.write({"n": record})
    assert len(Dataset(folder).table.shards) > 160

    with Loader(folder, batch_size=50, num_workers=1, reads="mmap", shuffle="full").sync() as source:
        found = sorted(n for batch in source for n in batch["n"].tolist())

    assert found == list(range(2400))
