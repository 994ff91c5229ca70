"""Payload goes through shared memory: what crosses the pipes of the pool does not grow with it."""

from __future__ import annotations

import os
from multiprocessing import Pipe, connection
from pathlib import Path

import numpy as np
import pytest
from batches import pack, take_sync

from aioload import Loader, collate

BATCHES = 16
RECORDS = 8 * BATCHES
PIPE_BYTES_PER_BATCH = 4096


class Pipes:
    """Counts what this process writes to its workers' pipes, and reads from them."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.sent + self.received


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Pipes:
    """Stand between multiprocessing's connections and their descriptors: what the pool sends goes there."""
    counts = Pipes()
    write, read = connection.Connection._write, connection.Connection._read

    def counted_write(fd: int, data: bytes) -> int:
        written = write(fd, data)
        counts.sent += written
        return written

    def counted_read(fd: int, size: int) -> bytes:
        data = read(fd, size)
        counts.received += len(data)
        return data

    send = connection.Connection._send
    receive = connection.Connection._recv
    monkeypatch.setattr(
        connection.Connection, "_send", lambda self, data, write=counted_write: send(self, data, write)
    )
    monkeypatch.setattr(
        connection.Connection, "_recv", lambda self, size, read=counted_read: receive(self, size, read)
    )
    return counts


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 100 kB in an array, with a label."""
    samples = ({"x": np.full(100_000, record, np.uint8), "n": record} for record in range(RECORDS))
    return pack(tmp_path_factory.mktemp("large") / "set", {"x": "ndarray", "n": "int"}, samples)


def test_the_count_counts(pipes: Pipes) -> None:
    """What goes through a connection is counted in both directions."""
    reader, writer = Pipe(duplex=False)
    writer.send_bytes(b"x" * 1000)
    reader.recv_bytes()
    reader.close()
    writer.close()

    assert pipes.sent >= 1000
    assert pipes.received >= 1000


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"collate": collate.as_list},
        {"transform": lambda sample: {**sample, "y": sample["x"][::2].astype(np.float32)}},
    ],
    ids=["stacked", "as_list", "transformed"],
)
def test_payload_crosses_no_pipe(large: Path, pipes: Pipes, options: dict[str, object]) -> None:
    """Less than 4 KB a batch goes through pipes, start of the workers included, for 800 kB of payload."""
    found = take_sync(Loader(large, batch_size=8, num_workers=2, **options))

    assert len(found) == BATCHES
    assert pipes.received > 0
    assert pipes.total < PIPE_BYTES_PER_BATCH * BATCHES


def test_texts_cross_no_pipe_either(tmp_path: Path, pipes: Pipes) -> None:
    """Text and bytes fields go through shared memory too."""
    samples = ({"text": "é" * 10_000, "blob": os.urandom(10_000)} for _ in range(RECORDS))
    path = pack(tmp_path / "set", {"text": "str", "blob": "bytes"}, samples)

    found = take_sync(Loader(path, batch_size=8, num_workers=1))

    assert [len(text) for batch in found for text in batch["text"]] == [10_000] * RECORDS
    assert pipes.total < PIPE_BYTES_PER_BATCH * BATCHES


def test_more_epochs_cost_no_more(large: Path, pipes: Pipes) -> None:
    """Once the layout is known, a batch costs no more on the pipes than before."""
    with Loader(large, batch_size=8, num_workers=2).sync() as loader:
        list(loader)
        first = pipes.total
        list(loader)
        second = pipes.total - first

    assert second < PIPE_BYTES_PER_BATCH * BATCHES
