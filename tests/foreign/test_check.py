"""Check: every record of a foreign set is held against all sums that there are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import foreign_sets
import pytest

from aioload import Dataset, ShardError
from aioload.foreign import UNPROTECTED, build, check
from aioload.storage import MemoryStorage


@pytest.fixture(params=["tar", "tfrecord", "mds"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write two shards."""
    shards = [range(10), range(10, 20)]
    if request.param == "mds":
        return foreign_sets.make_mds(tmp_path / "x", shards)
    make = foreign_sets.make_tar if request.param == "tar" else foreign_sets.make_tfrecord
    for number, shard in enumerate(shards):
        (tmp_path / f"{number}.{request.param}").write_bytes(make(shard))
    return tmp_path


def shard_of(path: Path) -> Path:
    """Return the second shard."""
    return sorted(each for each in path.iterdir() if each.suffix in (".tar", ".tfrecord", ".mds"))[1]


def test_all_is_well(path: Path) -> None:
    """A set in which nothing is wrong has no problem; all of its bytes are told of as progress."""
    dataset = Dataset(path)
    steps: list[int] = []

    report = dataset.check(steps.append)

    assert report.ok
    assert (report.records, report.shards) == (20, 2)
    assert sum(steps) == report.data_bytes == int(dataset.index.positions[-1])


def test_a_changed_byte_is_a_problem_with_its_place(path: Path) -> None:
    """With sums, of the format or asked for, the record is named with its shard and its byte."""
    Dataset(path).make_index(checksums=True)
    shard = shard_of(path)
    data = shard.read_bytes()
    place = data.index(b"payload 14")
    dataset = Dataset(path)
    dataset.contents  # noqa: B018 - opened before the damage
    shard.write_bytes(data[:place] + b"P" + data[place + 1 :])

    (problem,) = dataset.check().problems

    assert (problem.shard, problem.record) == (shard.name, 14)
    assert problem.offset is not None
    assert problem.offset <= place
    assert "14" in problem.message


@pytest.mark.parametrize("cut", [1024, 1024 + 1024])
def test_an_archive_that_does_not_say_where_it_ends_is_a_problem(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been cut between two files: opening warns of it, and checking names it."""
    whole = foreign_sets.make_tar(range(3))
    (tmp_path / "a.tar").write_bytes(whole)
    (tmp_path / "b.tar").write_bytes(whole[:-cut])

    report = Dataset(tmp_path, fields={"bin": "bytes"}).check()

    (problem,) = report.problems
    assert (problem.shard, problem.record) == ("b.tar", None)
    assert problem.offset is not None
    assert 0 <= len(whole) - cut - problem.offset < 512
    assert "without an end mark" in problem.message
    assert [each.getMessage() for each in caplog.records if "b.tar" in each.getMessage()]


def test_what_no_sum_protects_is_said(path: Path) -> None:
    """Formats without sums of their own have a sentence with the way to have some."""
    kind = Dataset(path).kind

    assert (kind in UNPROTECTED) == (kind != "tfrecord")
    assert all("--checksums" in sentence for sentence in UNPROTECTED.values())


def test_a_large_record_is_summed_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the pieces that are read, the sums are the same."""
    whole = Dataset(path).make_index(checksums=True).index
    for hidden in path.glob(".aioload-*"):
        hidden.unlink()
    monkeypatch.setattr(build, "PIECE_BYTES", 7)

    parts = Dataset(path).make_index(checksums=True).index

    assert whole.sums is not None
    assert parts.sums is not None
    assert whole.sums.tolist() == parts.sums.tolist()
    assert Dataset(path).check().ok


class Counting(MemoryStorage):
    """Counts the bytes that are read."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.num_bytes = 0

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Read bytes of a file."""
        self.num_bytes += len(out)
        await super().read_into(name, start, out)


@pytest.mark.parametrize("piece", [7, 100, 8 << 20])
@pytest.mark.parametrize("damaged", [False, True])
def test_sums_of_whole_shards_are_compared_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, damaged: bool
) -> None:
    """An MDS folder with sums is read once for these and those of its rows; wrong ones are an error."""
    folder = foreign_sets.make_mds(tmp_path / "x", [range(10), [], range(10, 15)])
    plain = Dataset(folder).make_index(checksums=True).index
    document = json.loads((folder / "index.json").read_text())
    for entry in document["shards"]:
        name = entry["raw_data"]["basename"]
        entry["hashes"] = ["sha1"]
        entry["raw_data"]["hashes"] = {"sha1": hashlib.sha1((folder / name).read_bytes()).hexdigest()}
    files = {path.name: path.read_bytes() for path in folder.glob("shard*")}
    files["index.json"] = json.dumps(document).encode()
    first = files["shard.00000.mds"]
    if damaged:
        files["shard.00000.mds"] = first[:-1] + bytes([first[-1] ^ 1])
    monkeypatch.setattr(build, "PIECE_BYTES", piece)
    storage = Counting(files)
    dataset = Dataset(storage)

    if damaged:
        with pytest.raises(ShardError, match="failed its checksum"):
            len(dataset)
        return

    assert dataset.index.sums is not None
    assert plain.sums is not None
    assert dataset.index.sums.tolist() == plain.sums.tolist()
    shards = sum(len(data) for name, data in files.items() if name != "index.json")
    assert storage.num_bytes <= 2 * shards + len(files["index.json"])  # to look through, and to sum


def test_a_set_that_is_damaged_all_over_does_not_fill_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many problems are kept, and further ones are counted."""
    Dataset(path).make_index(checksums=True)
    dataset = Dataset(path)
    assert len(dataset) == 20
    monkeypatch.setattr(check, "MAX_PROBLEMS", 3)
    monkeypatch.setattr(check, "crc32c", lambda raw: 1)

    report = dataset.check()

    assert len(report.problems) == 3
    assert report.omitted == 17
