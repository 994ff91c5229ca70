"""Traces of whole loaders: a file that viewers show, however the run ends, and nothing without one."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import Warnings, counted, pack, take_async, take_sync
from deaths import Dying, Traced, die_by_signal
from raises import raising
from scripts import FORKING, run
from traces import chains, lanes, problems, read, slices

import aioload
from aioload import ConfigError, DevicePrefetcher, Loader, SampleError
from aioload._device.simulated import SimulatedDevice
from aioload.recorder import Recorder
from aioload.teller import Teller
from aioload.timeline import Mark, Span

BATCHES = 10  # of ten records each


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", 100, shard_bytes=4000)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    """A device that has seen no mistake at the end."""
    found = SimulatedDevice(seconds=lambda kind, size: 0.001 if kind == "copy" else 0.0)
    yield found
    found.close()
    found.check()


# What is in it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("take", [take_sync, take_async])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_batch_is_followed(
    hundred: Path, tmp_path: Path, take: Any, num_workers: int, shuffle: bool
) -> None:
    """Every stage is there, and each batch has an arrow from the plan to the user."""
    path = tmp_path / "run.json"
    loader = Loader(hundred, batch_size=10, num_workers=num_workers, shuffle=shuffle, reads="file")

    with aioload.trace(path):
        take(loader)

    found = read(path)
    assert problems(found) == []
    followed = [chain for chain in chains(found) if chain[-1] == "consumer"]
    assert len(followed) == BATCHES
    for chain in followed:
        kinds = [kind for kind, _ in itertools.groupby(lane.split()[0].rstrip(":") for lane in chain)]
        assert kinds in (
            ["order", "read", "worker", "hand-over", "consumer"],
            ["order", "worker", "hand-over", "consumer"],  # its pieces were read for an earlier batch
        )
    assert slices(found, "read") != []
    waits = [event["name"] for event in slices(found, "consumer") if event["name"] != "your code"]
    assert waits == [f"wait for batch {step}" for step in range(BATCHES)]
    assert found["otherData"]["events_lost"] == 0


def test_workers_have_lanes_of_their_own(hundred: Path, tmp_path: Path) -> None:
    """By process, from its start on; jobs that were done in this one are said to be."""
    paths = tmp_path / "workers.json", tmp_path / "inline.json"

    for path, num_workers in zip(paths, (1, 0), strict=True):
        take_sync(Loader(hundred, batch_size=10, num_workers=num_workers, trace=path))

    apart, inline = map(read, paths)
    named = [name for name in lanes(apart).values() if name.startswith("worker")]
    assert len(named) == 1
    assert slices(apart, "worker process")[0]["name"] == "starts"
    assert str(os.getpid()) not in named[0]
    assert [name for name in lanes(inline).values() if name.startswith("worker")] == ["worker: this process"]


def test_small_batches_share_a_job(tmp_path: Path) -> None:
    """Where a run is made as if it were one batch, the arrows of all of its batches go through that job."""
    path, samples = tmp_path / "run.json", ({"n": n} for n in range(400))
    many = pack(tmp_path / "many", {"n": "int"}, samples)

    take_sync(Loader(many, batch_size=2, num_workers=0, trace=path))

    found = read(path)

    assert problems(found) == []
    followed = [chain for chain in chains(found) if chain[-1] == "consumer"]
    assert len(followed) == 200
    assert all(any(lane.startswith("worker") for lane in chain) for chain in followed)
    assert any(event["name"].startswith("batches") for event in slices(found, "hand-over"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_copies_are_followed(
    hundred: Path, tmp_path: Path, device: SimulatedDevice, num_workers: int
) -> None:
    """With a device the way leads over the copy thread and the stream, whose copies are put in their time."""
    path = tmp_path / "run.json"

    take_sync(Loader(hundred, batch_size=10, num_workers=num_workers, device=device, trace=path))

    found = read(path)
    assert problems(found) == []
    followed = [chain for chain in chains(found) if "consumer" in chain]
    assert len(followed) == BATCHES
    way = {"hand-over", "copy thread", "copy stream", "consumer"}
    assert [way - set(chain) for chain in followed] == [set()] * BATCHES
    asked = [event["ts"] for event in slices(found, "copy thread")]
    copied = [event["ts"] for event in slices(found, "copy stream")]
    assert len(asked) == len(copied) == BATCHES
    assert all(before < after for before, after in zip(asked, copied, strict=True))


def test_a_prefetcher_is_traced(tmp_path: Path, device: SimulatedDevice) -> None:
    """Copies of any iterable's batches show as those of a loader do."""
    path = tmp_path / "run.json"

    with aioload.trace(path), DevicePrefetcher([torch.zeros(100)] * 5, device) as prefetcher:
        for _ in prefetcher:
            pass

    found = read(path)
    assert problems(found) == []
    assert [len(slices(found, lane)) for lane in ("copy thread", "copy stream")] == [5, 5]
    waits = [event for event in slices(found, "consumer") if event["name"] != "your code"]
    assert len(waits) == 5


# When it begins and ends -----------------------------------------------------------------------------


def test_loaders_from_before_and_several_at_once(hundred: Path, tmp_path: Path) -> None:
    """A trace tells of all loaders that run in it, each by itself, and of nothing before or after it."""
    path = tmp_path / "run.json"
    with Loader(hundred, batch_size=10, num_workers=0).sync() as early:
        batches = iter(early)
        next(batches)

        with aioload.trace(path), Loader(hundred, batch_size=50, num_workers=0).sync() as late:
            next(batches)
            list(late)
        rest = list(batches)

    found = read(path)
    assert problems(found) == []
    names = [event["args"]["name"] for event in found["traceEvents"] if event["name"] == "process_name"]
    assert names == [f"loader {number}: {hundred}" for number in (1, 2)]
    waits = [event["name"] for event in slices(found, "consumer") if event["name"].startswith("wait")]
    assert sorted(waits) == ["wait for batch 0", "wait for batch 1", "wait for batch 1"]
    assert len(rest) == BATCHES - 2


def test_traces_may_overlap(hundred: Path, tmp_path: Path) -> None:
    """A loader's own trace goes on while others begin and end, and each has its part."""
    own, inner = tmp_path / "own.json", tmp_path / "inner.json"

    with Loader(hundred, batch_size=10, num_workers=0, trace=own).sync() as loader:
        for step, _ in enumerate(loader):
            if step == 3:
                with aioload.trace(inner):
                    pass

    assert problems(read(own)) == problems(read(inner)) == []
    assert len(slices(read(own), "consumer")) >= BATCHES
    assert slices(read(inner), "consumer") == []


def test_without_a_trace_nobody_tells(hundred: Path, tmp_path: Path) -> None:
    """Outside of a trace there is nobody to tell anything to, before as after."""
    loader = Loader(hundred, batch_size=10, num_workers=0)
    before = loader.counters.trace

    with aioload.trace(tmp_path / "run.json"):
        during = loader.counters.trace
    loader.close()

    assert (before, during is None, loader.counters.trace) == (None, False, None)


# Runs that end otherwise -----------------------------------------------------------------------------


def test_an_error_is_in_the_trace(hundred: Path, tmp_path: Path) -> None:
    """A run that fails leaves its trace, in which the user's error has a place."""
    path = tmp_path / "run.json"
    loader = Loader(hundred, batch_size=10, num_workers=0, transform=partial(raising, ValueError), trace=path)

    with pytest.raises(SampleError):
        take_sync(loader)

    found = read(path)
    assert problems(found) == []
    marks = [event for event in found["traceEvents"] if event["ph"] == "i"]
    assert [(mark["name"], mark["args"]) for mark in marks] == [("SampleError", {"batch": 1})]


def test_a_killed_worker_is_in_the_trace(hundred: Path, tmp_path: Path) -> None:
    """Its death is marked, its successor has a lane, and the batch is followed all the same."""
    path = tmp_path / "run.json"
    dying = Dying(Traced(tmp_path / "calls"), 35, die_by_signal, times=1)

    taken = take_sync(Loader(hundred, batch_size=10, num_workers=1, transform=dying, trace=path))

    found = read(path)
    assert len(taken) == BATCHES
    assert problems(found) == []
    assert sum(event["name"] == "a worker died" for event in found["traceEvents"]) == 1
    assert sum(name.startswith("worker process") for name in lanes(found).values()) == 2
    assert len([chain for chain in chains(found) if chain[-1] == "consumer"]) == BATCHES


@pytest.mark.parametrize("num_workers", [0, 2])
def test_break_leaves_a_trace(hundred: Path, tmp_path: Path, num_workers: int) -> None:
    """What was under way has no arrow to the user, and what was taken has."""
    path = tmp_path / "run.json"

    with aioload.trace(path), Loader(hundred, batch_size=10, num_workers=num_workers).sync() as loader:
        for step, _ in enumerate(loader):
            if step == 2:
                break

    found = read(path)
    assert problems(found) == []
    assert sum(chain[-1] == "consumer" for chain in chains(found)) == 3


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, RuntimeError])
def test_whatever_ends_the_block_the_file_is_whole(
    hundred: Path, tmp_path: Path, kind: type[BaseException]
) -> None:
    """Ctrl-C, a cancelled task and the user's own errors come out as they were, and the trace is written."""
    path = tmp_path / "run.json"

    def train() -> None:
        with aioload.trace(path), Loader(hundred, batch_size=10, num_workers=0).sync() as loader:
            next(iter(loader))
            raise kind

    with pytest.raises(kind):
        train()

    assert problems(read(path)) == []
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_a_loader_that_nobody_closes_is_traced(hundred: Path, tmp_path: Path) -> None:
    """At the end of the program, or when the loader is forgotten."""
    path = tmp_path / "run.json"
    loader = Loader(hundred, batch_size=10, num_workers=0, trace=path)

    del loader
    gc.collect()
    ended = run(
        """
        import sys, aioload
        loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=0, trace="end.json")
        next(iter(loader.sync()))
        """,
        hundred,
        folder=tmp_path,
    )

    assert problems(read(path)) == []
    assert (ended.status, ended.err) == (0, "")
    assert len(slices(read(tmp_path / "end.json"), "consumer")) == 1


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    """The file is that of the process in which the trace began."""
    ended = run(
        """
        import os, aioload
        with aioload.trace("run.json"):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                print(os.listdir())
        """,
        folder=tmp_path,
    )

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "['user_script.py']"
    assert read(tmp_path / "run.json")["traceEvents"] == []


def test_a_fork_tells_nothing(hundred: Path, tmp_path: Path) -> None:
    """A loader that a copy of the process iterates waits for no lock that was held when it was made."""
    script = """
    from aioload import Loader, tracing

    loader = Loader(sys.argv[1], batch_size=10, num_workers=0, trace="run.json")
    locks = loader._recorder._lock, tracing._tellers._lock
    print(fork_while_held(lambda: len(list(loader.sync())), *locks))
    """

    ended = run(FORKING + textwrap.dedent(script), hundred, folder=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"{BATCHES}\n"


# The file --------------------------------------------------------------------------------------------


def test_a_full_trace_keeps_the_first(hundred: Path, tmp_path: Path) -> None:
    """So many events and no more; the file says how many are missing, and one warning what to do."""
    path = tmp_path / "run.json"

    with Warnings() as warnings, aioload.trace(path, max_events=40):
        take_sync(Loader(hundred, batch_size=10, num_workers=0))

    found, facts = read(path), read(path)["otherData"]
    assert problems(found) == []
    assert len([event for event in found["traceEvents"] if event["ph"] != "M"]) <= 40
    assert (facts["max_events"], facts["events_kept"] <= 40, facts["events_lost"] > 0) == (40, True, True)
    assert [message.startswith(f"the trace {path} is full") for message in warnings.messages] == [True]


def test_once_full_nothing_later_comes_in(tmp_path: Path) -> None:
    """An entry that would still fit must not stand behind a gap."""
    recorder = Recorder(tmp_path / "run.json", 3)
    loader = recorder.enter("it")

    with Warnings():
        for weight in (2, 2, 0):
            parts = (("part", 0.5),) * weight
            recorder.add(loader, Span("order", f"weighs {weight + 1}", 1e9, 1e9 + 2, parts=parts))
    recorder.finish()

    assert [event["name"] for event in slices(read(tmp_path / "run.json"), "order")][:1] == ["weighs 3"]
    assert read(tmp_path / "run.json")["otherData"]["events_lost"] == 4


def test_a_compressed_trace(hundred: Path, tmp_path: Path) -> None:
    """The name decides."""
    path = tmp_path / "run.json.gz"

    take_sync(Loader(hundred, batch_size=10, num_workers=0, trace=path))

    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert problems(read(path)) == []


@pytest.mark.parametrize("name", ["missing/run.json", "file/run.json", "folder", "pipe", "a\0b", 300 * "x"])
def test_a_file_that_cannot_be_written_is_told_early(hundred: Path, tmp_path: Path, name: str) -> None:
    """Before anything starts, and not after hours of training."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ConfigError, match=r"the trace .*; name a file"):
        Loader(hundred, batch_size=10, trace=tmp_path / name)
    with pytest.raises(ConfigError, match=r"the trace .*; name a file"), aioload.trace(tmp_path / name):
        pass


def test_a_name_may_be_as_long_as_a_name_can_be(tmp_path: Path) -> None:
    """What the file is called while it is written is no longer than what it will be called."""
    path = tmp_path / ("x" * 250 + ".json")

    with aioload.trace(path):
        pass

    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_link_stays_and_leads_to_the_trace(tmp_path: Path) -> None:
    """What a link leads to is written, and not the link itself."""
    link, path = tmp_path / "link.json", tmp_path / "run.json"
    link.symlink_to(path)

    with aioload.trace(link):
        pass

    assert link.is_symlink()
    assert read(path)["traceEvents"] == []


@pytest.mark.parametrize("options", [{"path": 3}, {"max_events": 0}, {"max_events": True}])
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """A trace needs a path, and room for something."""
    path = options.pop("path", tmp_path / "run.json")

    with pytest.raises(ConfigError), aioload.trace(path, **options):
        pass


def test_a_folder_that_has_gone_is_no_error_of_the_run(
    hundred: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What goes wrong while the trace is written is logged, and the run ends as it would have."""
    folder = tmp_path / "gone"
    folder.mkdir()
    loader = Loader(hundred, batch_size=10, num_workers=0, trace=folder / "run.json")
    folder.rmdir()

    with caplog.at_level(logging.WARNING, "aioload.trace"):
        taken = take_sync(loader)

    assert len(taken) == BATCHES
    assert "could not be written" in caplog.text


# What its parts promise ------------------------------------------------------------------------------


def test_jobs_of_another_clock_are_put_where_they_can_have_been() -> None:
    """Times that lie outside of the job's absence keep their length and end with it."""
    told: list[Any] = []

    class Listener(Recorder):
        def __init__(self) -> None: ...
        def add(self, loader: int, entry: Any) -> None:
            told.append(entry)

    teller = Teller([(Listener(), 0)])
    teller.job("", ((1, 0),), 0.0, (7, 1e12, 1e12 + 2.0), ())

    (span,) = told
    assert isinstance(span, Span)
    assert span.stop - span.start == pytest.approx(2.0)
    assert span.stop < 1e12


def test_what_is_told_is_about_batches(
    hundred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is told once for each record: as many entries with 20 records in a batch as with 5."""
    told: list[list[Any]] = [[], []]
    for size, entries in zip((5, 20), told, strict=True):
        monkeypatch.setattr(
            Recorder, "add", lambda self, loader, entry, entries=entries: entries.append(entry)
        )
        loader = Loader(
            hundred, batch_size=size, num_workers=0, prefetch=2, trace=tmp_path / "x", drop_last=True
        )
        with loader.sync() as batches:
            for _ in zip(range(5), batches, strict=False):
                pass

    counts = [sum(isinstance(entry, Span | Mark) and entry.lane != "read" for entry in one) for one in told]
    assert counts[1] <= counts[0] + 10


# torch.profiler --------------------------------------------------------------------------------------


@pytest.mark.parametrize("take", [take_sync, take_async])
def test_a_torch_profiler_sees_the_waits(hundred: Path, take: Any) -> None:
    """Each step, with the one that finds the end, is `aioload.next` in the profile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        taken = take(Loader(hundred, batch_size=10, num_workers=0))

    found = [event for event in profile.key_averages() if event.key == "aioload.next"]
    assert len(taken) == BATCHES
    assert [event.count for event in found] == [BATCHES + 1]
