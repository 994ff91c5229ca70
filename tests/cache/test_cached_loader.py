"""Loaders with a cache: the same batches as without, bit for bit, and less work from the second epoch on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Warnings, plain

import aioload
from aioload import Concat, ConfigError, Loader, SampleError, Skip
from aioload.cache import Disk, Memory
from aioload.cache.guard import Guard, Reading

from .parts import DiesOnce, Unknown, drop_odd, odd, prepare, transform, with_rng

RECORDS, BATCH = 600, 20
ROOM = "64MiB"


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack small arrays into several shards."""
    return pack(tmp_path_factory.mktemp("waves") / "set", 1)


def pack(path: Path, factor: int, records: int = RECORDS) -> Path:
    """Pack a set; those of other factors differ in nothing but the values."""
    fields = {"n": "int", "wave": "ndarray", "name": "str"}
    with aioload.Writer(path, fields=fields, shard_bytes=64 << 10) as writer:
        for record in range(records):
            wave = np.full(200, record * factor % 30_000, np.int16)
            writer.write({"n": record, "wave": wave, "name": f"ü{record}"}, key=f"k{record}")
    return path


def open_loader(path: Any, **options: Any) -> Loader:
    """Open a loader with what is the same in all tests."""
    usual = {"batch_size": BATCH, "prepare": prepare, "transform": transform, "shuffle": True, "seed": 3}
    return Loader(path, **(usual | {"num_workers": 1} | options))


def epochs(loader: Loader, count: int = 2) -> list[Any]:
    """Return the batches of some epochs, comparable with `==`."""
    with loader.sync() as batches:
        return [[plain(batch) for batch in batches] for _ in range(count)]


@pytest.fixture(scope="module")
def expected(waves: Path) -> list[Any]:
    """Return the batches of two epochs without a cache."""
    return epochs(open_loader(waves, num_workers=0))


Make = Callable[[Path], Any]
CACHES: dict[str, Make] = {
    "memory": lambda folder: Memory(ROOM),
    "disk": lambda folder: Disk(folder, ROOM),
    "small memory": lambda folder: Memory("150kB"),
    "small disk": lambda folder: Disk(folder, "300kB"),
    "two tiers": lambda folder: (Memory("150kB"), Disk(folder, ROOM)),
}


@pytest.mark.parametrize(
    ("kind", "workers"),
    [("memory", 0), ("two tiers", 0), ("disk", 2), ("small memory", 2), ("small disk", 2), ("two tiers", 2)],
)
def test_batches_are_those_without_a_cache(
    waves: Path, expected: list[Any], tmp_path: Path, kind: str, workers: int
) -> None:
    """Order, values, random numbers and layout of two epochs are the same."""
    loader = open_loader(waves, cache=CACHES[kind](tmp_path), num_workers=workers)

    assert epochs(loader) == expected


@pytest.mark.parametrize(("workers", "reads"), [(1, "file"), (8, "mmap")])
def test_workers_and_reads_change_nothing(
    waves: Path, expected: list[Any], tmp_path: Path, workers: int, reads: Any
) -> None:
    """However many workers fill a cache and read from it, and however records are read."""
    cache = (Memory("150kB"), Disk(tmp_path, ROOM))

    assert epochs(open_loader(waves, cache=cache, num_workers=workers, reads=reads)) == expected


def test_without_prepare_decoded_samples_are_kept(waves: Path, tmp_path: Path) -> None:
    """With a cache alone the batches are the same, too."""
    options = {"prepare": None, "transform": None, "num_workers": 1}
    bare = epochs(open_loader(waves, **options))

    loader = open_loader(waves, cache=Disk(tmp_path, ROOM), **options)
    again = open_loader(waves, cache=Disk(tmp_path, ROOM), **options)

    assert epochs(loader) == epochs(again) == bare
    assert again.stats().sample_hits >= 2 * RECORDS


@pytest.mark.parametrize("reads", ["file", "mmap"])
def test_what_was_kept_is_neither_read_nor_made(
    waves: Path, expected: list[Any], tmp_path: Path, reads: Any
) -> None:
    """A second run over a filled folder reads no record, and calls `prepare` for none."""
    epochs(open_loader(waves, cache=Disk(tmp_path, ROOM), reads=reads), 1)

    loader = open_loader(waves, cache=Disk(tmp_path, ROOM), reads=reads)
    found = epochs(loader)

    stats = loader.stats()
    assert found == expected
    assert stats.sample_misses == stats.reads == stats.prepare_seconds == stats.decode_seconds == 0
    assert stats.sample_hits >= 2 * RECORDS
    assert stats.saved_seconds > 0


@pytest.mark.parametrize(
    "make", [lambda _: Memory("500kB"), lambda folder: Disk(folder, "500kB")], ids=["memory", "disk"]
)
def test_a_set_four_times_the_cache_is_hit_a_quarter_of_the_time(tmp_path: Path, make: Make) -> None:
    """What is full keeps what it has: from the second epoch on the hit rate is the share that is kept."""
    path = pack(tmp_path / "large", 1, records=2000)
    loader = open_loader(path, cache=make(tmp_path / "cache"), shuffle="full", num_workers=1)

    rates = hit_rates(loader, 3)

    stats = loader.stats()
    kept = stats.sample_stored * stats.sample_hits / stats.sample_cache_bytes  # by their mean size
    assert 0.15 < kept / 2000 < 0.3
    assert all(abs(rate - kept / 2000) <= 0.02 for rate in rates[1:])


def test_each_sample_is_a_hit_or_a_miss(waves: Path) -> None:
    """However often a job is repeated, and however early an epoch begins: all are counted, and once."""
    loader = open_loader(waves, cache=Memory(ROOM), num_workers=1, shuffle=False)

    epochs(loader, 3)

    stats = loader.stats()
    assert 2 * RECORDS <= stats.sample_hits <= 3 * RECORDS  # of the fourth epoch, as much as was made ahead
    assert stats.sample_misses == RECORDS


@pytest.mark.parametrize("make", CACHES.values(), ids=CACHES)
def test_no_epoch_has_less_than_no_misses(waves: Path, tmp_path: Path, make: Make) -> None:
    """What is planned while an epoch before is kept is found after all, and is no miss taken back."""
    with open_loader(waves, cache=make(tmp_path), num_workers=1, shuffle=False).sync() as batches:
        for _ in range(4):
            for _ in batches:
                pass
        found = [batches.stats(epoch) for epoch in range(4)]

    assert all(min(one.sample_hits, one.sample_misses) >= 0 for one in found)
    assert sum(one.sample_misses for one in found) >= RECORDS


def hit_rates(loader: Loader, count: int) -> list[float]:
    """Return which share of samples was found in each epoch."""
    rates = []
    with loader.sync() as batches:
        for _ in range(count):
            before = loader.stats()
            for _ in batches:
                pass
            after = loader.stats()
            hits = after.sample_hits - before.sample_hits
            rates.append(hits / (hits + after.sample_misses - before.sample_misses))
    return rates


def test_changed_code_never_reads_what_other_code_has_made(waves: Path, tmp_path: Path) -> None:
    """Another constant, or another argument of a partial, is another name; the same code finds its own."""

    def scaled(factor: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda sample: {"x": sample["wave"] * factor}

    def last(factor: int) -> tuple[float, bool]:
        options = {"transform": None, "shuffle": False, "prepare": scaled(factor), "num_workers": 0}
        loader = open_loader(waves, cache=Disk(tmp_path, ROOM), **options)
        with loader.sync() as batches:
            [*_, batch] = batches
        return batch["x"][-1][0].item() / (RECORDS - 1), loader.stats().sample_misses > 0

    assert [last(2), last(3), last(2)] == [(2, True), (3, True), (2, False)]


def test_a_version_stands_for_the_code(waves: Path, tmp_path: Path) -> None:
    """With a version, code may change without losing what was kept; another version keeps its own."""

    def makes(factor: int, version: str) -> bool:
        def own(sample: dict[str, Any]) -> dict[str, Any]:
            return {"x": sample["wave"] * factor}

        cache = Disk(tmp_path, ROOM, version=version)
        loader = open_loader(waves, cache=cache, prepare=own, transform=None, num_workers=0)
        epochs(loader, 1)
        return loader.stats().sample_misses > 0

    assert [makes(2, "a"), makes(3, "a"), makes(3, "b")] == [True, False, True]


def test_sets_that_look_alike_do_not_mix(tmp_path: Path) -> None:
    """Equal names, keys, counts and sizes in two sets: each has its own samples (K01)."""
    one, other = pack(tmp_path / "a" / "train", 1), pack(tmp_path / "b" / "train", 2)
    bare = [epochs(open_loader(path, num_workers=0), 1) for path in (one, other)]

    options = {"cache": Disk(tmp_path / "c", ROOM), "num_workers": 0}
    found = [epochs(open_loader(path, **options), 1) for path in (one, other) * 2]

    assert found == bare * 2
    assert bare[0] != bare[1]


def test_several_sets_share_what_each_has(waves: Path, tmp_path: Path) -> None:
    """Sets end to end are kept one by one; a selection of one finds what the whole has kept."""
    other = pack(tmp_path / "other", 7)
    whole = Concat([aioload.Dataset(waves), aioload.Dataset(other)])
    bare = epochs(open_loader(whole, num_workers=0), 1)
    cache = Disk(tmp_path / "c", ROOM)

    found = [epochs(open_loader(whole, cache=cache), 1) for _ in range(2)]
    options = {"prepare": None, "transform": None, "cache": cache}
    epochs(open_loader(aioload.Dataset(other), **options), 1)
    part = open_loader(aioload.Dataset(other).select(range(10, 90)), **options)
    epochs(part, 1)

    assert found == [bare, bare]
    assert part.stats().sample_misses == 0


def test_shards_of_others_are_told_apart_by_where_they_are(tmp_path: Path) -> None:
    """Archives whose members have the same names and sizes, in two folders, do not mix (K01)."""
    import io
    import tarfile

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with tarfile.open(tmp_path / folder / "x.tar", "w") as tar:
            for record in range(40):
                info = tarfile.TarInfo(f"{record:03}.txt")
                text = f"{folder}{record:03}".encode()
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))

    def texts(folder: str) -> list[Any]:
        cache = Disk(tmp_path / "cache", ROOM)
        with Loader(tmp_path / folder, batch_size=40, cache=cache, num_workers=0).sync() as batches:
            return [batch["txt"][7] for batch in batches]

    assert [texts(folder) for folder in ("a", "b", "a", "b")] == [["a007"], ["b007"], ["a007"], ["b007"]]


@pytest.mark.parametrize("make", [CACHES["memory"], CACHES["disk"]], ids=["memory", "disk"])
def test_a_run_goes_on_where_it_was(waves: Path, expected: list[Any], tmp_path: Path, make: Make) -> None:
    """A position that was saved in the second epoch leads to the same batches, with and without a cache."""
    first = open_loader(waves, cache=make(tmp_path))
    with first.sync() as batches:
        for _ in batches:
            pass
        source = iter(batches)
        for _ in range(7):
            next(source)
        state = first.state_dict()

    second = open_loader(waves, cache=make(tmp_path))
    second.load_state_dict(state)

    assert epochs(second, 1)[0] == expected[1][7:]


def damage(folder: Path, how: Callable[[Path], None]) -> None:
    """Do something to each file of samples."""
    for path in folder.rglob("*.data"):
        how(path)


def flip(path: Path) -> None:
    """Change a byte in each sample."""
    data = bytearray(path.read_bytes())
    data[100::500] = bytes(value ^ 1 for value in data[100::500])
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("how", "workers"),
    [(flip, 1), (flip, 0), (lambda path: os.truncate(path, 5000), 0), (Path.unlink, 1)],
    ids=["flipped", "flipped, in process", "cut", "gone"],
)
def test_what_is_damaged_is_made_anew(
    waves: Path, expected: list[Any], tmp_path: Path, how: Callable[[Path], None], workers: int
) -> None:
    """A sample that is not what it was counts as not kept: nobody gets wrong data, and nothing fails."""
    epochs(open_loader(waves, cache=Disk(tmp_path, ROOM), num_workers=0), 1)
    damage(tmp_path, how)

    loader = open_loader(waves, cache=Disk(tmp_path, ROOM), num_workers=workers)
    found = epochs(loader)
    healed = open_loader(waves, cache=Disk(tmp_path, ROOM), num_workers=0)
    again = epochs(healed)

    assert found == again == expected
    assert loader.stats().sample_errors > 0
    assert healed.stats().sample_errors == 0


@pytest.mark.parametrize("make", [CACHES["memory"], CACHES["disk"]], ids=["memory", "disk"])
def test_a_worker_that_dies_while_it_keeps_harms_nothing(
    waves: Path, expected: list[Any], tmp_path: Path, make: Make
) -> None:
    """What it has kept is there for the others, and the rest is made again."""
    dying = DiesOnce(tmp_path / "mark")
    loader = open_loader(waves, cache=make(tmp_path / "cache"), transform=dying)

    found = epochs(loader)

    stats = loader.stats()
    assert found == expected
    assert (stats.restarts, stats.sample_errors) == (1, 0)


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from aioload import Loader
from aioload.cache import Disk
from cache.parts import prepare, transform
path, folder, rank, world_size, workers = sys.argv[1:]
options = dict(batch_size={batch}, prepare=prepare, transform=transform, shuffle=True, seed=3)
options["output"] = "numpy"  # torch takes longer to import than all else
if __name__ == "__main__":
    cache = Disk(folder, {room!r})
    ranks = dict(rank=int(rank), world_size=int(world_size))
    loader = Loader(path, cache=cache, num_workers=int(workers), **ranks, **options)
    with loader.sync() as batches:
        for batch in batches:
            print(len(batch["n"]), flush=True)
"""


def script(waves: Path, folder: Path, rank: int, world_size: int, workers: int) -> subprocess.Popen[str]:
    """Start a program that loads an epoch and prints how many records come."""
    code = SCRIPT.format(tests=str(Path(__file__).parent.parent), batch=BATCH, room=ROOM)
    command = [sys.executable, "-c", code, str(waves), str(folder), *map(str, (rank, world_size, workers))]
    environment = os.environ | {"PYTHONPATH": str(Path(aioload.__file__).parent.parent)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_kill_while_it_fills_harms_nothing(waves: Path, expected: list[Any], tmp_path: Path) -> None:
    """What a killed run has kept is whole: the next uses it, and makes the rest."""
    child = script(waves, tmp_path, 0, 1, workers=1)
    assert child.stdout is not None
    for _ in range(8):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    loader = open_loader(waves, cache=Disk(tmp_path, ROOM))
    found = epochs(loader)

    stats = loader.stats()
    assert found == expected
    assert (stats.sample_hits > 0, stats.sample_errors) == (True, 0)


def test_two_ranks_fill_a_folder_at_once(waves: Path, expected: list[Any], tmp_path: Path) -> None:
    """Ranks that share a folder have all of it, whole, after one epoch."""
    ranks = [script(waves, tmp_path, rank, 2, workers=0) for rank in range(2)]
    printed = [rank.communicate()[0] for rank in ranks]

    loader = open_loader(waves, cache=Disk(tmp_path, ROOM))
    found = epochs(loader)

    assert [rank.returncode for rank in ranks] == [0, 0]
    assert sum(int(line) for text in printed for line in text.split()) == RECORDS
    assert found == expected
    assert loader.stats().sample_misses == 0


RANKS = """
import sys
sys.path.insert(0, {tests!r})
from aioload import Loader
from aioload.cache import Memory
from cache.parts import prepare, transform
options = dict(batch_size={batch}, prepare=prepare, transform=transform, shuffle=True, seed=3, num_workers=1)
options["output"] = "numpy"  # torch takes longer to import than all else
if __name__ == "__main__":
    loader = Loader(sys.argv[1], cache=Memory({room!r}), **options)
    with loader.sync() as batches:
        for epoch in range(3):
            for batch in batches:
                pass
            print(flush=True)  # and wait for the other
            sys.stdin.readline()
    print(loader.stats().sample_hits, loader.stats().sample_misses)
"""


def test_ranks_of_a_machine_share_one_memory(waves: Path) -> None:
    """What one rank has made, the other finds, whichever of them a record falls to in the next epoch."""
    code = RANKS.format(tests=str(Path(__file__).parent.parent), batch=BATCH, room=ROOM)
    usual = os.environ | {"PYTHONPATH": str(Path(aioload.__file__).parent.parent)}
    usual |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(os.getpid())}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(waves)], env=usual | {"RANK": str(rank)}, **pipes)
        for rank in range(2)
    ]

    for _ in range(3):
        for rank in ranks:
            rank.stdout.readline()
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
    told = [list(map(int, rank.communicate()[0].split())) for rank in ranks]

    hits, misses = np.sum(told, axis=0).tolist()
    # of the second epoch, which begins ahead, some may be made; alone, each rank would make half of the third
    assert hits >= RECORDS
    assert misses <= 2 * RECORDS


def test_a_full_disk_turns_keeping_off(
    waves: Path, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on without, after one warning."""
    monkeypatch.setattr("aioload.cache.folder._FREE_BYTES", 1 << 60)
    monkeypatch.setattr("aioload.cache.folder._FREE_SHARE", 1.0)

    with Warnings() as warned:
        found = epochs(open_loader(waves, cache=Disk(tmp_path, ROOM), num_workers=0))

    assert found == expected
    [message] = warned.messages
    assert message.startswith("nothing more is kept on the disk: the disk is nearly full")


def test_a_folder_that_cannot_be_used_turns_keeping_off(
    waves: Path, expected: list[Any], tmp_path: Path
) -> None:
    """Training goes on without, after one warning."""
    (tmp_path / "file").touch()

    with Warnings() as warned:
        found = epochs(open_loader(waves, cache=Disk(tmp_path / "file", ROOM)))

    assert found == expected
    [message] = warned.messages
    assert message.startswith("nothing is kept on the disk: ")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_that_is_removed_meanwhile_harms_nothing(
    waves: Path, expected: list[Any], tmp_path: Path, workers: int
) -> None:
    """Whoever empties a cache while it is used, as people do when a disk is full, ends no training."""
    loader = open_loader(waves, cache=Disk(tmp_path / "kept", ROOM), num_workers=workers)

    with loader.sync() as batches:
        found = [[plain(batch) for batch in batches]]
        shutil.rmtree((tmp_path / "kept").rename(tmp_path / "gone"))  # workers may still write there
        found.append([plain(batch) for batch in batches])

    assert found == expected


def test_memory_that_there_is_not_turns_keeping_off(
    waves: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit never takes what the machine needs for all else."""
    reading = Reading(1 << 30, 64 << 30, None)
    monkeypatch.setattr("aioload._pipeline.house.read_memory", lambda: reading)

    with Warnings() as warned:
        loader = open_loader(waves, cache=Memory(ROOM))
        found = epochs(loader)

    assert found == expected
    assert loader.stats().sample_stored == 0
    assert "would leave this machine too little memory" in warned.messages[0]


def test_scarce_memory_stops_admission_and_harms_nothing(
    waves: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under pressure the loader looks less far ahead and keeps nothing more; batches are the same."""
    monkeypatch.setattr("aioload._pipeline.house.Guard", lambda: Guard(lambda: Reading(1, 1 << 40, 99.0)))

    loader = open_loader(waves, cache=Memory(ROOM))
    found = epochs(loader)

    stats = loader.stats()
    assert found == expected
    assert (stats.sample_stored, stats.prefetch) == (0, 1)
    assert "memory is scarce" in loader.report()


# two-part transforms


@pytest.mark.parametrize("workers", [0, 2])
def test_two_parts_are_one_function_after_the_other(waves: Path, workers: int) -> None:
    """Without a cache, `prepare` and `transform` do what one transform that calls both does."""

    def both(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        sample = prepare(sample)
        sample["mel"][rng.integers(25)] = 0
        return sample

    def second(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        del sample["__key__"]
        sample["mel"][rng.integers(25)] = 0
        return sample

    one = epochs(open_loader(waves, prepare=None, transform=both, num_workers=workers))
    two = epochs(open_loader(waves, transform=second, num_workers=workers))

    assert two == one


def test_an_error_in_prepare_names_its_record(waves: Path, tmp_path: Path) -> None:
    """It is a `SampleError` like a transform's, and says where it happened."""

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 33:
            raise RuntimeError("no good")
        return sample

    options = {"transform": None, "shuffle": False, "num_workers": 1}
    loader = open_loader(waves, prepare=failing, cache=Disk(tmp_path, ROOM), **options)

    with pytest.raises(SampleError, match=r"record 33 \(key 'k33', .*RuntimeError: no good") as caught:
        epochs(loader)

    assert (caught.value.record, caught.value.facts["stage"]) == (33, "prepare")


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_records_are_skipped_with_a_cache_as_without(waves: Path, tmp_path: Path, workers: int) -> None:
    """A record that fails is never kept, and skipped in each epoch."""

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] % 50 == 7:
            raise RuntimeError("no good")
        return {"n": sample["n"]}

    def numbers(cache: Any) -> tuple[list[Any], int]:
        options = {"prepare": failing, "transform": None, "on_error": Skip(100), "num_workers": workers}
        loader = open_loader(waves, cache=cache, **options)
        return epochs(loader), loader.stats().skipped

    assert numbers(Disk(tmp_path, ROOM)) == numbers(None)


def test_prepare_must_return_a_dict(waves: Path) -> None:
    """Another result is an error that says what is wanted."""
    loader = open_loader(waves, prepare=lambda sample: sample["n"], num_workers=0)

    with pytest.raises(SampleError, match="prepare must return a dict"):
        epochs(loader)


def test_randomness_in_prepare_is_told_once(waves: Path) -> None:
    """Whoever draws from a global generator is told so, once, with and without a cache."""

    def noisy(sample: dict[str, Any]) -> dict[str, Any]:
        return {"x": sample["wave"] + np.random.rand()}

    with Warnings() as warned:
        epochs(open_loader(waves, prepare=noisy, transform=None))

    [message] = warned.messages
    assert message.startswith("prepare draws random numbers (from numpy.random)")


def test_what_cannot_be_kept_is_told_once(waves: Path, tmp_path: Path) -> None:
    """Nothing is pickled: samples of other things are made in each epoch, after one warning."""

    options = {"prepare": odd, "transform": drop_odd}
    bare = epochs(open_loader(waves, **options))
    with Warnings() as warned:
        loader = open_loader(waves, cache=(Memory(ROOM), Disk(tmp_path, ROOM)), **options)
        found = epochs(loader)

    assert (found, loader.stats().sample_hits) == (bare, 0)
    [message] = warned.messages
    assert message.startswith("not kept: sample['odd'] is a builtins.frozenset")


def test_a_sample_that_is_too_large_is_told_once(
    waves: Path, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no entry can describe is made in each epoch; no error comes of it."""
    monkeypatch.setattr("aioload.cache.stock._MOST_BYTES", 500)

    with Warnings() as warned:
        loader = open_loader(waves, cache=Disk(tmp_path, ROOM), num_workers=0)
        found = epochs(loader)

    assert (found, loader.stats().sample_stored) == (expected, 0)
    [message] = warned.messages
    assert message.startswith("not kept: a sample of ")


# options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prepare": with_rng}, "gets no rng"),
        ({"prepare": lambda: {}}, "prepare must take a sample"),
        ({"prepare": 3}, "prepare must be a function"),
        ({"cache": "4GiB"}, "cache must be"),
        ({"cache": (Disk("x", 1), Memory(1))}, "cache must be"),
        ({"cache": (Memory(1, version="a"), Disk("x", 1, version="b"))}, "versions"),
        ({"cache": Memory(1), "decode": {"wave": aioload.decode.Image(flip=True)}}, "must not be kept"),
    ],
)
def test_options_that_cannot_be_are_refused(waves: Path, options: dict[str, Any], message: str) -> None:
    """Before anything starts, with a sentence that says what is wrong."""
    with pytest.raises(ConfigError, match=message):
        open_loader(waves, **options)


@pytest.mark.parametrize("bad", [lambda: Memory("much"), lambda: Disk("", 1), lambda: Memory(1, version="")])
def test_tiers_that_cannot_be_are_refused(bad: Callable[[], Any]) -> None:
    """Where they are made."""
    with pytest.raises(ConfigError):
        bad()


def test_code_that_cannot_be_told_needs_a_version(waves: Path, tmp_path: Path) -> None:
    """What holds something unknown might change unseen, so nothing is kept on the disk without a version."""
    code = Unknown()

    with pytest.raises(ConfigError, match=r"cannot tell: .*pass version="):
        epochs(open_loader(waves, prepare=code, transform=None, cache=Disk(tmp_path, ROOM), num_workers=0))
    found = epochs(
        open_loader(
            waves, prepare=code, transform=None, cache=Disk(tmp_path, ROOM, version="1"), num_workers=0
        )
    )

    assert len(found[0]) == RECORDS // BATCH
