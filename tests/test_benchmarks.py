"""The benchmarks run on tiny data, count what they should, and judge by what they measured."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all scripts keep their data."""
    return tmp_path_factory.mktemp("benchmarks")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that imports a script; afterwards nobody finds it any more."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
            del sys.modules[name]


def run(script: str, *options: object) -> tuple[int, str]:
    """Run a script; return its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout


def case(script: str, name: str, data: Path, *options: object) -> dict[str, Any]:
    """Run one contender; return its figures."""
    status, out = run(script, "--case", name, "--data", data, *options)
    assert status == 0
    return dict(json.loads(out.splitlines()[-1]))


@pytest.mark.parametrize(
    ("script", "name", "records"),
    [
        ("tiny.py", "torch", 400),
        ("tiny.py", "aioload", 400),
        ("photos.py", "bare-pillow", 64),
        ("drop_in.py", "swapped", 64),
    ],
)
def test_a_contender_gives_every_sample(data: Path, script: str, name: str, records: int) -> None:
    """Each epoch that is measured has all records, and every figure of the table is there."""
    scale = records / (200_000 if script == "tiny.py" else 6000)

    figures = case(script, name, data, "--scale", scale, "--seconds", 0)

    assert (figures["epochs"], figures["samples"]) == (1, records)
    assert figures["samples_per_second"] > 0
    assert figures["memory_mib"] > figures["shared_mib"] >= 0


def test_a_worker_that_keeps_is_measured_beside_one_that_does_not() -> None:
    """Each way has its row; the script itself refuses workers that have done something else."""
    status, out = run(
        "keeping.py", "--turns", 1, "--backed", 1, "--only", "none,memory,disk,found,found singly"
    )

    assert status == 0
    assert [line[:13].strip() for line in out.splitlines()[1:]] == [
        "none",
        "memory",
        "disk",
        "found",
        "found singly",
    ]


def test_spectrograms_are_made_once_or_in_every_epoch() -> None:
    """Each way gives all sounds in each of its epochs, and stands in the table."""
    status, out = run("audio_cache.py", "--sounds", 6, "--rounds", 1, "--only", "mapped,torch")

    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["mapped", "torch"]


def test_an_executor_is_measured(data: Path) -> None:
    """An epoch by threads has all records, and its rate is told in bytes that were moved."""
    figures = case("executors.py", "threads-raw", data, "--scale", 64 / 6000, "--seconds", 0)

    assert figures["samples"] == 64
    assert figures["mib_per_second"] > 0
    assert figures["cpu_seconds_per_gb"] >= 0  # an epoch of 64 may take less than a tick of the clock


def test_a_limit_is_watched(data: Path) -> None:
    """The shared memory of the pipeline is seen, and is within the limit."""
    figures = case("bounded.py", "10B-1KB@32MiB@mmap", data, "--seconds", 0.5)

    assert figures["limit_mib"] == 32
    assert 0 < figures["shared_mib"] <= 32 * 1.1
    assert figures["looks"] > 1


def test_a_cell_of_the_matrix_has_a_rate(data: Path) -> None:
    """One order, number of workers and batch size gives samples a second."""
    figures = case("matrix.py", "full-0-8", data, "--scale", 0.002, "--seconds", 0.1)

    assert figures["rate"] > 0


def test_a_trainer_is_timed_alone_and_fed(data: Path) -> None:
    """Steps alone and beside a loader are compared, and waits are counted after the first ten."""
    figures = case("trainer.py", "aioload", data, "--scale", 0.002, "--seconds", 0.4)

    assert figures["step_ratio"] == pytest.approx(figures["fed_ms"] / figures["alone_ms"])
    assert 0 <= figures["waiting_steps"] <= 10


def test_copies_to_a_device_are_measured() -> None:
    """Without a device the script says so and is content; on the simulated one its table is whole."""
    alone = run("bench_device.py", "--steps", 5)

    status, out = run("bench_device.py", "--simulated", "--steps", 5)

    assert alone == (0, "no device\n") or torch.cuda.is_available()
    assert (status, out.count(", ms")) == (0, 4)


def test_a_race_writes_its_report(data: Path, tmp_path: Path) -> None:
    """Who ran is printed and written; goals that need somebody else are open, and none is missed."""
    options = ("--quick", "--data", data, "--out", tmp_path, "--only", "tiny")

    status, out = run("race.py", *options, "--contenders", "bare,mosaicml")

    told = json.loads((tmp_path / "race.json").read_text())
    assert status == 0
    assert "| tiny | aioload / bare | not available |" in out
    assert set(told["runs"]) == {"tiny:bare", "tiny:bare-shuffled", "tiny:mosaicml-streaming"}
    assert told["runs"]["tiny:bare"][0]["samples_per_second"] > 0
    assert (tmp_path / "race.md").read_text() == out


def test_a_bad_day_gives_the_same_batches(data: Path, tmp_path: Path) -> None:
    """Two epochs over a server that goes wrong have the sum of two local ones, and it is written down."""
    options = ("--quick", "--scale", 0.01, "--data", data, "--out", tmp_path)

    _, out = run("network.py", *options, "--only", "day-local,day-bad", "--seed", 3)

    runs = json.loads((tmp_path / "network.json").read_text())["runs"]
    assert runs["day-bad"][0]["digest"] == runs["day-local"][0]["digest"]
    assert runs["day-bad"][0]["requests"] >= runs["day-bad"][0]["needed"] > 0
    assert "| day | bad: same as local | 1 | 1 | 1 | >= 1 | yes |" in out


def test_a_server_of_ranges_is_counted(data: Path, modules: Any) -> None:
    """What a bare reader takes is what the server says it gave."""
    serving, reading = modules("_server").serving, modules("_reading")
    (data / "served.bin").write_bytes(bytes(300_000))
    ranges = reading.cut({"served.bin": 300_000}, 100_000)

    with serving(data) as server:
        server.set(latency=0.01, bandwidth=40e6)
        came = reading.run(reading.read_by_aiohttp(server.url, ranges, 2))
        counts = server.counts()

    assert came == counts.bytes == 300_000
    assert (counts.requests, counts.most_open, counts.connections >= 2) == (3, 2, True)


def test_ratios_are_taken_within_a_round(modules: Any) -> None:
    """A machine that gets slower from round to round changes no ratio, and the faster rival counts."""
    race = modules("race")
    rates = [(800.0, 100.0, 90.0), (80.0, 9.0, 10.0), (8.0, 1.0, 0.5)]
    rounds = [
        {name: {"samples_per_second": rate} for name, rate in zip(("ours", "one", "two"), each, strict=True)}
        for each in rates
    ]
    goal = race.Goal("tiny", "ours / the best", race.over("ours", "one", "two"), 8.0)

    (verdict,) = race.judge(rounds, [goal])

    assert verdict.values == (8.0, 8.0, 8.0)
    assert verdict.met is True


def test_who_did_not_run_is_not_judged(modules: Any) -> None:
    """A goal is unknown, and neither met nor missed, while a contender it needs is not there."""
    race = modules("race")
    rounds = [{"ours": {"samples_per_second": 1.0}}]

    (verdict,) = race.judge(rounds, [race.Goal("tiny", "ours / torch", race.over("ours", "torch"), 8.0)])

    assert (verdict.values, verdict.met) == ((), None)
    assert "| not available |" in race.verdict_table([verdict])


def test_a_smaller_figure_can_be_what_is_asked(modules: Any) -> None:
    """Of seconds and bytes the median must be at most the target."""
    race = modules("race")
    rounds = [{"ours": {"seconds": seconds}} for seconds in (0.1, 0.2, 0.9)]
    goals = [
        race.Goal("x", "s", race.of("ours", "seconds"), target, at_least=False) for target in (0.2, 0.19)
    ]

    verdicts = race.judge(rounds, goals)

    assert [verdict.met for verdict in verdicts] == [True, False]


def test_photos_are_the_same_everywhere(modules: Any) -> None:
    """A photo depends on its number alone, is of the size it should be, and no two are alike."""
    photo = modules("_data").photo

    first, again, other = photo(7), photo(7), photo(8)

    assert first == again
    assert first != other
    assert Image.open(BytesIO(first)).size == (500, 375)
    assert 60_000 < len(first) < 160_000


def test_data_is_made_once_for_a_recipe(modules: Any, tmp_path: Path) -> None:
    """What is there is found again; another recipe or size makes its own."""
    made = modules("_data")
    first = made.tiny(tmp_path, 0.002)
    marked = first.plain / "mark"
    marked.touch()

    again, other = made.tiny(tmp_path, 0.002), made.tiny(tmp_path, 0.004)

    assert again == first
    assert marked.exists()
    assert other.records == 2 * first.records
    assert other.folder != first.folder


def test_the_memory_of_a_tree_counts_children(modules: Any) -> None:
    """What a child process holds is part of the tree, and a process that is left out is not."""
    measure = modules("_measure")
    hold = "held = bytearray(64 << 20); print('holds', flush=True); input()"
    command = [sys.executable, "-c", hold]
    before = measure.tree_memory(os.getpid())

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with_child = measure.tree_memory(os.getpid())
        without = measure.tree_memory(os.getpid(), without=(child.pid,))
        child.communicate(b"\n")

    assert with_child.total - before.total > 60 << 20
    assert abs(without.total - before.total) < 30 << 20


def test_an_archive_is_indexed_whole() -> None:
    """Both archives are read to their last member, and each line has its figures."""
    status, out = run("index_tar.py", "--members", 600, "--runs", 1)

    rows = [line.split() for line in out.splitlines()[1:]]
    assert status == 0
    assert [(row[0], row[2]) for row in rows] == [("ustar", "600"), ("pax", "600")]
    assert all(float(row[3].replace(",", "")) > 0 < float(row[5]) for row in rows)


def test_counting_has_a_price(data: Path) -> None:
    """Half of the epochs were counted, and calls are turned into a share."""
    status, out = run("stats_cost.py", "--data", data, "--scale", 0.002, "--rounds", 1)

    told = json.loads(out.splitlines()[0])
    assert status == 0
    assert told["samples"] == 400
    assert told["calls"]["step"] == 2
    assert 0 < told["calls_ratio"] < 1


def test_what_showing_costs_is_compared() -> None:
    """Both ways of showing have their row for both sizes of batches."""
    status, out = run("bench_live.py", "--records", 600, "--rounds", 1)

    assert status == 0
    rows = [line.split()[0::2][:2] for line in out.splitlines()[2:]]
    assert rows == [["8", "progress"], ["8", "metrics"], ["256", "progress"], ["256", "metrics"]]


def test_estimates_are_held_against_epochs(data: Path) -> None:
    """A case that is asked for has an estimate and a measured epoch in the table."""
    options = ("--scale", 64 / 6000, "--rounds", 1, "--seconds", 0.1, "--raw", "--only", "hdd")

    status, out = run("plan_accuracy.py", "--data", data, *options)

    assert status == 0
    [row] = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| hdd ")]
    assert float(row[2]) > 0
    assert float(row[3]) > 0
