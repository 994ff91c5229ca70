"""Forecasts of small sets: what is measured fits together, and what is not packed is planned for, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import foreign_sets
import numpy as np
import pytest
from conftest import TinySet
from PIL import Image

from aioload import ConfigError, Dataset, Writer, decode
from aioload.benching import Setup
from aioload.planning import PRESETS, Demand, Forecast, Wanted, forecast, open_subject
from aioload.planning.files import Files, find_files, packed_pattern, packing_seconds, pattern_of_files
from aioload.storage import MemoryStorage

QUICK = 0.05


def pictures(folder: Path, count: int = 12) -> Path:
    """Write pictures, a sub-folder a class."""
    random = np.random.default_rng(1)
    for number in range(count):
        path = folder / f"class-{number % 2}" / f"{number:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (20, 16 + number % 3, 3), np.uint8)).save(path)
    return folder


def check(found: Forecast) -> None:
    """Assert what holds of any forecast."""
    assert found.epochs == found.choices[0].epochs
    assert found.choices[0].action == "leave"
    assert found.work.samples_per_second > 0
    assert found.work.batch_bytes > 0
    assert found.pattern.read_bytes >= found.pattern.record_bytes > 0
    assert found.epochs.first_seconds > found.epochs.later_seconds > 0


def test_a_set_is_planned_for(tiny_set: TinySet) -> None:
    """Counts are the set's, and the epoch is that of the plan."""
    found = forecast(Dataset(tiny_set.path), Setup(4, 1), Demand(4, step_seconds=0.5), Wanted(seconds=QUICK))

    check(found)
    assert (found.subject.records, found.subject.kind, found.subject.is_network) == (24, "aioload", False)
    assert found.work.num_workers == 1
    assert found.epochs.later_seconds == found.epochs.later[3].seconds == 3.0  # six steps of the model
    assert found.verdict.action in ("nothing", "leave")


def test_a_storage_is_measured(tiny_set: TinySet) -> None:
    """Reads of the set say what its disk gives, and whether it was asked rather than the page cache."""
    found = forecast(Dataset(tiny_set.path), Setup(4, 0), Demand(4), Wanted(is_measured=True, seconds=QUICK))

    check(found)
    assert found.medium.name == "measured"
    assert found.medium.total_bytes > 0
    assert found.is_cold in (True, False)


def test_a_storage_of_the_users_is_measured(tiny_set: TinySet) -> None:
    """It has no page cache to be emptied, counts as a network, and may be cached."""
    files = {path.name: path.read_bytes() for path in Path(tiny_set.path).iterdir()}

    found = forecast(
        Dataset(MemoryStorage(files)), Setup(4, 0), Demand(4), Wanted(is_measured=True, seconds=QUICK)
    )

    check(found)
    assert found.is_cold is None
    assert found.medium.is_network
    assert "cache" in [choice.action for choice in found.choices]


def test_ranks_share_an_epoch(tiny_set: TinySet) -> None:
    """With two GPUs there are workers for both, and all records are counted once."""
    found = forecast(
        Dataset(tiny_set.path), Setup(4, 1), Demand(4, 2, 0.5), Wanted(PRESETS["hdd"], seconds=QUICK)
    )

    check(found)
    assert found.work.num_workers == 2
    assert found.pattern.records == 24
    assert found.epochs.later[3].seconds == 1.5


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_shards_of_others_are_planned_for(tmp_path: Path, kind: str) -> None:
    """Archives and TFRecord files go the same way."""
    make = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    (tmp_path / f"x.{kind}").write_bytes(make(range(20)))

    found = forecast(
        Dataset(tmp_path / f"x.{kind}"), Setup(4, 0), Demand(4), Wanted(PRESETS["hdd"], seconds=QUICK)
    )

    check(found)
    assert found.subject.kind == kind


def test_pictures_that_are_not_packed_are_planned_for(tmp_path: Path) -> None:
    """Each is opened and read by itself; packed there would be fewer reads, and that is weighed."""
    subject = open_subject(str(pictures(tmp_path / "photos")))
    image = decode.Image(size=8, crop="random_resized")

    found = forecast(
        subject, Setup(4, 0, decode={"image": image}), Demand(4), Wanted(PRESETS["hdd"], seconds=QUICK)
    )

    check(found)
    assert (found.subject.kind, found.subject.records) == ("files", 12)
    assert (found.pattern.reads, found.pattern.seeks) == (12, 24)
    packed = found.choices[1]
    assert packed.action == "pack"
    assert packed.once_seconds > 12 * 2 * 9e-3
    assert packed.epochs.first[0].seconds < found.epochs.first[0].seconds
    assert found.work.is_random


def test_many_pictures_on_a_disk_gain_by_packing(tmp_path: Path) -> None:
    """A hundred thousand files cost half an hour of seeks an epoch; packed, a part of that."""
    few = find_files(str(pictures(tmp_path / "photos")))
    assert few is not None
    files = Files(few.root, few.source, few.items * 8_334, np.full(50_000, 100_000))
    hdd = PRESETS["hdd"]

    apart, packed = pattern_of_files(files, hdd), packed_pattern(files, Setup(64, 0))

    assert apart.read_bytes == pytest.approx(packed.read_bytes, rel=0.01) == pytest.approx(1e10, rel=0.01)
    assert apart.seeks > 3 * packed.seeks
    assert packing_seconds(files, 1e-4, hdd) > apart.seeks * hdd.seek_seconds


def test_what_is_no_folder_of_pictures_is_a_set(tmp_path: Path, tiny_set: TinySet) -> None:
    """A packed set, a folder of shards and an address are not taken for pictures."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "x.tar").write_bytes(foreign_sets.make_tar(range(2)))
    pictures(tmp_path / "shards")

    assert find_files(str(tiny_set.path)) is None
    assert find_files(str(tmp_path / "shards")) is None
    assert find_files("http://localhost/photos") is None
    assert find_files(str(tmp_path / "missing")) is None


def test_options_of_shards_are_refused_for_pictures(tmp_path: Path) -> None:
    """Nobody is left in the belief that they did something."""
    with pytest.raises(ConfigError, match="pictures"):
        open_subject(str(pictures(tmp_path / "photos")), fields={"image": "image"})


def test_an_empty_set_is_an_error(tmp_path: Path) -> None:
    """There is nothing to plan."""
    with Writer(tmp_path / "set", fields={"n": "int"}):
        pass

    with pytest.raises(ConfigError, match="nothing to plan"):
        forecast(Dataset(tmp_path / "set"), Setup(4, 0), Demand(4))


def test_a_disk_with_compressed_shards_is_measured_as_a_disk(tmp_path: Path) -> None:
    """What is unpacked here is not behind a network, so reads and seeks are what it is asked for."""
    shards = Path(__file__).parent.parent / "fixtures" / "mds" / "gz"
    dataset = Dataset(shutil.copytree(shards, tmp_path / "mds"))

    found = forecast(dataset, Setup(4, 0), Demand(4), Wanted(is_measured=True, seconds=QUICK))

    check(found)
    assert (found.subject.is_network, found.medium.is_network) == (False, False)
    assert found.pattern.requests == found.pattern.reads
