"""The bench on a tiny set: every figure is there, they fit each other, and nothing is left running."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import foreign_sets
import numpy as np
import pytest
import torch
from conftest import TinySet
from PIL import Image

from aioload import ConfigError, Dataset, Loader, SampleError, Writer, benching, decode
from aioload._device.simulated import SimulatedDevice
from aioload.benching import (
    Bench,
    Measured,
    Point,
    Setup,
    Sweep,
    Wanted,
    find_knee,
    run_bench,
    seconds_of,
)
from aioload.benching.against import Records, torch_loader
from aioload.benching.bench import worker_values
from aioload.benching.copying import copy_rate
from aioload.benching.plot import plot
from aioload.benching.setup import fitted

QUICK = 0.05


def bench(dataset: Dataset, setup: Setup, wanted: Wanted) -> Bench:
    """Measure to the end."""
    *_, last = run_bench(dataset, setup, wanted)
    return last


def test_all_of_it_is_measured(tiny_set: TinySet) -> None:
    """The loader, its stages and torch have rates; what there is no device for says so."""
    found = bench(Dataset(tiny_set.path), Setup(4, 1), Wanted(QUICK, against_torch=True))

    assert [one.name for one in found.measured] == ["loader", "read", "decode", "copy", "torch"]
    assert all(one.samples_per_second > 0 for one in found.measured if one.missing is None)
    assert found.is_complete
    assert found.num_workers == 1
    assert found.slowest is not None
    assert found.slowest.name in ("read", "decode")


def test_a_bench_that_is_stopped_has_what_there_was(tiny_set: TinySet) -> None:
    """After each step the figures so far are there; whoever closes it leaves nothing behind."""
    steps = run_bench(Dataset(tiny_set.path), Setup(4, 1), Wanted(QUICK))

    next(steps)
    found = next(steps)
    steps.close()

    assert found.named("loader") is not None
    assert found.named("decode") is None
    assert not found.is_complete


def test_a_sweep_finds_a_knee(tiny_set: TinySet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of workers, and then of batches ahead, was measured, and one of them is the knee."""
    monkeypatch.setattr(benching.bench, "worker_values", lambda workers: [workers, 2 * workers])
    monkeypatch.setattr(benching.bench, "prefetch_values", lambda: [1, 4])

    found = bench(Dataset(tiny_set.path), Setup(4, 1), Wanted(QUICK, stages=False, sweep=True))

    workers, prefetch = found.sweeps
    assert (workers.knob, prefetch.knob) == ("workers", "prefetch")
    assert [point.value for point in workers.points] == [1, 2]
    assert [point.value for point in prefetch.points] == [1, 4]
    assert all(sweep.knee.value in [point.value for point in sweep.points] for sweep in found.sweeps)


@pytest.mark.parametrize(
    ("workers", "cpus", "expected"),
    [
        (1, 1, [1, 2]),
        (2, 2, [1, 2, 3]),
        (4, 8, [1, 2, 4, 8, 12]),
        (5, 6, [1, 2, 4, 5, 6, 9]),
        (0, 2, [1, 2, 3]),
    ],
)
def test_the_numbers_of_workers_to_try(workers: int, cpus: int, expected: list[int]) -> None:
    """One, doubled up to the CPUs, more than these, and what was asked for."""
    assert worker_values(workers, cpus) == expected


def test_a_bar_has_a_length() -> None:
    """More to measure takes longer."""
    some, all_ = Wanted(2.0, stages=False), Wanted(2.0, against_torch=True, sweep=True)

    assert 0 < seconds_of(some, num_workers=2) < seconds_of(all_, num_workers=2)


def test_torch_gets_the_same_samples(tiny_set: TinySet) -> None:
    """The map-style set gives what the loader gives, record by record."""
    dataset = Dataset(tiny_set.path)
    records = Records(dataset, {}, None)

    with Loader(dataset, batch_size=1, num_workers=0).sync() as batches:
        for number, batch in enumerate(batches):
            sample = records[number]
            assert sample["name"] == batch["name"][0]
            assert (sample["image"] == batch["image"][0].numpy()).all()
    assert len(records) == 24


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nobody tells which files are open")
def test_torch_leaves_no_file_open(tiny_set: TinySet) -> None:
    """What it reads in this process, where there are no workers, is closed with its set."""
    shards = Path(tiny_set.path).resolve()

    records = Records(Dataset(tiny_set.path), {}, None)
    records[0]
    during = [file for file in Path("/proc/self/fd").iterdir() if shards in file.resolve().parents]
    del records
    gc.collect()
    after = [file for file in Path("/proc/self/fd").iterdir() if shards in file.resolve().parents]

    assert (len(during), after) == (1, [])


def test_torch_runs_the_users_functions(tiny_set: TinySet) -> None:
    """Decoders, a transform that draws and a collate are those of the setup."""

    def transform(sample: dict[str, object], rng: np.random.Generator) -> dict[str, object]:
        return {"key": sample["__key__"], "drawn": rng.random(), "image": sample["image"]}

    image = decode.Image(size=(4, 4), crop="random_resized", flip=True)
    setup = Setup(6, 0, shuffle=False, decode={"image": image}, transform=transform)

    batches = list(torch_loader(Dataset(tiny_set.path), setup, num_workers=0))

    assert [key for batch in batches for key in batch["key"]] == tiny_set.keys
    assert batches[0]["image"].shape == (6, 4, 4, 3)


def ragged(folder: Path) -> Dataset:
    """Pack pictures of differing sizes."""
    with Writer(folder / "set", fields={"image": "image", "label": "int"}) as writer:
        for number in range(12):
            path = folder / "x.png"
            Image.new("RGB", (10 + number, 8)).save(path)
            writer.write({"image": path.read_bytes(), "label": number})
    return Dataset(folder / "set")


def test_pictures_of_differing_sizes_are_lists(tmp_path: Path) -> None:
    """What cannot be stacked is measured all the same, and it is told."""
    found = bench(ragged(tmp_path), Setup(4, 0), Wanted(QUICK, stages=False))

    assert found.named("loader") is not None
    assert "image" in found.notes[0]


@pytest.mark.parametrize("transform", [None, lambda sample: (sample["image"][:8, :8], sample["label"])])
def test_samples_are_counted_whatever_a_batch_is(tmp_path: Path, transform: Any) -> None:
    """Lists of pictures with more rows than a batch has samples do not pass for more samples."""
    dataset = ragged(tmp_path)

    found = bench(dataset, Setup(4, 0, transform=transform), Wanted(QUICK, stages=False, against_torch=True))

    mean = 8 * 3 * (8 if transform else 15.5) + 8  # bytes of a sample, over whole epochs
    for name in ("loader", "torch"):
        one = found.named(name)
        assert one is not None
        assert 0.6 < one.bytes_per_second / one.samples_per_second / mean < 1.4


def test_pictures_that_are_cropped_are_stacked(tmp_path: Path) -> None:
    """With a size there is nothing to tell, and what the user's collate says is not changed."""
    dataset = ragged(tmp_path)
    cropped = Setup(4, 0, decode={"image": decode.Image(size=8, crop="center")})

    assert fitted(cropped, dataset) == (cropped, ())
    own = Setup(4, 0, collate=len)
    assert fitted(own, dataset) == (own, ())


def test_a_sample_that_is_bad_is_told(tmp_path: Path) -> None:
    """A picture that does not decode is an error, and no reason to keep lists."""
    with Writer(tmp_path / "set", fields={"image": "image"}) as writer:
        writer.write({"image": b"\xff\xd8 no picture"}, key="bad")

    with pytest.raises(SampleError, match="bad"):
        bench(Dataset(tmp_path / "set"), Setup(1, 0), Wanted(QUICK, stages=False))


def test_an_empty_set_is_an_error(tmp_path: Path) -> None:
    """There is nothing to measure."""
    with Writer(tmp_path / "set", fields={"n": "int"}):
        pass

    with pytest.raises(ConfigError):
        bench(Dataset(tmp_path / "set"), Setup(1, 0), Wanted(QUICK))


def test_shards_of_others_are_measured(tmp_path: Path) -> None:
    """An archive goes the same way."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(20)))

    found = bench(Dataset(tmp_path / "x.tar"), Setup(4, 1), Wanted(QUICK, against_torch=True))

    assert all(one.samples_per_second > 0 for one in found.measured if one.name != "copy")


def test_a_plot_is_a_picture(tmp_path: Path) -> None:
    """Stages and sweeps are drawn into one PNG, also where some of it is missing."""
    points = (Point(1, (300.0, 310.0)), Point(2, (580.0, 600.0)), Point(4, (590.0, 595.0)))
    measured = [
        Measured("loader", "all of it", 590.0),
        Measured("read", "reads", 90_000.0),
        Measured("copy", "copies", missing="no device"),
    ]
    found = Bench("x", 10, 2, 4, measured, [Sweep("workers", points, find_knee(points))], [])

    plot(found, tmp_path / "out.png")

    with Image.open(tmp_path / "out.png") as picture:
        assert picture.width > 2 * picture.height


def test_copies_are_counted() -> None:
    """With a device its copies have a rate; the thread that does them ends."""
    device = SimulatedDevice()

    rate = copy_rate({"x": torch.zeros(8, 4)}, 8, QUICK, device)
    device.close()

    assert rate.samples == 8 * rate.batches > 0
    assert rate.batch_bytes == 8 * 16 * rate.batches
