"""What was handed over never changes, however much is kept and whatever ends; descriptors stay few."""

from __future__ import annotations

import gc
from pathlib import Path

import batches
import numpy as np
import pytest
import scripts
import torch
from batches import counted, pack, plain, take_sync

from aioload import Loader


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800 records of 10,000 bytes."""
    samples = ({"n": record, "x": np.full(10_000, record % 251, np.uint8)} for record in range(800))
    return pack(tmp_path_factory.mktemp("large") / "set", {"n": "int", "x": "ndarray"}, samples)


def test_p04_a_worker_that_leaves_takes_nothing_with_it(hundred: Path, tmp_path: Path) -> None:
    """P04: each worker ends after one job, before its batch is looked at: all right, and stderr is empty."""
    script = """
        import sys
        import aioload

        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, max_jobs_per_worker=1)
        with loader.sync() as source:
            kept = list(source)
        print([number for batch in kept for number in batch["n"].tolist()] == list(range(100)))
        print(all((batch["array"][:, 0, 0] == batch["n"]).all() for batch in kept))
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.split() == ["True", "True"]


def test_p04_recycling_changes_no_batch(hundred: Path) -> None:
    """P04: with workers replaced after every second job the batches are those of a run without workers."""
    expected = take_sync(Loader(hundred, batch_size=7, num_workers=0))

    found = take_sync(Loader(hundred, batch_size=7, num_workers=2, max_jobs_per_worker=2))

    assert [plain(batch) for batch in found] == [plain(batch) for batch in expected]


def test_p11_arrays_outlive_everything(hundred: Path, tmp_path: Path) -> None:
    """P11: a kept batch and a view of it are right after the loader is closed and collected; silent exit."""
    script = """
        import gc, sys
        import aioload

        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2)
        with loader.sync() as source:
            batches = iter(source)
            first = next(batches)
            view = first["array"][2:9:2, 1].numpy()[::-1]
            later = list(batches)[:10]
        del loader, source, batches
        gc.collect()
        print(first["n"].tolist() == list(range(10)))
        print(view.tolist() == [[8.0] * 3, [6.0] * 3, [4.0] * 3, [2.0] * 3])
        print([number for batch in later for number in batch["n"].tolist()] == list(range(10, 100)))
        del first, later
        gc.collect()
        print(view.sum() == 60)
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.split() == ["True"] * 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_p11_a_place_is_not_reused_while_a_view_lives(large: Path, num_workers: int) -> None:
    """P11: views of ten batches, the batches themselves let go, are right after three more epochs."""
    with Loader(large, batch_size=8, num_workers=num_workers, memory_limit="8MiB").sync() as loader:
        source = iter(loader)
        views = [next(source)["x"][:, ::1000] for _ in range(10)]
        for _ in range(3):
            for _ in loader:
                pass

    expected = np.repeat(np.arange(80)[:, None], 10, axis=1)
    assert np.array_equal(torch.cat(views).numpy(), expected)


def test_kept_batches_become_private_copies_with_one_warning(large: Path) -> None:
    """Beyond half of its place the loader copies, and never waits: all right, one warning, no more memory."""
    with batches.Warnings() as warned:
        with Loader(large, batch_size=8, num_workers=1, memory_limit="8MiB").sync() as loader:
            kept = [batch for _ in range(3) for batch in loader]
            stats = loader.stats()
        gc.collect()

    numbers = torch.cat([batch["n"] for batch in kept]).numpy()
    assert np.array_equal(numbers, np.tile(np.arange(800), 3))
    assert all(bool(batch["x"].T.eq(batch["n"] % 251).all()) for batch in kept)
    assert len(warned.messages) == 1
    assert stats.copies > 200
    assert stats.memory_peak <= 8 << 20


def test_a_batch_let_go_makes_room_again(large: Path) -> None:
    """After a time of keeping too much, batches come without copies again once they are let go."""
    with Loader(large, batch_size=8, num_workers=1, memory_limit="8MiB").sync() as loader:
        kept = list(loader)
        crowded = loader.stats().copies
        kept.clear()
        gc.collect()
        for _ in loader:  # what was made ahead of letting go is among it
            pass
        between = loader.stats().copies
        for _ in loader:
            pass
        after = loader.stats().copies

    assert crowded > 0
    assert after == between


def test_p14_descriptors_do_not_grow(tmp_path: Path) -> None:
    """P14: with 256 descriptors 2,000 batches are kept, and at no time are 64 more open than at the start."""
    path = counted(tmp_path / "set", 4000, shard_bytes=100_000)
    script = """
        import os, resource, sys
        import torch
        import aioload

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        count = lambda: len(os.listdir("/proc/self/fd"))
        start, most = count(), 0
        kept = []
        options = dict(batch_size=2, num_workers=2, max_jobs_per_worker=200)
        with aioload.Loader(sys.argv[1], **options).sync() as loader:
            for batch in loader:
                kept.append(batch)
                most = max(most, count())
        print(len(kept), [number for batch in kept for number in batch["n"].tolist()] == list(range(4000)))
        print(most - start, count() - start)
    """

    ended = scripts.run(script, path, folder=tmp_path)

    assert ended.err == ""
    kept, right, most, after = ended.out.split()
    assert (kept, right) == ("2000", "True")
    assert int(most) <= 64
    assert int(after) <= 8  # the arena under the kept batches, and what multiprocessing keeps for good
