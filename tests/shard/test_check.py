"""Damage of any kind is found and named, is never read as other data, and a lost index is made again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import own_sets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import NotFoundError, ShardError, StorageError
from aioload.shard import check
from aioload.shard.check import Problem, verify
from aioload.shard.format import INDEX_NAME, MANIFEST_NAME, SHARD_HEADER, SHARD_TRAILER
from aioload.shard.reader import LocalReader
from aioload.shard.rebuild import rebuild

Damage = Callable[[bytes, int], Iterator[bytes]]

SHARD = "shard-00000.aio"
REGIONS = {"manifest", "index", "file", "header", "records", "footer", "trailer"}


@pytest.fixture(scope="module")
def fifty(tmp_path_factory: pytest.TempPathFactory) -> own_sets.Files:
    """The 50 records of case O01 in one shard."""
    return own_sets.fifty(tmp_path_factory.mktemp("fifty") / "set")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> own_sets.Files:
    """30 records in several shards."""
    records = [(str(i), {"text": "x" * i, "label": i}) for i in range(30)]
    path = tmp_path_factory.mktemp("shards") / "set"
    return own_sets.pack(
        path, {"text": "str", "label": "int"}, records, shard_bytes=700, index_fields=["label"], metadata=[1]
    )


# Damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MANIFEST_NAME, INDEX_NAME, SHARD])
@pytest.mark.parametrize("damage", [own_sets.cuts, own_sets.flips])
def test_damaged_file_is_named_and_never_read_as_other_data(
    fifty: own_sets.Files, name: str, damage: Damage
) -> None:
    """Case O01: 200 cuts and 200 flipped bits of each file; verify names it, reading fails or is right."""
    expected = own_sets.read_set(fifty)

    damaged = list(damage(fifty[name], 200))
    outcomes = {own_sets.outcome(fifty, name, each, expected) for each in damaged}
    reports = [own_sets.report(fifty, name, each) for each in damaged]

    assert outcomes <= {"same", "error"}
    assert all(report.problems for report in reports)
    assert {problem.shard for report in reports for problem in report.problems} == {name}
    assert {problem.region for report in reports for problem in report.problems} <= REGIONS


@given(
    records=own_sets.keyed_samples,
    shard_bytes=st.sampled_from([1, 1200, 1 << 30]),
    data=st.data(),
)
def test_any_damage_of_any_set_is_found(
    records: list[own_sets.Keyed], shard_bytes: int, data: st.DataObject
) -> None:
    """The same for sets of all kinds, any file and any place."""
    files = own_sets.pack_away(own_sets.ALL_KINDS, records, shard_bytes=shard_bytes)
    name = data.draw(st.sampled_from(sorted(files)))
    flipped = own_sets.flip(files[name], data.draw(st.integers(0, 8 * len(files[name]) - 1)))
    cut = files[name][: data.draw(st.integers(0, len(files[name]) - 1))]

    assert own_sets.outcome_in_bytes(files, name, flipped) in ("same", "error")
    assert own_sets.outcome_in_bytes(files, name, cut) in ("same", "error")
    assert own_sets.report(files, name, flipped).problems[0].shard == name
    assert own_sets.report(files, name, cut).problems[0].shard == name


def test_every_bit_of_a_shard_is_checked(tmp_path: Path) -> None:
    """No byte is without a sum: each single bit of a small shard makes a problem there and nowhere else."""
    files = own_sets.pack(
        tmp_path / "set", {"n": "int", "t": "str"}, [("a", {"n": 1, "t": "é"}), (None, {"n": 2, "t": ""})]
    )

    reports = [
        own_sets.report(files, SHARD, own_sets.flip(files[SHARD], bit))
        for bit in range(8 * len(files[SHARD]))
    ]

    assert {problem.shard for report in reports for problem in report.problems} == {SHARD}
    assert all(len(report.problems) == 1 for report in reports)


@pytest.mark.parametrize(
    ("byte", "region", "record"),
    [
        (3, "header", None),
        (24, "records", 0),
        (110, "records", 2),
        (-300, "footer", None),
        (-9, "trailer", None),
    ],
)
def test_problem_names_region_record_and_offset(
    fifty: own_sets.Files, byte: int, region: str, record: int | None
) -> None:
    """Where the damage lies is told."""
    place = byte % len(fifty[SHARD])

    (problem,) = own_sets.report(fifty, SHARD, own_sets.flip(fifty[SHARD], 8 * place)).problems

    assert (problem.shard, problem.region, problem.record) == (SHARD, region, record)
    assert problem.offset is not None
    assert problem.offset <= place


def test_all_damaged_records_are_named(shards: own_sets.Files) -> None:
    """One pass finds them all, by their number in the whole set, and goes on to the end."""
    second = own_sets.flip(own_sets.flip(shards["shard-00001.aio"], 8 * 30), 8 * 80)
    last = own_sets.flip(shards["shard-00003.aio"], 8 * 30)

    report = verify(own_sets.MemoryReader({**shards, "shard-00001.aio": second, "shard-00003.aio": last}))
    wrong = [(problem.shard, problem.region) for problem in report.problems]
    numbers = [problem.record for problem in report.problems]

    assert wrong == [("shard-00001.aio", "records")] * 2 + [("shard-00003.aio", "records")]
    assert numbers == sorted(numbers)
    assert report.records == 30
    assert f"record {numbers[0]} at byte 24 failed" in report.problems[0].message


def test_records_are_checked_without_an_index(shards: own_sets.Files) -> None:
    """With manifest and index lost, the shards' own footers serve, and damaged records keep their numbers."""
    damaged = own_sets.flip(shards["shard-00003.aio"], 8 * 30)
    whole = own_sets.report(shards, "shard-00003.aio", damaged).problems
    lost = {**shards, "shard-00003.aio": damaged}
    del lost[MANIFEST_NAME], lost[INDEX_NAME]

    report = verify(own_sets.MemoryReader(lost))

    assert report.problems[0] == Problem(MANIFEST_NAME, None, "file", None, "manifest.json: is missing")
    assert report.problems[1:] == whole
    assert report.records == 30


@pytest.mark.parametrize("lost", ["shard-00000.aio", "shard-00002.aio", "index.aioi", "manifest.json"])
def test_missing_file_is_named(shards: own_sets.Files, lost: str) -> None:
    """A file that is not there is a problem like others, and the rest is checked."""
    rest = {name: data for name, data in shards.items() if name != lost}

    report = verify(own_sets.MemoryReader(rest))

    assert [(problem.shard, problem.region) for problem in report.problems] == [(lost, "file")]
    assert report.data_bytes > 0


def test_last_shard_is_missed_without_a_manifest(shards: own_sets.Files) -> None:
    """The set's end is known to its shards, too."""
    last = max(name for name in shards if name.startswith("shard"))
    rest = {name: data for name, data in shards.items() if name not in (last, MANIFEST_NAME)}

    report = verify(own_sets.MemoryReader(rest))

    assert [problem.shard for problem in report.problems] == [MANIFEST_NAME, last]


def test_shards_that_changed_places_are_named(shards: own_sets.Files) -> None:
    """A shard under another's name is whole in itself, and still wrong."""
    swapped = {
        **shards,
        "shard-00001.aio": shards["shard-00002.aio"],
        "shard-00002.aio": shards["shard-00001.aio"],
    }

    report = verify(own_sets.MemoryReader(swapped))

    assert {problem.shard for problem in report.problems} == {"shard-00001.aio", "shard-00002.aio"}
    assert any("holds shard 2: it was renamed" in problem.message for problem in report.problems)


def test_shard_of_another_set_is_named(shards: own_sets.Files) -> None:
    """A whole shard with other records does not pass for the one that is meant."""
    records = [(str(i), {"text": "y" * i, "label": i}) for i in range(30)]
    other = own_sets.pack_away(
        {"text": "str", "label": "int"}, records, shard_bytes=700, index_fields=["label"], metadata=[1]
    )

    report = own_sets.report(shards, "shard-00001.aio", other["shard-00001.aio"])
    first = report.problems[0]

    assert (first.shard, first.region) == ("shard-00001.aio", "footer")
    assert "does not agree with the index about record" in first.message
    assert report.problems[1].region == "records"


def test_whole_set_has_no_problems_and_progress_adds_up(shards: own_sets.Files) -> None:
    """What is right is called right, and a progress bar reaches its end."""
    seen: list[int] = []

    report = verify(own_sets.MemoryReader(shards), progress=seen.append)

    assert report.ok
    assert report.records == 30
    assert sum(seen) == report.data_bytes > 0
    assert report.shards == len(shards) - 2


def test_large_records_are_checked_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded whatever a record's size, and damage in a late piece is found."""
    monkeypatch.setattr(check, "PIECE_BYTES", 1000)
    records = [(None, {"blob": bytes([i]) * size}) for i, size in enumerate([10, 5003, 0, 985, 700, 400])]
    files = own_sets.pack(tmp_path / "set", {"blob": "bytes"}, records)
    reader = own_sets.MemoryReader(files)

    report = verify(reader)
    late = own_sets.report(files, SHARD, own_sets.flip(files[SHARD], 8 * 5000))

    assert report.ok
    assert reader.largest_read <= 1000
    assert [problem.record for problem in late.problems] == [1]


def test_report_is_bounded(fifty: own_sets.Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that is damaged from end to end does not fill the memory with problems."""
    monkeypatch.setattr(check, "MAX_PROBLEMS", 5)
    damaged = fifty[SHARD][:24] + bytes(len(fifty[SHARD]) - 24)

    report = own_sets.report(fifty, SHARD, damaged)

    assert len(report.problems) == 5
    assert report.omitted == 46


def test_storage_that_fails_says_nothing_about_the_data(fifty: own_sets.Files) -> None:
    """A disk that does not answer is raised, not reported as damage."""
    reader = own_sets.MemoryReader(fifty)
    reader.read = _broken  # type: ignore[method-assign] - a storage that fails

    with pytest.raises(StorageError, match="does not answer"):
        verify(reader)


# A lost index -----------------------------------------------------------------------------------------


@given(records=own_sets.keyed_samples, shard_bytes=st.sampled_from([1, 1200, 1 << 30]))
def test_rebuild_makes_the_same_bytes_from_the_shards_alone(
    records: list[own_sets.Keyed], shard_bytes: int
) -> None:
    """Manifest and index are, to the byte, those that were lost."""
    files = own_sets.pack_away(
        own_sets.ALL_KINDS,
        records,
        shard_bytes=shard_bytes,
        index_fields=["share", "count"],
        metadata={"classes": ["ä"]},
    )
    alone = {name: data for name, data in files.items() if name.startswith("shard")}

    manifest, index = rebuild(own_sets.MemoryReader(alone))

    assert manifest.render() == files[MANIFEST_NAME]
    assert index == files[INDEX_NAME]


@pytest.mark.parametrize("lost", ["shard-00000.aio", "shard-00002.aio", "shard-00003.aio"])
def test_rebuild_misses_every_shard(shards: own_sets.Files, lost: str) -> None:
    """A set that lacks a shard is not made whole in silence."""
    rest = {name: data for name, data in shards.items() if name != lost}

    with pytest.raises(ShardError, match="is missing") as caught:
        rebuild(own_sets.MemoryReader(rest))

    assert caught.value.shard == lost


def test_rebuild_refuses_a_shard_of_another_set(shards: own_sets.Files, fifty: own_sets.Files) -> None:
    """Shards of other fields do not go together."""
    with pytest.raises(ShardError, match="another set"):
        rebuild(own_sets.MemoryReader({**shards, "shard-00001.aio": _renumbered(fifty[SHARD])}))


# The local folder -------------------------------------------------------------------------------------


def test_local_folder_is_verified(tmp_path: Path) -> None:
    """The reader for folders gives what is on the disk, also where it ends early."""
    own_sets.fifty(tmp_path / "set")
    reader = LocalReader(tmp_path / "set")
    shutil.copytree(tmp_path / "set", tmp_path / "copy")
    (tmp_path / "copy" / INDEX_NAME).unlink()

    whole, lacking = verify(reader), verify(LocalReader(tmp_path / "copy"))
    size = reader.size(SHARD)

    assert whole.ok
    assert [problem.message for problem in lacking.problems] == ["index.aioi: is missing"]
    assert len(reader.read(SHARD, size - 5, size + 5)) == 5


def test_local_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    """What is missing is a NotFoundError; what cannot be read is a StorageError."""
    with pytest.raises(NotFoundError, match="nowhere"):
        LocalReader(tmp_path / "nowhere").size(MANIFEST_NAME)
    with pytest.raises(StorageError, match="directory"):
        LocalReader(tmp_path.parent).read(tmp_path.name, 0, 10)


def _broken(name: str, start: int, stop: int) -> bytes:
    raise StorageError("the disk does not answer")


def _renumbered(shard: bytes) -> bytes:
    """Return a shard as if it had been written as number 1."""
    header = SHARD_HEADER.unpack(shard[:24], "x")
    trailer = SHARD_TRAILER.unpack(shard[-40:], "x")
    return (
        SHARD_HEADER.pack(**{**header, "shard": 1})
        + shard[24:-40]
        + SHARD_TRAILER.pack(**{**trailer, "shard": 1})
    )
