"""Build: shards joined to one line, records with links through loaders, sums and damage."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shard.tars import by_tarfile

from aioload import AioloadError, ConfigError, Dataset, Loader, ShardError, Skip
from aioload.storage import MemoryStorage

BIG = 40_000


def linked(samples: int = 12) -> bytes:
    """Return an archive in which every third sample has the payload of one before it, and none of its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(samples):
            member = tarfile.TarInfo(f"{number:05}.bin")
            if number % 3 == 2:
                member.type, member.linkname = tarfile.LNKTYPE, f"{number - 2:05}.bin"
                archive.addfile(member)
            else:
                data = bytes([number]) * BIG
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
            label = tarfile.TarInfo(f"{number:05}.cls")
            label.size = 2
            archive.addfile(label, io.BytesIO(b"%02d" % number))
    return out.getvalue()


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """Write two archives with links, and one without any sample between them."""
    for name, data in (("a.tar", linked()), ("b.tar", by_tarfile([])), ("c.tar", linked())):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def seen(dataset: Dataset, **options: Any) -> list[tuple[int, int]]:
    """Return number and payload's letter of each sample, in order."""
    options = {"batch_size": 3, "collate": list, "transform": dict, **options}
    with Loader(dataset, **options).sync() as batches:
        samples = [sample for batch in batches for sample in batch]
    assert all(len(set(sample["bin"])) == 1 and len(sample["bin"]) == BIG for sample in samples)
    return [(sample["cls"], sample["bin"][0]) for sample in samples]


@pytest.mark.parametrize(("workers", "reads"), [(0, "file"), (2, "file"), (2, "mmap")])
@pytest.mark.parametrize("shuffle", [False, "block", "full"])
def test_records_that_begin_far_away(links: Path, workers: int, reads: str, shuffle: Any) -> None:
    """Hard links give the bytes of the file that they mean, in every order and way of reading."""
    expected = sorted([(n, n - 2 if n % 3 == 2 else n) for n in range(12)] * 2)

    found = seen(Dataset(links), num_workers=workers, reads=reads, shuffle=shuffle, seed=3)

    assert sorted(found) == expected
    if not shuffle:
        assert [number for number, _ in found] == [*range(12), *range(12)]


def test_records_that_begin_far_away_are_summed_and_checked(links: Path) -> None:
    """Sums of records with links are of their bytes from the linked file on."""
    contents = Dataset(links).make_index(checksums=True)
    dataset = Dataset(links)

    assert contents.index.far is not None
    assert len(contents.index.far) == 8
    assert dataset.check().problems == ()
    assert [dataset[number]["cls"] for number in range(24)] == [*range(12), *range(12)]


def test_a_record_that_needs_more_memory_than_there_is(tmp_path: Path) -> None:
    """A link over megabytes makes a record of megabytes; a limit below that is an error that says so."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in (("0.bin", b"first"), ("1.bin", bytes(3 << 20))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("2.bin")
        link.type, link.linkname = tarfile.LNKTYPE, "0.bin"
        archive.addfile(link)
    (tmp_path / "x.tar").write_bytes(out.getvalue())
    loader = Loader(Dataset(tmp_path / "x.tar"), batch_size=1, num_workers=0, memory_limit="1MiB")

    with pytest.raises(ConfigError, match="memory_limit"), loader.sync() as batches:
        list(batches)


@pytest.mark.parametrize("counts", [[0, 5, 0, 0, 7, 0], [0, 0, 1], [3, 0]])
def test_shards_without_records_are_passed_over(tmp_path: Path, counts: list[int]) -> None:
    """Empty shards before, between and behind others change no record's number."""
    begun = 0
    for number, count in enumerate(counts):
        (tmp_path / f"{number}.tar").write_bytes(foreign_sets.make_tar(range(begun, begun + count)))
        begun += count
    dataset = Dataset(tmp_path)

    assert foreign_sets.numbers(dataset) == list(range(sum(counts)))
    assert [foreign_sets.number_of(dataset[number]) for number in range(-1, begun - 1)] == [
        begun - 1, *range(begun - 1)
    ]  # fmt: skip
    assert dataset.index.shard_records.tolist() == [0, *itertools.accumulate(counts)]


def test_a_set_without_records_is_empty(tmp_path: Path) -> None:
    """Shards that hold nothing are a set of no records, not an error."""
    for number in range(2):
        (tmp_path / f"{number}.tar").write_bytes(by_tarfile([]))

    assert len(Dataset(tmp_path)) == 0
    assert Dataset(tmp_path).check().problems == ()


@pytest.mark.parametrize("make", [foreign_sets.make_tar, foreign_sets.make_tfrecord])
def test_damage_among_shards_is_left_out_and_gone_on_with(tmp_path: Path, make: Any) -> None:
    """Behind the first shard's cut end the next shard comes, also where a run was stopped in between."""
    whole = make(range(10))
    (tmp_path / "0.tar").write_bytes(whole[: len(whole) // 2 - 3])  # names are only names
    (tmp_path / "1.tar").write_bytes(make(range(10, 20)))
    dataset = Dataset(tmp_path)
    options: dict[str, Any] = {
        "batch_size": 2, "num_workers": 0, "on_error": Skip(limit=1), "collate": list, "transform": dict
    }  # fmt: skip

    every = foreign_sets.numbers(dataset, **options)

    assert every[-10:] == list(range(10, 20))
    assert every[:-10] == list(range(len(every) - 10))
    for stop in range(1, -(-len(dataset) // 2)):
        with Loader(dataset, **options).sync() as batches:
            before = [foreign_sets.number_of(s) for batch in itertools.islice(batches, stop) for s in batch]
            state = batches.state_dict()
        with Loader(dataset, **options).sync() as batches:
            batches.load_state_dict(state)
            assert before + [foreign_sets.number_of(s) for batch in batches for s in batch] == every
    with pytest.raises(ShardError):
        foreign_sets.numbers(dataset)


def test_damage_is_told_once_and_does_not_take_the_rest_of_a_shard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bad header in a large archive is a warning and a problem, and checking does not read what follows."""
    data = bytearray(by_tarfile([(f"{n}.bin", bytes(1000)) for n in range(200)]))
    data[3 * 1536 + 130] ^= 1  # of its size, so that nobody knows where the next one begins
    (tmp_path / "x.tar").write_bytes(data)
    dataset = Dataset(tmp_path / "x.tar")

    with caplog.at_level(logging.WARNING, "aioload.index"):
        report = dataset.check()

    assert len(caplog.records) == 1
    assert "x.tar" in caplog.text
    assert [(problem.record, problem.offset) for problem in report.problems] == [(3, 3 * 1536)]
    numbers = dataset.raw_records()
    assert [number for number, _ in itertools.islice(numbers, 3)] == [0, 1, 2]
    with pytest.raises(ShardError) as caught:
        next(numbers)
    assert (caught.value.record, caught.value.offset) == (3, 3 * 1536)


def test_a_changed_byte_is_found_with_sums_and_told_of_without(tmp_path: Path) -> None:
    """A tar has no sums of payloads: with `checksums` each read finds damage, else it stays unseen."""
    path = tmp_path / "x.tar"
    data = bytearray(foreign_sets.make_tar(range(9)))
    path.write_bytes(data)
    Dataset(path).make_index(checksums=True)
    status = path.stat()
    place = data.index(b"payload 4")
    data[place] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    dataset = Dataset(path)

    (problem,) = dataset.check().problems
    with pytest.raises(ShardError) as caught:
        foreign_sets.numbers(dataset, batch_size=1)

    assert problem.record == caught.value.record == 4
    with pytest.raises(ShardError, match="checksum"):
        dataset[4]
    for hidden in tmp_path.glob(".*"):
        hidden.unlink()
    assert Dataset(path).check().problems == ()


def kept_apart(files: dict[str, bytes]) -> Dataset:
    """Return a set over files in memory, which have no versions."""
    return Dataset(MemoryStorage(files))


@pytest.mark.parametrize("compressed", [False, True])
def test_storages_that_cannot_be_told_apart_do_not_share_an_index(compressed: bool) -> None:
    """Two of a user's storages with files of the same names and sizes each have what is in them."""
    pack = (lambda data: gzip.compress(data, 0, mtime=0)) if compressed else bytes
    one, other = (foreign_sets.make_tfrecord(numbers) for numbers in ([1, 2], [2, 1]))
    assert len(one) == len(other)

    # listing is not theirs, so the shards are named by an index
    document = b'{"wids_version": 1, "shardlist": [{"url": "x.tfrecord"}]}'
    sets = [kept_apart({"x.tfrecord": pack(data), "index.json": document}) for data in (one, other)]

    assert [foreign_sets.numbers(dataset) for dataset in sets] == [[1, 2], [2, 1]]


# properties

MAKES = {"tar": foreign_sets.make_tar, "tfrecord": foreign_sets.make_tfrecord}
FEW = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_set(folder: Path, kind: str, counts: list[int]) -> Path:
    """Write a set of so many records in each of its shards."""
    stops = list(itertools.accumulate(counts, initial=0))
    shards = [range(start, stop) for start, stop in itertools.pairwise(stops)]
    if kind == "mds":
        return foreign_sets.make_mds(folder, shards)
    folder.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards):
        (folder / f"{number:03}.{kind}").write_bytes(MAKES[kind](shard))
    return folder


@FEW
@given(
    kind=st.sampled_from(["tar", "tfrecord", "mds"]),
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 99),
    draw=st.randoms(use_true_random=False),
)
def test_two_ranks_give_each_record_once_and_go_on_anywhere(
    tmp_path_factory: pytest.TempPathFactory, kind: str, counts: list[int], seed: int, draw: random.Random
) -> None:
    """Whatever the format, ranks share the records, and a run that is stopped anywhere goes on the same."""
    dataset = Dataset(write_set(tmp_path_factory.mktemp("set") / "x", kind, counts))
    options: dict[str, Any] = {
        "batch_size": 3, "num_workers": 0, "shuffle": "block", "seed": seed, "collate": list,
        "transform": dict, "world_size": 2,
    }  # fmt: skip
    every: list[int] = []
    for rank in range(2):
        with Loader(dataset, rank=rank, **options).sync() as batches:
            whole = [[foreign_sets.number_of(sample) for sample in batch] for batch in batches]
            every += [number for batch in whole for number in batch][: -1 if batches.padded else None]
        stop = draw.randint(0, len(whole))
        with Loader(dataset, rank=rank, **options).sync() as batches:
            list(itertools.islice(batches, stop))
            state = batches.state_dict()
        with Loader(dataset, rank=rank, **options).sync() as batches:
            batches.load_state_dict(state)
            rest = [[foreign_sets.number_of(sample) for sample in batch] for batch in batches]
        if 0 < stop < len(whole):
            assert rest == whole[stop:]

    assert sorted(every) == list(range(sum(counts)))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["tar", "tfrecord", "mds"]),
    cut=st.booleans(),
    share=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_damage_is_an_error_or_the_right_data(
    tmp_path_factory: pytest.TempPathFactory, kind: str, cut: bool, share: float, bit: int
) -> None:
    """A file that is cut, or has a bit changed, gives typed errors, or samples as long as they were."""
    folder = write_set(tmp_path_factory.mktemp("set") / "x", kind, [7])
    (path,) = (path for path in folder.iterdir() if path.suffix != ".json")
    data = bytearray(path.read_bytes())
    place = int(share * len(data))
    if cut:
        del data[place:]
    else:
        data[place] ^= 1 << bit
    path.write_bytes(data)

    try:
        dataset = Dataset(folder, fields={"bin": "bytes"})
        records, problems = len(dataset), dataset.check().problems
    except AioloadError:
        return
    found = []
    with Loader(
        dataset, batch_size=1, num_workers=0, collate=list, transform=dict, on_error=Skip(limit=20)
    ).sync() as batches:
        found = [sample["bin"] for batch in batches for sample in batch]

    # where only the place at which a last row ends was damaged, the row itself is right
    whole = records - len({problem.record for problem in problems})
    assert whole <= len(found) <= (records if kind == "mds" else whole)
    assert records <= 8
    right = {foreign_sets.sample_bytes(number) for number in range(7)}
    if kind == "tfrecord":
        assert set(found) <= right
    lengths = {len(value) for value in right}
    wrong = [value for value in found if len(value) not in lengths]
    assert not wrong or (kind != "tfrecord" and not cut)
