"""Wids: the index of WebDataset's own reader names archives, and what it counts is held against them."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer

from aioload import AioloadError, ConfigError, Dataset, ShardError
from aioload.foreign import parse_wids
from aioload.packing import Recipe, find_source, pack


def document(*shards: Any, **more: Any) -> bytes:
    """Return an index."""
    return json.dumps({"wids_version": 1, "shardlist": list(shards), **more}).encode()


def entry(url: Any, samples: Any = None) -> dict[str, Any]:
    """Return what an index says of one archive."""
    return {"url": url} if samples is None else {"url": url, "nsamples": samples, "filesize": 1}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three archives, of which the index names two, the later one first."""
    found = tmp_path / "data"
    (found / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.tar", "deep/b.tar", "c.tar")):
        (found / name).write_bytes(foreign_sets.make_tar(range(number * 4, number * 4 + 4)))
    (found / "index.json").write_bytes(document(entry("deep/b.tar", 4), entry("a.tar", 4), name="x"))
    return found


def test_an_index_names_the_shards(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder with an index has the archives that it names, in its order, and nothing is said."""
    (folder / "other.json").write_bytes((folder / "index.json").read_bytes())
    for source in (folder, folder / "index.json", folder / "other.json", str(folder / "other.json")):
        dataset = pickle.loads(pickle.dumps(Dataset(source)))
        assert dataset.kind == "tar"
        assert foreign_sets.numbers(dataset) == [4, 5, 6, 7, 0, 1, 2, 3]
        assert len(dataset.make_index().index) == 8

    assert not caplog.records


def test_a_count_that_differs_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is found counts; the log names archive, index and both counts."""
    (folder / "index.json").write_bytes(document(entry("a.tar", 5), entry("c.tar")))

    with caplog.at_level(logging.WARNING, "aioload.index"):
        assert foreign_sets.numbers(Dataset(folder)) == [0, 1, 2, 3, 8, 9, 10, 11]

    (record,) = caplog.records
    assert record.getMessage() == f"a.tar has 4 samples, not 5 as {folder / 'index.json'} says"


def test_an_index_at_a_server(folder: Path) -> None:
    """Relative names lie beside it, and addresses of its own server are followed."""
    files = {
        f"data/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    with RangeServer(files) as server:
        files["data/all.json"] = document(
            entry(f"{server.url}/data/c.tar", 4), entry(f"{server.url}/data/a.tar")
        )

        for path in ("data/", "data", "data/index.json"):
            assert foreign_sets.numbers(Dataset(f"{server.url}/{path}")) == [4, 5, 6, 7, 0, 1, 2, 3]
        assert foreign_sets.numbers(Dataset(f"{server.url}/data/all.json")) == [8, 9, 10, 11, 0, 1, 2, 3]


def test_a_local_index_of_addresses_is_followed(folder: Path) -> None:
    """An index on this disk may name archives in the network."""
    with RangeServer(folder) as server:
        (folder / "index.json").write_bytes(
            document(entry(f"{server.url}/deep/b.tar"), entry(f"{server.url}/c.tar"))
        )
        dataset = Dataset(folder)

        assert foreign_sets.numbers(dataset, num_workers=1) == list(range(4, 12))
        assert dataset.traffic()["network_bytes"] > 0
        assert foreign_sets.numbers(pickle.loads(pickle.dumps(dataset))) == list(range(4, 12))


def test_an_index_does_not_lead_to_another_server(folder: Path) -> None:
    """Keys that were given for one server are not sent to those that it names."""
    with RangeServer({}) as other:
        files = {"index.json": document(entry(f"{other.url}/a.tar"))}
        with RangeServer(files) as server, pytest.raises(ConfigError, match="another place"):
            len(Dataset(server.url, storage_options={"headers": {"Authorization": "secret"}}))

        assert other.requests == []


@pytest.mark.parametrize(
    "shards",
    [
        [],
        [entry("../data/a.tar")],
        [entry("/etc/passwd")],
        [entry("")],
        [entry("a\0.tar")],
        [entry("a.tar"), entry("a.tar")],
        [entry("a.tar"), entry("s3://bucket/b.tar")],
        [entry("s3://bucket/b.tar"), entry("gs://bucket/b.tar")],
        [entry("what://x/y.tar")],
        [entry(7)],
        [entry("a.tar", -1)],
        [entry("a.tar", "4")],
        [entry("a.tar", True)],
        ["a.tar"],
        [None],
    ],
)
def test_an_index_that_cannot_be_is_refused(folder: Path, shards: list[Any]) -> None:
    """No shard, files elsewhere, the same file twice and nonsense are typed errors, and nothing is read."""
    (folder / "index.json").write_bytes(document(*shards))

    with pytest.raises(AioloadError):
        len(Dataset(folder))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"7", b'{"shardlist": 7}', b'{"wids_version": 2, "shardlist": []}', b"[" * 99999],
)
def test_json_that_is_no_index_is_told(folder: Path, text: bytes) -> None:
    """A file of JSON that names no shards is an error that names it."""
    (folder / "some.json").write_bytes(text)

    with pytest.raises(ShardError) as caught:
        len(Dataset(folder / "some.json"))

    assert "some.json" in str(caught.value)


def test_an_mds_folder_is_known_by_its_index_too(tmp_path: Path) -> None:
    """The path of its `index.json` is as good as that of its folder, and is none of this kind."""
    folder = foreign_sets.make_mds(tmp_path / "mds", [range(3)])

    assert parse_wids((folder / "index.json").read_bytes(), "x") is None
    assert Dataset(folder / "index.json").kind == "mds"
    assert foreign_sets.numbers(Dataset(folder / "index.json")) == [0, 1, 2]


def test_a_folder_with_an_index_is_packed(folder: Path, tmp_path: Path) -> None:
    """What the index names is packed, in its order."""
    report = pack(find_source([folder]), tmp_path / "own", recipe=Recipe(check="none"))

    assert report.records == 8
    assert foreign_sets.numbers(Dataset(tmp_path / "own")) == [4, 5, 6, 7, 0, 1, 2, 3]
