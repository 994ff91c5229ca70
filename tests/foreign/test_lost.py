"""Lost shards: what is missing or meaningless when a set is opened, and how a run goes on without it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer
from shard.tars import by_tarfile
from typer.testing import CliRunner

from aioload import AioloadError, Concat, Dataset, Loader, NotFoundError, ShardError, Skip
from aioload.cli._app import app

SHARDS = (range(4), range(4, 9), range(9, 12))


def make(folder: Path, kind: str) -> tuple[list[str], Path]:
    """Write a set of three shards; return what names it, and the second shard."""
    if kind == "mds":
        return [str(foreign_sets.make_hashed_mds(folder, SHARDS))], folder / "shard.00001.mds"
    folder.mkdir()
    write = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    for number, shard in enumerate(SHARDS):
        (folder / f"{number}.{kind}").write_bytes(write(shard))
    return [str(folder / f"{number}.{kind}") for number in range(3)], folder / f"1.{kind}"


def remove(path: Path) -> None:
    """Let a file be missing."""
    path.unlink()


def overwrite(path: Path) -> None:
    """Let a file be of its size, and nonsense."""
    path.write_bytes(b"<html>" + bytes(path.stat().st_size - 6))


def lie_apart(path: Path) -> None:
    """Let files of a key lie apart."""
    path.write_bytes(by_tarfile([("a.cls", b"1"), ("b.cls", b"2"), ("a.bin", b"x")]))


def flip(path: Path) -> None:
    """Change a byte of the last row, which only the shard's sum tells."""
    data = bytearray(path.read_bytes())
    data[-12] ^= 1
    path.write_bytes(data)


LOSSES: list[tuple[str, Callable[[Path], None], type[AioloadError], int]] = [
    ("tar", remove, NotFoundError, 1),
    ("tar", overwrite, ShardError, 1),
    ("tar", lie_apart, ShardError, 1),
    ("tfrecord", remove, NotFoundError, 1),
    ("tfrecord", overwrite, ShardError, 1),
    ("mds", remove, NotFoundError, 5),
    ("mds", flip, ShardError, 5),
]


def numbers(dataset: Dataset | str, **options: Any) -> list[list[int]]:
    """Return the numbers of the samples of each batch."""
    options = {"batch_size": 4, "collate": list, "transform": dict, "num_workers": 0, **options}
    with Loader(dataset, **options).sync() as batches:
        return [[foreign_sets.number_of(sample) for sample in batch] for batch in batches]


@pytest.mark.parametrize(("kind", "lose", "error", "records"), LOSSES)
def test_a_lost_shard_ends_opening_or_is_skipped(
    tmp_path: Path, kind: str, lose: Callable[[Path], None], error: type[AioloadError], records: int
) -> None:
    """Without a policy it is an error with its name; with one all others come, and it counts once."""
    paths, shard = make(tmp_path / "x", kind)
    lose(shard)
    source = paths if len(paths) > 1 else paths[0]

    with pytest.raises(error, match=shard.name.replace(".", r"\.")) as caught:
        len(Dataset(source))
    assert caught.value.shard == shard.name

    for workers in (0, 1):
        loader = Loader(
            Dataset(source), batch_size=4, collate=list, transform=dict, num_workers=workers, on_error=Skip(1)
        )
        with loader.sync() as batches:
            found = [foreign_sets.number_of(sample) for batch in batches for sample in batch]
        assert found == [*SHARDS[0], *SHARDS[2]]
        assert [each.shard for each in loader.skipped] == [shard.name] * records
        assert loader.stats().skipped == records


def test_the_policy_decides_about_lost_shards(tmp_path: Path) -> None:
    """A limit of none raises at the shard's place, and a function is asked with the typed error."""
    paths, shard = make(tmp_path / "x", "mds")
    remove(shard)
    asked: list[AioloadError] = []

    with pytest.raises(NotFoundError) as caught:
        numbers(Dataset(paths[0]), on_error=Skip(0))
    assert (caught.value.shard, caught.value.record, caught.value.step) == (shard.name, 4, 1)

    def decide(error: AioloadError) -> Any:
        asked.append(error)
        return {"cls": 7, "bin": foreign_sets.sample_bytes(7)} if error.record == 5 else "skip"

    found = numbers(Dataset(paths[0]), on_error=decide)

    assert found == [[0, 1, 2, 3], [7], [9, 10, 11]]
    assert sorted({error.record for error in asked}) == [4, 5, 6, 7, 8]


def test_a_set_that_was_opened_tolerantly_is_read_in_order_without(tmp_path: Path) -> None:
    """A loader without a policy then meets the error where the records would be, after all before it."""
    paths, shard = make(tmp_path / "x", "mds")
    flip(shard)
    dataset = Dataset(paths[0])
    assert numbers(dataset, on_error="skip") == [[0, 1, 2, 3], [], [9, 10, 11]]

    found: list[list[int]] = []
    with Loader(dataset, batch_size=2, collate=list, transform=dict, num_workers=0).sync() as batches:  # noqa: SIM117 - where the error comes is the point
        with pytest.raises(ShardError, match="checksum"):
            found.extend([int(sample["cls"]) for sample in batch] for batch in batches)
    assert found == [[0, 1], [2, 3]]
    with pytest.raises(ShardError, match="checksum"):
        dataset[6]


def test_what_lies_where_a_shard_was_lost_is_not_read(tmp_path: Path) -> None:
    """A file that comes back while the set is open is not cut by places that nobody knows."""
    paths, shard = make(tmp_path / "x", "mds")
    data = shard.read_bytes()
    remove(shard)
    dataset = Dataset(paths[0])
    dataset.tolerate()
    assert len(dataset) == 12

    shard.write_bytes(data)

    assert numbers(dataset, on_error="skip") == [[0, 1, 2, 3], [], [9, 10, 11]]
    assert numbers(Dataset(paths[0])) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("lose", [remove, flip])
def test_what_is_known_of_lost_shards_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], None]
) -> None:
    """Each tolerant opening finds it in the index and warns; `make_index` and strict ones look again."""
    paths, shard = make(tmp_path / "x", "mds")
    data, status = shard.read_bytes(), shard.stat()
    lose(shard)
    with caplog.at_level(logging.INFO, "aioload.index"):
        assert numbers(Dataset(paths[0]), on_error="skip") == [[0, 1, 2, 3], [], [9, 10, 11]]
        caplog.clear()
        assert numbers(Dataset(paths[0]), on_error="skip") == [[0, 1, 2, 3], [], [9, 10, 11]]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert shard.name in caplog.text

    shard.write_bytes(data)

    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert len(Dataset(paths[0]).make_index().lost) == 0
    assert numbers(Dataset(paths[0]), on_error="skip") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_set_of_nothing_but_lost_shards_is_an_error(tmp_path: Path) -> None:
    """There is nothing then to go on with, whatever the policy says."""
    paths, _ = make(tmp_path / "x", "tar")
    for path in map(Path, paths):
        lie_apart(path)

    with pytest.raises(ShardError, match=r"0\.tar"):
        numbers(Dataset(paths), on_error="skip")


def test_lost_shards_of_parts_are_skipped_too(tmp_path: Path) -> None:
    """Of sets that are put together, which opens them, and shuffled."""
    first, shard = make(tmp_path / "x", "tar")
    second, _ = make(tmp_path / "y", "tar")
    remove(shard)
    with pytest.raises(NotFoundError):
        Concat([Dataset(first), Dataset(second)])

    parts = [Dataset(first), Dataset(second)]
    parts[0].tolerate()
    both = Concat(parts)
    found = numbers(both, on_error="skip", shuffle=True)  # type: ignore[arg-type]

    assert sorted(n for batch in found for n in batch) == sorted([*SHARDS[0], *SHARDS[2], *range(12)])


def test_lost_shards_of_a_server(tmp_path: Path) -> None:
    """What a server does not have is lost; what it only fails to give is an error, and kept by nobody."""
    files = {f"{number}.tar": foreign_sets.make_tar(shard) for number, shard in enumerate(SHARDS)}
    del files["1.tar"]
    with RangeServer(files) as server:
        url = f"{server.url}/{{0..2}}.tar"
        assert numbers(url, on_error="skip") == [[0, 1, 2, 3], [9, 10, 11]]
        files["1.tar"] = foreign_sets.make_tar(SHARDS[1])
        assert numbers(url, on_error="skip") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_index_and_verify_name_lost_shards(tmp_path: Path) -> None:
    """Both go on to the end, name what is lost, and end with 1; what is left is indexed, and checked."""
    paths, shard = make(tmp_path / "x", "mds")
    remove(shard)

    index = CliRunner().invoke(app, ["index", paths[0], "--json"])
    verify = CliRunner().invoke(app, ["verify", paths[0], "--json"])

    assert (index.exit_code, verify.exit_code) == (1, 1)
    assert json.loads(index.stdout)["damage"].keys() == {shard.name}
    assert json.loads(index.stdout)["records"] == 12
    (problem,) = json.loads(verify.stdout)["problems"]
    assert problem["shard"] == shard.name
    assert "there is no file" in problem["message"]
