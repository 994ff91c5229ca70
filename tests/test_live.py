"""The line that shows an epoch: what it says, where it is quiet, and that it takes nothing from a loop."""

from __future__ import annotations

import io
import re
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import scripts
from anyio.lowlevel import checkpoint
from batches import counted, gather, plain
from fakes import Gate
from rich.console import Console

import aioload.iterate
import aioload.live
from aioload import ClosedError, Loader, SyncLoader, progress
from aioload.iterate import BatchIterator
from aioload.live import metrics

BATCHES = 5


class Paper(io.StringIO):
    """Where a console writes, with something to do at each write."""

    def __init__(self, at_write: Callable[[Paper], None] = lambda paper: None) -> None:
        super().__init__()
        self._at_write = at_write

    def write(self, text: str) -> int:
        self._at_write(self)
        return super().write(text)

    @property
    def drawn(self) -> list[str]:
        """All lines that were drawn one over the other, without colours."""
        return [line for line in re.split(r"\r|\n|\x1b\[2K", _bare(self.getvalue())) if line.strip()]


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records."""
    return counted(tmp_path_factory.mktemp("hundred") / "set")


@pytest.fixture
def loader(hundred: Path) -> Iterator[Loader]:
    """A loader of five batches."""
    with Loader(hundred, batch_size=20, num_workers=0).sync() as face:
        yield face.loader  # type: ignore[misc]  # it is one


@pytest.fixture
def each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each batch, however fast they are."""
    monkeypatch.setattr(aioload.live, "_REFRESH", 0.0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a wait, looks come one after the other."""
    monkeypatch.setattr(aioload.iterate, "_LIVENESS", 0.001)


def on(paper: Paper, width: int = 120) -> Console:
    """A terminal that is a piece of paper."""
    return Console(file=paper, force_terminal=True, width=width, _environ={})


def take(face: Any) -> list[Any]:
    """All batches, by `for`."""
    return list(face)


def take_async(face: Any) -> list[Any]:
    """All batches, by `async for`."""
    return anyio.run(gather, face)


def take_trio(face: Any) -> list[Any]:
    """All batches, by `async for` under trio."""
    return anyio.run(gather, face, backend="trio")


# what it says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [take, take_async, take_trio])
def test_the_batches_are_the_same(loader: Loader, way: Callable[[Any], list[Any]], each_batch: None) -> None:
    """A loop over a loader that is shown gets the batches it gets without, whichever loop it is."""
    bare = [plain(batch) for batch in loader.sync()]

    shown = way(progress(loader, console=on(Paper())))

    assert [plain(batch) for batch in shown] == bare


@pytest.mark.parametrize("way", [take, take_async])
def test_a_line_for_an_epoch(loader: Loader, way: Callable[[Any], list[Any]], each_batch: None) -> None:
    """From the start to the last batch the line counts; what stays speaks of the whole epoch."""
    paper = Paper()

    way(progress(loader, console=on(paper)))

    counts = [int(found[1]) for line in paper.drawn if (found := re.search(r"(\d+)/5 ", line))]
    assert counts == sorted(counts)
    assert set(counts) >= {1, 2, 3, 4, 5}
    assert "starting" in paper.drawn[0]
    last = r"epoch 0  5/5  ━+  [\d,.]+ samples/s  [\d.]+ .?B/s  stall \d+%( \(\w+\))?  in 0:0\d"
    assert re.fullmatch(last, paper.drawn[-1])


def test_a_position_that_was_loaded_counts(loader: Loader) -> None:
    """Batches of the epoch that were had before the state was taken are done; the next epoch is whole."""
    face, paper = progress(loader, console=on(Paper())), Paper()
    batches = iter(face)
    next(batches), next(batches)
    state = face.state_dict()
    face.load_state_dict(state)

    for epoch in range(2):
        take(progress(loader, console=on(paper)))
        assert face.epoch == epoch + 1

    assert paper.drawn[0].startswith("epoch 0  2/5")
    assert [line[:12] for line in paper.drawn if "in 0:0" in line][-1] == "epoch 1  5/5"


def test_a_narrow_terminal_has_no_bar(loader: Loader) -> None:
    """Where there is little room the numbers come first, and no line is broken in two."""
    paper = Paper()

    take(progress(loader, console=on(paper, width=40)))

    assert "━" not in paper.getvalue()
    assert max(map(len, paper.drawn)) <= 40


def test_an_old_terminal_gets_plain_characters(loader: Loader) -> None:
    """A terminal without Unicode shows the bar in signs that it has."""
    paper = Paper()

    take(progress(loader, console=_Ascii(file=paper, force_terminal=True, width=120, _environ={})))

    assert "#####" in paper.drawn[-1]
    assert paper.getvalue().isascii()


def test_it_is_the_loader(loader: Loader, hundred: Path) -> None:
    """Length, state, epochs, stats and report are the loader's own, and it is a SyncLoader to trainers."""
    face = progress(loader, console=on(Paper()))

    face.set_epoch(3)
    batches = iter(face)
    next(batches)

    assert isinstance(face, SyncLoader)
    assert face.loader is loader
    assert (len(face), face.batch_size, face.epoch, face.remaining) == (5, 20, 3, loader.remaining)
    assert face.state_dict() == loader.state_dict()
    assert face.stats().batches == loader.stats().batches == 1
    face.close()
    assert face.report() == loader.report()


@pytest.mark.usefixtures("each_batch", "at_once")
@pytest.mark.parametrize("way", [take, take_async, take_trio])
def test_a_wait_is_seen(hundred: Path, tmp_path: Path, way: Callable[[Any], list[Any]]) -> None:
    """While a batch is waited for, the line is drawn again and again, and shows how the stall grows."""

    def stalls(line: str) -> bool:
        return "stall 100%" in line or "stall 9" in line

    is_open = False
    with Gate(tmp_path) as gate:
        loader = Loader(hundred, batch_size=20, num_workers=1, transform=gate)
        gate.open(20)

        def open_once_it_shows(paper: Paper) -> None:
            nonlocal is_open
            waiting = [line for line in paper.drawn if "1/5" in line]
            if not is_open and (len(waiting) == 200 or (len(waiting) >= 4 and stalls(waiting[-1]))):
                is_open = True
                gate.open(80)

        paper = Paper(open_once_it_shows)

        with loader.sync():
            way(progress(loader, console=on(paper)))

    waiting = [line for line in paper.drawn if "1/5" in line]
    assert len(waiting) >= 4
    assert stalls(waiting[-1])


# where it is quiet -------------------------------------------------------------------------------------


def test_logs_stay_as_they_are(loader: Loader, capfd: pytest.CaptureFixture[str]) -> None:
    """Where standard error is no terminal nothing is written, and the loop has the loader's own iterator."""
    face = loader.sync(progress=True)

    batches = iter(face)
    count = len(list(batches))

    assert count == BATCHES
    assert capfd.readouterr() == ("", "")
    assert isinstance(batches, BatchIterator)


def test_colours_in_a_log_are_no_terminal(
    loader: Loader, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that ask for colours in logs do not fill them with lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    take(loader.sync(progress=True))

    assert capfd.readouterr() == ("", "")


def test_output_in_a_file_stays_there(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    """While a line stands on the terminal, what the program prints into a file or a pipe goes there."""
    paper = Paper()

    for batch in progress(loader, console=on(paper)):
        print(len(batch["n"]))  # noqa: T201 - as the training loops of users do

    assert capsys.readouterr().out == "20\n" * BATCHES
    assert "20\n" not in paper.getvalue()


def test_a_program_without_standard_error(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose standard error was closed or taken away iterates in peace."""
    monkeypatch.setattr(sys, "stderr", None)

    count = len(take(progress(loader)))

    assert count == BATCHES


@pytest.mark.parametrize(("all_ranks", "lines"), [(False, {0: True, 1: False}), (True, {0: True, 1: True})])
def test_one_rank_speaks(hundred: Path, all_ranks: bool, lines: dict[int, bool]) -> None:
    """Of many ranks, which often share a terminal, the first alone draws, unless all are asked to."""
    papers = {0: Paper(), 1: Paper()}

    for rank, paper in papers.items():
        with Loader(hundred, batch_size=20, num_workers=0, rank=rank, world_size=2).sync() as face:
            take(progress(face, all_ranks=all_ranks, console=on(paper)))

    assert {rank: bool(paper.drawn) for rank, paper in papers.items()} == lines


def test_a_terminal_that_goes_away(loader: Loader, each_batch: None) -> None:
    """When the terminal is closed the training goes on without the line."""

    def fail_at_the_third(paper: Paper) -> None:
        if len(paper.drawn) >= 3:
            raise OSError(5, "Input/output error")

    paper = Paper(fail_at_the_third)

    count = len(take(progress(loader, console=on(paper))))

    assert count == BATCHES
    assert len(paper.drawn) == 3


def test_a_notebook_needs_no_widgets(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, each_batch: None
) -> None:
    """In a notebook the line is one output of the cell, which changes; nothing but IPython is asked for."""
    shown: list[tuple[str, str]] = []
    handle = types.SimpleNamespace(update=lambda data, raw: shown.append(("again", data["text/plain"])))

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        shown.append(("first", data["text/plain"]))
        return handle

    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))

    take(loader.sync(progress=True))

    assert [how for how, _ in shown].count("first") == 1
    assert shown[0][0] == "first"
    assert shown[-1][1].startswith("epoch 0  5/5  100%  ")


# leaving -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_batch")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_interrupted_line_loses_no_batch(loader: Loader, asynchronous: bool) -> None:
    """Ctrl-C in the middle of drawing: the state says exactly what the loop has had."""
    had: list[Any] = []
    interrupts = [signal.SIGINT]

    def interrupt(paper: Paper) -> None:
        if len(had) == 3 and interrupts:
            signal.raise_signal(interrupts.pop())

    face = progress(loader, console=on(Paper(interrupt)))

    def iterate() -> None:
        for batch in face:
            had.append(batch)  # noqa: PERF402 - what was had before the interrupt counts

    async def iterate_async() -> None:
        async for batch in face:
            had.append(batch)  # noqa: PERF401 - as above

    with pytest.raises(KeyboardInterrupt):
        anyio.run(iterate_async) if asynchronous else iterate()
    assert len(had) >= 3
    face.load_state_dict(face.state_dict())
    rest = take(loader.sync()) if face.remaining < BATCHES else []

    assert [int(batch["n"][0]) for batch in had + rest] == [0, 20, 40, 60, 80]


def test_leaving_needs_no_garbage_collector(loader: Loader) -> None:
    """After `break` the line is finished at once: the iterator is part of no cycle."""
    paper = Paper()
    batches = iter(progress(loader, console=on(paper)))
    next(batches)
    gone = weakref.ref(batches)

    del batches

    assert gone() is None
    assert paper.drawn[-1].startswith("epoch 0  1/5")
    assert paper.drawn[-1].endswith("in 0:00")
    assert paper.getvalue().endswith("\n\x1b[?25h")


@pytest.mark.parametrize("leave", ["close", "again"])
def test_an_iteration_that_is_taken_over(loader: Loader, leave: str) -> None:
    """Closing and a new iteration finish the line at once, and the old iteration says why it ended."""
    paper = Paper()
    face = progress(loader, console=on(paper))
    batches = iter(face)
    next(batches)

    {"close": face.close, "again": lambda: iter(face)}[leave]()
    drawn = paper.getvalue()

    assert paper.drawn[-1].startswith("epoch 0  1/5")
    assert drawn.endswith("\n\x1b[?25h")
    with pytest.raises(ClosedError):
        next(batches)
    assert paper.getvalue() == drawn


def test_an_iteration_that_fails(loader: Loader) -> None:
    """An error in place of a batch, as of an iteration that another epoch has ended, finishes the line."""
    paper = Paper()
    batches = iter(progress(loader, console=on(paper)))
    next(batches)

    loader.set_epoch(2)
    with pytest.raises(ClosedError):
        next(batches)

    assert paper.drawn[-1].startswith("epoch 0  1/5")
    assert paper.getvalue().endswith("\n\x1b[?25h")


def test_no_thread_draws(loader: Loader) -> None:
    """The line is drawn by the thread that iterates, and there is no other that could."""
    drawers: set[threading.Thread] = set()
    paper = Paper(lambda paper: drawers.add(threading.current_thread()))

    with progress(loader, console=on(paper)) as face:
        batches = iter(face)
        next(batches)
        of_rich = [thread for thread in threading.enumerate() if type(thread).__module__.startswith("rich")]

    assert drawers == {threading.current_thread()}
    assert of_rich == []


def test_a_fork_draws_nothing(hundred: Path, tmp_path: Path) -> None:
    """The line is that of the process which iterates; a copy of it leaves the terminal alone."""
    script = """
    import os, sys
    from rich.console import Console
    from aioload import ClosedError, Loader, progress

    with open("drawn", "w") as paper:
        loader = Loader(sys.argv[1], batch_size=10, num_workers=0)
        face = progress(loader, console=Console(file=paper, force_terminal=True))
        batches = iter(face)
        next(batches)
        paper.flush()
        before = os.stat("drawn").st_size
        child = os.fork()
        if not child:
            try:
                next(batches)
            except ClosedError:
                sys.exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, os.stat("drawn").st_size - before)
        face.close()
    """

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert (ended.status, ended.out, ended.err) == (0, "7 0\n", "")


@pytest.mark.usefixtures("each_batch")
def test_a_cancelled_wait_goes_on(hundred: Path, tmp_path: Path) -> None:
    """A timeout around `anext` loses no batch and ends no line."""
    paper = Paper()

    async def main() -> list[int]:
        with Gate(tmp_path) as gate:
            async with progress(
                Loader(hundred, batch_size=20, num_workers=1, transform=gate), console=on(paper)
            ) as face:
                batches = aiter(face)
                gate.open(20)
                had = [await anext(batches)]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anext, batches)
                    await checkpoint()
                    tasks.cancel_scope.cancel()
                gate.open(80)
                had += [batch async for batch in batches]
                return [int(batch["n"][0]) for batch in had]

    firsts = anyio.run(main)

    assert firsts == [0, 20, 40, 60, 80]
    assert {line[:12] for line in paper.drawn if "in 0:0" in line} == {"epoch 0  5/5"}


SCRIPT = """
import os, signal, sys
import aioload

before = sys.stdout, sys.stderr
loader = aioload.Loader(sys.argv[2], batch_size=20, num_workers=0)
for batch in loader.sync(progress=True):
    print("a word")
    break
assert (sys.stdout, sys.stderr) == before
try:
    for batch in loader.sync(progress=True):
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    assert (sys.stdout, sys.stderr) == before
    print("interrupted")
for batch in aioload.Loader(sys.argv[2], batch_size=50, num_workers=0).sync(progress=True):
    for inner in loader.sync(progress=True):
        pass
    break
for step, batch in enumerate(loader.sync(progress=True)):
    if step == 2 and sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 2:
        raise RuntimeError("of the user")
"""


@pytest.mark.parametrize(
    ("end", "status", "last"),
    [("raise", 1, "RuntimeError: of the user"), ("kill", -signal.SIGKILL, "epoch 1  ")],
)
def test_a_real_terminal(hundred: Path, tmp_path: Path, end: str, status: int, last: str) -> None:
    """Whatever ends a loop: prints and tracebacks have lines of their own, and the cursor is there."""
    ended = scripts.on_terminal(SCRIPT, end, hundred, folder=tmp_path)

    seen = [_bare(line.split("\x1b[2K")[-1]).rstrip() for line in ended.out.split("\n")]
    words = [line for line in seen if line and not re.match(r"epoch [01]  [0-5]/[25]  ━*─*  ", line)]
    trace = ["Traceback (most recent call last):"] if end == "raise" else []
    assert ended.status == status, ended.out
    assert ended.out.rfind("\x1b[?25h") > ended.out.rfind("\x1b[?25l") >= 0
    assert [line for line in words if not line.startswith(" ")][:3] == ["a word", "interrupted", *trace]
    assert [line for line in seen if line][-1].startswith(last)
    assert sum(line.startswith("epoch 0  5/5") for line in seen) == 1
    drawn = re.split(r"\x1b\[2K|\n", ended.out)
    assert max(line.count("epoch") for line in drawn) == 1  # the inner loop's line is not beside the outer's


# figures for others ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [take, take_async])
def test_figures_after_each_epoch(loader: Loader, way: Callable[[Any], list[Any]]) -> None:
    """A callback gets the loader's stats, which go on, and a diagnosis when an epoch has ended."""
    told: list[Any] = []
    face = metrics(loader, lambda stats, diagnosis: told.append((stats, diagnosis)))

    way(face)
    way(face)

    assert [stats.batches for stats, _ in told] == [5, 10]
    assert all(diagnosis.rate > 0 for _, diagnosis in told)


def test_figures_in_between(loader: Loader) -> None:
    """Where time enough goes by, the callback is called between batches too, and not when a loop is left."""
    told: list[int] = []
    face = metrics(loader, lambda stats, diagnosis: told.append(stats.batches), every=1e-9)

    for batch in face:
        if batch["n"][0] == 40:
            break

    assert told == [1, 2]


def test_a_callback_that_fails(loader: Loader) -> None:
    """Its exception comes out of the loop; no batch is lost, and the next iteration goes on."""
    had: list[Any] = []

    def fail(stats: Any, diagnosis: Any) -> None:
        if stats.batches == 2:
            raise RuntimeError("of the callback")

    face = metrics(loader, fail, every=1e-9)
    with pytest.raises(RuntimeError, match="of the callback"):
        had += face  # what came before is kept
    face.load_state_dict(face.state_dict())
    rest = take(loader.sync())

    assert [int(batch["n"][0]) for batch in rest] == [40, 60, 80]


def test_figures_in_the_log(loader: Loader, caplog: pytest.LogCaptureFixture) -> None:
    """Without a callback a logger gets a line that a person reads; a log of warnings alone gets none."""
    with caplog.at_level("INFO", logger="aioload.metrics"):
        take(metrics(loader))
    with caplog.at_level("WARNING", logger="aioload.metrics"):
        take(metrics(loader))

    assert len(caplog.messages) == 1
    assert re.match(r"epoch 0  5/5  [\d,.]+ samples/s  ", caplog.messages[0])


def test_ranks_are_told_apart_in_the_log(hundred: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each rank has figures of its own, and says which it is."""
    with (
        caplog.at_level("INFO"),
        Loader(hundred, batch_size=20, num_workers=0, rank=1, world_size=2).sync() as face,
    ):
        take(metrics(face))

    assert caplog.messages[0].startswith("epoch 0  3/3 on rank 1  ")


def test_both_together(loader: Loader) -> None:
    """A loader is shown and told at once, in either order."""
    paper, told = Paper(), []
    console = on(paper)

    take(progress(metrics(loader, lambda stats, diagnosis: told.append(stats.batches)), console=console))
    take(metrics(progress(loader, console=console), lambda stats, diagnosis: told.append(stats.batches)))

    assert told == [5, 10]
    assert {line[:12] for line in paper.drawn if "in 0:0" in line} == {"epoch 0  5/5", "epoch 1  5/5"}


@pytest.mark.parametrize("look", [progress, metrics])
def test_only_loaders_can_be_looked_at(look: Callable[[Any], Any]) -> None:
    """What is no loader of ours is refused by a sentence, and not by its first missing attribute."""
    with pytest.raises(aioload.ConfigError, match=r"only a Loader.* a list"):
        look([1, 2, 3])


@pytest.mark.parametrize("options", [{"every": 0}, {"every": "1 s"}, {"to": "a log"}])
def test_what_cannot_be_is_refused(loader: Loader, options: dict[str, Any]) -> None:
    """A time that is none and a receiver that is none are refused before anything starts."""
    with pytest.raises(aioload.ConfigError):
        metrics(loader, **options)


class _Ascii(Console):
    """A terminal that has no more than ASCII."""

    encoding = "ascii"


def _bare(text: str) -> str:
    """Text without colours and what moves the cursor."""
    return re.sub(r"\x1b\[(?!2K)[0-9;?]*[a-zA-Z]", "", text)
