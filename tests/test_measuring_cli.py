"""`aioload bench` and `aioload plan`: what they print, for people and machines, and how each ends."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreign_sets
import numpy as np
import pytest
import scripts
from commands import aio, told
from conftest import TinySet
from PIL import Image
from rich.console import Console
from servers.ranges import RangeServer

from aioload import Writer
from aioload.benching import Bench, run_bench
from aioload.cli import _console

QUICK = ("--seconds", "0.05", "--batch-size", "4", "--num-workers", "0")

BENCH_KEYS = {
    "source", "records", "batch_size", "num_workers", "complete", "measured", "slowest", "loader_to_torch",
    "sweeps", "notes",
}  # fmt: skip
MEASURED_KEYS = {
    "name", "what", "samples_per_second", "bytes_per_second", "cpu_seconds_per_1000", "first_batch_seconds",
    "spread", "rounds", "missing",
}  # fmt: skip
PLAN_KEYS = {
    "subject", "reads", "storage", "work", "demand", "epochs", "choices", "verdict", "notes",
}  # fmt: skip
EPOCHS_KEYS = {
    "first_seconds", "later_seconds", "total_seconds", "start_seconds", "limit", "first", "later",
}  # fmt: skip


def photos(folder: Path) -> Path:
    """Write pictures of differing sizes, a sub-folder a class."""
    for number in range(8):
        path = folder / f"class-{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 16)).save(path)
    return folder


@pytest.mark.parametrize("options", [(), ("--size", "16")])
@pytest.mark.parametrize("command", ["bench", "plan"])
def test_what_is_not_stacked_is_told_with_what_to_do(
    tmp_path: Path, command: str, options: tuple[str, ...]
) -> None:
    """Pictures that are scaled and not cropped still differ in shape: both options are named."""
    aio("pack", photos(tmp_path / "in"), tmp_path / "set")

    found = told(command, tmp_path / "set", *QUICK, *options)

    assert any("image differ in shape" in note and "--size and --crop" in note for note in found["notes"])


# bench


def test_bench_prints_json_of_a_known_make(tiny_set: TinySet) -> None:
    """Machines find the same names every time."""
    found = told("bench", tiny_set.path, *QUICK, "--against", "torch")

    assert found.keys() == BENCH_KEYS
    assert all(one.keys() == MEASURED_KEYS for one in found["measured"])
    assert [one["name"] for one in found["measured"]] == ["loader", "read", "decode", "copy", "torch"]
    assert (found["records"], found["complete"]) == (24, True)
    assert found["loader_to_torch"] > 0


def test_bench_prints_a_table(tiny_set: TinySet) -> None:
    """People see each stage, what is missing and why, and which is the slowest."""
    text = aio("bench", tiny_set.path, *QUICK).stdout

    assert "24 records, batches of 4, 0 workers" in text
    assert [line.split()[0] for line in text.splitlines()[2:6]] == ["loader", "read", "decode", "copy"]
    assert "no device on this machine" in text
    assert "the slowest stage alone is" in text


def test_bench_sweeps(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep's curves and their knees are there."""
    monkeypatch.setattr("aioload.benching.bench.worker_values", lambda workers: [1])
    monkeypatch.setattr("aioload.benching.bench.prefetch_values", lambda: [2])

    found = told("bench", tiny_set.path, *QUICK[:4], "--no-stages", "--sweep")

    assert [sweep["knob"] for sweep in found["sweeps"]] == ["workers", "prefetch"]
    for sweep in found["sweeps"]:
        assert sweep["knee"]["value"] in [point["value"] for point in sweep["points"]]


def test_bench_draws(tiny_set: TinySet, tmp_path: Path) -> None:
    """`--plot` leaves a picture."""
    aio("bench", tiny_set.path, *QUICK, "--no-stages", "--plot", tmp_path / "out.png")

    with Image.open(tmp_path / "out.png") as picture:
        assert picture.format == "PNG"


def test_a_plot_without_matplotlib_says_what_to_install(
    tiny_set: TinySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    result = aio("bench", tiny_set.path, "--plot", tmp_path / "out.png", status=1)

    assert "torch-aioload[plot]" in result.stderr
    assert result.stdout == ""


def test_ctrl_c_prints_what_there_is(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is impatient gets the figures so far, and a status that says so."""

    def impatient(*arguments: Any, **options: Any) -> Iterator[Bench]:
        steps = run_bench(*arguments, **options)
        try:
            yield next(steps)
            yield next(steps)
            raise KeyboardInterrupt
        finally:
            steps.close()

    monkeypatch.setattr("aioload.cli.bench.run_bench", impatient)

    text = aio("bench", tiny_set.path, *QUICK, status=1).stdout
    found = told("bench", tiny_set.path, *QUICK, status=1)

    assert "stopped before the end" in text
    assert found["complete"] is False
    assert found["measured"][0]["samples_per_second"] > 0


# plan


def test_plan_prints_json_of_a_known_make(tiny_set: TinySet) -> None:
    """Machines find the same names every time, and figures that fit each other."""
    found = told("plan", tiny_set.path, *QUICK, "--storage", "hdd", "--step-ms", 100, "--epochs", 3)

    assert found.keys() == PLAN_KEYS
    assert found["epochs"].keys() == EPOCHS_KEYS
    assert found["subject"]["records"] == found["reads"]["records"] == 24
    assert found["storage"]["name"] == "hdd"
    first, later = found["epochs"]["first_seconds"], found["epochs"]["later_seconds"]
    assert found["epochs"]["total_seconds"] == pytest.approx(first + 2 * later)
    assert later >= 0.6  # six steps
    assert found["choices"][0]["total_seconds"] == pytest.approx(found["epochs"]["total_seconds"])


def test_plan_prints_stages_and_a_verdict(tiny_set: TinySet) -> None:
    """People see what each stage takes of an epoch and of a step, and what to do."""
    lines = aio("plan", tiny_set.path, *QUICK, "--measure", "--step-ms", 100).stdout.splitlines()

    assert [line.split()[0] for line in lines[2:7]] == ["stage", "storage", "decode", "copy", "model"]
    assert "measured" in lines[0]
    assert lines[7].startswith("epochs: the first ")
    assert lines[8].startswith("verdict: ")


def test_plan_of_pictures(tmp_path: Path) -> None:
    """A folder that is not packed is planned for, and packing it is weighed."""
    found = told("plan", photos(tmp_path / "photos"), *QUICK, "--size", "8x8", "--crop", "random", "--flip")

    assert found["subject"]["kind"] == "files"
    assert [choice["action"] for choice in found["choices"]] == ["leave", "pack"]
    assert found["work"]["batch_bytes"] == 8 * 8 * 3 + 8


# both


@pytest.mark.parametrize("command", ["bench", "plan"])
@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_shards_of_others(tmp_path: Path, command: str, kind: str) -> None:
    """DATA may be an archive or a TFRecord file, and its fields may be chosen."""
    make = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    (tmp_path / f"x.{kind}").write_bytes(make(range(12)))
    number = "cls=int" if kind == "tar" else "cls=example:int64"

    found = told(command, tmp_path / f"x.{kind}", *QUICK, "--field", number)

    assert found.get("records", found.get("subject", {}).get("records")) == 12


@pytest.mark.parametrize("command", ["bench", "plan"])
def test_an_address(tiny_set: TinySet, command: str) -> None:
    """DATA may be a set on a server."""
    with RangeServer(tiny_set.path) as server:
        found = told(command, server.url, *QUICK, "--storage-option", "attempts=2")

    assert found.get("complete", True)
    assert found.get("storage", {"name": "http"})["name"] == "http"


@pytest.mark.parametrize("command", ["bench", "plan"])
def test_the_users_transform(
    tiny_set: TinySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """`--with` names a function of a module where the command is given."""
    (tmp_path / f"mine_{command}.py").write_text("def small(sample):\n    return {'n': sample['label']}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    found = told(command, tiny_set.path, *QUICK, "--with", f"mine_{command}:small")

    sizes = [one["bytes_per_second"] / one["samples_per_second"] for one in found.get("measured", [])[:1]]
    assert (sizes or [found["work"]["batch_bytes"]]) == [pytest.approx(8)]


@pytest.mark.parametrize("command", ["bench", "plan"])
@pytest.mark.parametrize(
    "options",
    [
        ("--size", "0"),
        ("--size", "big"),
        ("--crop", "random"),
        ("--crop", "left", "--size", "8"),
        ("--batch-size", "0"),
        ("--num-workers", "-1"),
        ("--shuffle", "some"),
        ("--with", "nowhere"),
        ("--with", "no_such_module:f"),
        ("--with", "os:sep"),
        ("--with", ".os:sep"),
        ("--seconds", "0"),
        ("--seconds", "inf"),
    ],
)
def test_wrong_usage_is_status_2(tiny_set: TinySet, command: str, options: tuple[str, ...]) -> None:
    """What cannot be understood ends with 2, before anything is measured."""
    assert aio(command, tiny_set.path, *options, status=2).stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--measure", "--storage", "hdd"),
        ("plan", "--storage", "floppy"),
        ("plan", "--gpus", "0"),
        ("plan", "--step-ms", "0"),
        ("plan", "--step-ms", "inf"),
        ("plan", "--epochs", "1" + 400 * "0"),
        ("bench", "--against", "nobody"),
    ],
)
def test_wrong_usage_of_one_is_status_2(tiny_set: TinySet, arguments: tuple[str, ...]) -> None:
    """The same for options that only one of them has."""
    assert aio(arguments[0], tiny_set.path, *arguments[1:], status=2).stdout == ""


@pytest.mark.parametrize("text", ["raise OSError('mine')", "1 / 0", "def f(:"])
def test_a_module_that_fails_is_status_2(
    tiny_set: TinySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Whatever the user's module raises is told as what it is, without a traceback of the command's."""
    (tmp_path / "faulty_of_user.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    result = aio("plan", tiny_set.path, *QUICK, "--with", "faulty_of_user:f", status=2)

    assert "cannot be imported" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["bench", "plan"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_json_stands_alone(tiny_set: TinySet, tmp_path: Path, command: str, num_workers: int) -> None:
    """What the user's module and function print, in whatever process and way, is not among it."""
    (tmp_path / "loud.py").write_text(
        "import os\nprint('at import')\n"
        "def f(sample):\n    print('loud')\n    os.write(1, b'louder\\n')\n    return sample\n"
    )
    script = "import sys; from aioload.cli import main; sys.argv[0] = 'aioload'; main()"
    options = ("--with", "loud:f", "--json", "--seconds", "0.05", "--num-workers", num_workers)

    ended = scripts.run(script, command, tiny_set.path, *options, folder=tmp_path, way="-c")

    assert ended.status == 0, ended.err
    assert isinstance(json.loads(ended.out), dict)
    assert {"at import", "loud", "louder"} <= set(ended.err.split("\n"))


def test_a_table_goes_through_any_terminal(
    tiny_set: TinySet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No command ends at a sign that the terminal does not have."""
    (tmp_path / "grün").symlink_to(tiny_set.path)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    script = "from aioload.cli import main; main()"

    ended = scripts.run(script, "bench", "grün", "--no-stages", *QUICK, folder=tmp_path, way="-c")

    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith(r"gr\xfcn: 24 records")


@pytest.mark.parametrize(("encoding", "name"), [("ascii", b"gr\xc3\xbcn"), ("utf-8", b"no text \xff")])
def test_json_of_any_name(monkeypatch: pytest.MonkeyPatch, encoding: str, name: bytes) -> None:
    """What a set is called is JSON, whatever the terminal can show and whether it is a text."""
    paper = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(paper, encoding, errors="surrogateescape"))
    value = {"source": os.fsdecode(name)}

    _console.print_json(value)
    sys.stdout.flush()

    assert json.loads(paper.getvalue().decode("utf-8")) == value


@pytest.mark.parametrize("name", ["missing/x.png", "x.docx", "folder", "/dev/null"])
def test_a_plot_that_cannot_be_is_told_before_anything_is_measured(
    tiny_set: TinySet, tmp_path: Path, name: str
) -> None:
    """A kind of picture that there is not, a folder that is missing, what stands in the way."""
    (tmp_path / "folder").mkdir()

    result = aio("bench", tiny_set.path, *QUICK, "--plot", tmp_path / name, status=1)

    assert result.stderr.startswith("aioload: the plot ")
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_too_little_memory_is_one_line(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine cannot hold is the data's or an option's fault, as pictures of 99999 x 99999."""

    def no_room(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no room for 27 GiB")

    monkeypatch.setattr("aioload.cli.plan.forecast", no_room)

    result = aio("plan", tiny_set.path, *QUICK, status=1)

    assert result.stderr == "aioload: no room for 27 GiB\n"


@pytest.mark.parametrize("command", ["bench", "plan"])
def test_data_at_fault_is_status_1(tmp_path: Path, command: str) -> None:
    """What is not there, is empty, or has no pictures to be cropped is one line and status 1."""
    with Writer(tmp_path / "empty", fields={"n": "int"}):
        pass
    with Writer(tmp_path / "numbers", fields={"x": "ndarray"}) as writer:
        writer.write({"x": np.zeros(3)})

    missing = aio(command, tmp_path / "missing", status=1)
    empty = aio(command, tmp_path / "empty", *QUICK, status=1)
    numbers = aio(command, tmp_path / "numbers", *QUICK, "--size", 8, status=1)

    assert [result.stderr.count("\n") for result in (missing, empty, numbers)] == [1, 1, 1]
    assert "no field is one" in numbers.stderr


def test_a_bar_of_seconds_tells_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but time goes by, the bar has a share and the time left, and no records or bytes."""
    paper = io.StringIO()
    terminal = Console(file=paper, force_terminal=True, width=80, _environ={})
    monkeypatch.setattr(_console, "Console", lambda stderr: terminal)

    with _console.seconds_bar("measuring", 4.0) as advance:
        advance(1.0)
    drawn = paper.getvalue()

    assert "measuring" in drawn
    assert "25%" in drawn
    assert "/s" not in drawn
