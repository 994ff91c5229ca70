"""By tasks, here or by a scheduler's workers, whatever of them dies, packing makes the same set."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import shutil
import sys
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scripts
from commands import aio, told
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from shard.tars import by_tarfile

import aioload
from aioload import ConfigError, Dataset, SampleError, ShardError, StorageError, WorkerError, Writer
from aioload.packing import Recipe, find_source, pack, pack_by_tasks
from aioload.packing.running import Crew, ask
from aioload.packing.tasks import cut_evenly, cut_full
from aioload.shard.footer import Footer
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import check_fields, encode

ON_DASK = """
    import os, signal, sys
    from pathlib import Path

    import aioload
    from aioload.packing import find_source, pack_by_tasks

    def triple(sample):
        once = Path(sys.argv[4])
        if sample["n"] == 17 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"triple": sample["x"] * 3, "n": sample["n"]}

    if __name__ == "__main__":
        from distributed import LocalCluster

        sys.argv[4] = str(Path(sys.argv[4]).absolute())
        numbers, images, out, once = map(Path, sys.argv[1:5])
        with LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, silence_logs=50
        ) as cluster:
            aioload.map(
                numbers, triple, out / "mapped", shard_bytes=2000, scheduler=cluster.scheduler_address
            )
            assert once.exists()
            aioload.map(numbers, triple, out / "here", shard_bytes=2000, num_workers=0)
            report = pack_by_tasks(
                find_source([images]), out / "packed", shard_bytes=3000, scheduler=cluster.scheduler_address
            )
        print("done", report.records)
"""


def picture(number: int) -> bytes:
    """Return a small JPEG file; each number gives another, of another size."""
    pixels = np.random.default_rng(number).integers(0, 256, (8 + number % 5, 8, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes."""
    root = tmp_path_factory.mktemp("images")
    for number in range(30):
        path = root / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(number))
    return root


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed set in some shards."""
    path = tmp_path_factory.mktemp("numbers") / "set"
    with Writer(path, {"x": "ndarray", "n": "int"}, index_fields=["n"], shard_bytes=3000) as writer:
        for number in range(40):
            writer.write({"x": np.arange(10 + number % 7), "n": number}, key=f"key-{number}")
    return path


def files(path: Path) -> dict[str, bytes]:
    """Return what lies in a folder."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


# planning


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=40),
    shard_bytes=st.integers(1, 9000),
    column=st.booleans(),
)
@settings(max_examples=30)  # a writer waits for the disk
def test_shards_are_cut_as_a_writer_cuts_them(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shard_bytes: int, column: bool
) -> None:
    """With sizes that are known, the plan is what a `Writer` does as it goes."""
    path = tmp_path_factory.mktemp("cut")
    fields, columns = check_fields({"data": "bytes", "n": "int"}), ["n"] if column else []
    empty = Footer.empty(fields, columns)
    with Writer(path, fields, shard_bytes=shard_bytes, index_fields=columns) as writer:
        for size in sizes:
            writer.write({"data": bytes(size), "n": 1})
    head = NativeFormat(fields).header_bytes + len(encode("int", 1))

    cuts = cut_full([head + size for size in sizes], shard_bytes, len(columns), len(empty.describe()))

    starts = Dataset(path).index.shard_records.tolist()
    assert cuts == list(itertools.pairwise(starts))


@given(
    sizes=st.lists(st.integers(0, 50), max_size=60), most_bytes=st.integers(1, 200), part=st.integers(1, 61)
)
def test_even_cuts_hold_all_records_and_no_more_bytes_than_asked_for(
    sizes: list[int], most_bytes: int, part: int
) -> None:
    """Runs are neighbours, as full as can be, and only a single record may be larger than one should be."""
    parts = [np.array(sizes[at : at + part], np.int64) for at in range(0, len(sizes), part)]

    cuts = cut_evenly(parts, most_bytes)

    assert [record for first, stop in cuts for record in range(first, stop)] == list(range(len(sizes)))
    assert all(stop > first for first, stop in cuts)
    assert all(sum(sizes[first:stop]) <= most_bytes or stop - first == 1 for first, stop in cuts)
    assert all(sum(sizes[first : stop + 1]) > most_bytes for first, stop in cuts[:-1])


# packing


@pytest.mark.parametrize("workers", [0, 2])
def test_files_become_the_same_set_as_without_tasks(images: Path, tmp_path: Path, workers: int) -> None:
    """Sizes of files are known, so the shards are those that one writer makes."""
    pack(find_source([images]), tmp_path / "one", shard_bytes=3000)

    report = pack_by_tasks(find_source([images]), tmp_path / "tasks", shard_bytes=3000, num_workers=workers)

    assert files(tmp_path / "tasks") == files(tmp_path / "one")
    assert (report.records, report.unreadable, report.notes) == (30, (), ())


def test_a_set_becomes_the_same_set(numbers: Path, tmp_path: Path) -> None:
    """A packed set that is packed anew, with its own columns."""
    pack(find_source([numbers], kind="aioload"), tmp_path / "one", shard_bytes=2000)

    pack_by_tasks(find_source([numbers], kind="aioload"), tmp_path / "two", shard_bytes=2000, num_workers=0)

    assert files(tmp_path / "two") == files(tmp_path / "one")


def test_archives_keep_their_records(tmp_path: Path) -> None:
    """Sizes are estimated by those of the archives; records, keys and order are the same."""
    pairs = [(f"{number:02}.{kind}", b"%d" % number) for number in range(20) for kind in ("cls", "txt")]
    (tmp_path / "a.tar").write_bytes(by_tarfile(pairs))

    report = pack_by_tasks(
        find_source([tmp_path / "a.tar"]), tmp_path / "out", shard_bytes=9000, num_workers=0
    )

    dataset = Dataset(tmp_path / "out")
    assert report.shards > 1
    assert [(dataset[at]["__key__"], dataset[at]["cls"]) for at in range(20)] == [
        (f"{number:02}", number) for number in range(20)
    ]


def test_re_encoded_images_are_those_of_one_packer(images: Path, tmp_path: Path) -> None:
    """Processes make them smaller; how many a shard holds is estimated."""
    recipe = Recipe(resize=6)
    pack(find_source([images]), tmp_path / "one", recipe=recipe, num_workers=1)

    pack_by_tasks(find_source([images]), tmp_path / "two", recipe=recipe, shard_bytes=3000, num_workers=0)

    one, two = Dataset(tmp_path / "one"), Dataset(tmp_path / "two")
    assert len(two.index.shards) > 1
    assert [two.read_record(at) for at in range(30)] == [one.read_record(at) for at in range(30)]


def test_a_file_that_is_none_is_named(images: Path, tmp_path: Path) -> None:
    """Without `skip_bad` it ends the run; leaving it out is another run."""
    for path in images.rglob("*.jpg"):
        copy = tmp_path / "src" / path.relative_to(images)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "src" / "b" / "13.jpg").write_bytes(b"no picture")
    options: dict[str, Any] = {"shard_bytes": 3000, "num_workers": 0}

    with pytest.raises(SampleError, match=r"13\.jpg: not an image") as caught:
        pack_by_tasks(find_source([tmp_path / "src"]), tmp_path / "out", **options)
    with pytest.raises(ConfigError, match="with another way with bad records"):
        pack_by_tasks(find_source([tmp_path / "src"]), tmp_path / "out", skip_bad=True, **options)
    report = pack_by_tasks(
        find_source([tmp_path / "src"]), tmp_path / "out", skip_bad=True, force=True, **options
    )

    assert len(caught.value.unreadable) == 1
    assert (report.records, len(report.unreadable)) == (29, 1)


def test_a_source_that_is_read_from_front_to_back_is_refused(tmp_path: Path) -> None:
    """Parquet, for one."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")

    with pytest.raises(ConfigError, match="from front to back"):
        pack_by_tasks(find_source([tmp_path / "a.parquet"]), tmp_path / "out", num_workers=0)


# schedulers


@pytest.mark.timeout(180)
def test_a_scheduler_makes_the_same_bytes_though_a_worker_is_killed(
    numbers: Path, images: Path, tmp_path: Path
) -> None:
    """Two worker processes of a Dask cluster, one of which dies in the middle of a shard."""
    pytest.importorskip("distributed")
    pack(find_source([images]), tmp_path / "one", shard_bytes=3000)

    ended = scripts.run(ON_DASK, numbers, images, tmp_path, tmp_path / "once", folder=tmp_path)

    assert (ended.status, ended.out) == (0, "done 30\n"), ended.err
    assert files(tmp_path / "mapped") == files(tmp_path / "here")
    assert files(tmp_path / "packed") == files(tmp_path / "one")


def test_a_scheduler_needs_dask(
    numbers: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "distributed", None)

    report = aio("pack", images, tmp_path / "out", "--scheduler", "tcp://127.0.0.1:1", status=1)

    assert "install torch-aioload[dask]" in report.output
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_seen_is_not_left_out(images: Path, tmp_path: Path) -> None:
    """Where a worker lacks the mount, each file is missing: `skip_bad` is not meant for that."""
    shutil.copytree(images, tmp_path / "in")

    def unmount(items: int, num_bytes: int) -> None:
        shutil.rmtree(tmp_path / "in", ignore_errors=True)

    options: dict[str, Any] = {"shard_bytes": 3000, "num_workers": 0, "skip_bad": True}
    with pytest.raises(StorageError, match="its whole folder is empty or gone"):
        pack_by_tasks(find_source([tmp_path / "in"]), tmp_path / "out", progress=unmount, **options)


@pytest.mark.parametrize("address", ["scheduler", "http://scheduler:8787", "tcp://:8786", "tcp://scheduler"])
def test_an_address_that_is_none_is_refused(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """At once; Dask would take a minute."""
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace())

    with pytest.raises(ConfigError, match="no address of a Dask scheduler"):
        aioload.map(numbers, dict, tmp_path / "out", scheduler=address)


class Deserted(Executor):
    """A scheduler's executor and its client in one: tasks are never done, or fail."""

    def __init__(self, threads: dict[str, int] | None, fails: Exception | None = None) -> None:
        self.threads, self.fails = threads, fails

    def __enter__(self) -> Deserted:
        return self

    def wait_for_workers(self, *_: Any, **__: Any) -> None:
        """There are some at first."""

    def get_executor(self) -> Deserted:
        return self

    def nthreads(self) -> dict[str, int]:
        if self.threads is None:
            raise OSError("Timed out")
        return self.threads

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.fails is not None:
            future.set_exception(self.fails)
        return future


@pytest.mark.parametrize(
    ("client", "told"),
    [
        (Deserted({}), "has had no workers for 0 s; start some and run the same again"),
        (Deserted(None), "was lost .Timed out."),
        (Deserted({"one": 1}, CancelledError()), "the scheduler was lost, or has let go of it"),
        (Deserted({"one": 1}, ShardError("x has no manifest")), "no manifest .that is what a worker sees"),
        (
            Deserted({"one": 1}, ModuleNotFoundError("No module named 'x'")),
            "'x'; install it where the workers",
        ),
    ],
)
def test_a_scheduler_without_workers_is_not_waited_for(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Deserted, told: str
) -> None:
    """Where Dask would wait without end, or say nothing, an error says what happened and what to do."""
    distributed = SimpleNamespace(Client=lambda *_, **__: client)
    monkeypatch.setitem(sys.modules, "distributed", distributed)
    monkeypatch.setattr("aioload.packing.running._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("aioload.packing.crews._DESERTED_SECONDS", 0)

    with pytest.raises((WorkerError, ShardError), match=told):
        aioload.map(numbers, dict, tmp_path / "out", scheduler="tcp://scheduler:8786")


def test_a_module_that_workers_lack_is_told_of() -> None:
    """The error says where it has to be."""
    crew = Crew(lambda: ThreadPoolExecutor(1), ThreadPoolExecutor.shutdown, lambda: 1)

    with (
        closing(crew),
        pytest.raises(WorkerError, match="No module named 'mels'; install it where the workers"),
    ):
        ask(crew, importlib.import_module, "mels")


def test_the_command_packs_as_before_without_a_scheduler(images: Path, tmp_path: Path) -> None:
    """One writer, in one pass."""
    report = told("pack", images, tmp_path / "out", "--shard-size", 3000)

    assert report["records"] == 30
    assert report["shards"] == len(Dataset(tmp_path / "out").index.shards)
    assert "goes with --scheduler" in aio("pack", images, tmp_path / "2", "--force", status=2).output


def test_a_run_that_was_stopped_goes_on(images: Path, tmp_path: Path) -> None:
    """Shards that are whole and right are not made again."""

    def stop(items: int, num_bytes: int) -> None:
        raise WorkerError("stop")

    with pytest.raises(WorkerError, match="stop"):
        pack_by_tasks(find_source([images]), tmp_path / "out", shard_bytes=3000, num_workers=0, progress=stop)
    report = pack_by_tasks(find_source([images]), tmp_path / "out", shard_bytes=3000, num_workers=0)
    pack(find_source([images]), tmp_path / "one", shard_bytes=3000)

    assert report.notes == (
        f"1 of {report.shards} shards were there already, from a run that was stopped, and right",
    )
    assert files(tmp_path / "out") == files(tmp_path / "one")


def test_a_scheduler_is_told_where_files_are(
    images: Path, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers may be in another folder, so paths that the commands hand on are whole."""
    given: list[Any] = []

    def stop(source: Any, *_: Any, **options: Any) -> None:
        given.append(source)
        raise WorkerError("stop")

    (tmp_path / "users_f.py").write_text("def f(sample):\n    return sample\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("aioload.cli.pack.pack_by_tasks", stop)
    monkeypatch.setattr("aioload.cli.map.map_records", stop)
    common = ("out", "--scheduler", "tcp://127.0.0.1:1")

    aio("pack", os.path.relpath(images), *common, status=1)
    aio("map", os.path.relpath(numbers), *common, "--with", "users_f:f", status=1)

    packed, mapped = given
    assert next(iter(packed.items)).name.startswith(f"{images}/")
    assert mapped.source == str(numbers)
