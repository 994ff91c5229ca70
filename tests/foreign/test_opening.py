"""Opening: foreign sets in the network: what is asked for, what is kept, and what has changed since."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import Any

import foreign_sets
import pytest
from servers.ranges import RangeServer
from servers.seaweed import Seaweed

from aioload import ConfigError, Dataset, Loader, NotFoundError, ShardError


def files_of(kind: str, folder: Path) -> dict[str, bytes]:
    """Return three shards, by name."""
    shards = [range(6), range(6, 13), range(13, 20)]
    if kind == "mds":
        foreign_sets.make_mds(folder, shards)
        return {path.name: path.read_bytes() for path in folder.iterdir()}
    make = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    return {f"x-{number}.{kind}": make(shard) for number, shard in enumerate(shards)}


def address(server: RangeServer, kind: str) -> str:
    """Return the address of such a set."""
    return f"{server.url}/" if kind == "mds" else f"{server.url}/x-{{0..2}}.{kind}"


@pytest.mark.parametrize("kind", ["tar", "tfrecord", "mds"])
def test_an_index_is_made_once_for_an_address(tmp_path: Path, cache: Path, kind: str) -> None:
    """The first use reads the shards; the next asks for no more than their sizes, and finds the index."""
    files = files_of(kind, tmp_path / "files")
    with RangeServer(files) as server:
        assert len(Dataset(address(server, kind))) == 20
        first = len(server.requests)

        dataset = Dataset(address(server, kind))
        assert len(dataset) == 20
        later = [(request.method, request.path, request.status) for request in server.requests[first:]]

        shards = [f"/{name}" for name in files if name != "index.json"]
        asked = [each for each in later if each[1] in shards]
        assert sorted(path for _, path, _ in asked) == sorted(shards)
        assert all(
            method == "HEAD" or request.sent < 2
            for request, (method, path, _) in zip(server.requests[first:], later, strict=True)
            if path in shards
        )
        assert foreign_sets.numbers(dataset, num_workers=2) == list(range(20))
    assert len(list((cache / "aioload" / "indexes").glob("*.index"))) == 1


@pytest.mark.parametrize("kind", ["tar", "tfrecord", "mds"])
def test_loaders_over_an_address(tmp_path: Path, kind: str) -> None:
    """Shuffled by two ranks, every record comes once, with its own payload."""
    with RangeServer(files_of(kind, tmp_path / "files")) as server:
        dataset = Dataset(address(server, kind))
        options: dict[str, Any] = {"shuffle": "block", "seed": 5, "world_size": 2, "batch_size": 5}
        found = [foreign_sets.numbers(dataset, rank=rank, **options) for rank in range(2)]

    assert sorted(found[0] + found[1]) == list(range(20))


def test_a_shard_that_changed_at_its_server_is_noticed(cache: Path, tmp_path: Path) -> None:
    """Neither an old index nor old bytes of the cache are used, though names and sizes are the same."""
    old, new = (foreign_sets.make_tar(numbers) for numbers in ([1, 6], [6, 1]))
    files = {"x.tar": old}
    assert len(old) == len(new)
    with RangeServer(files) as server:
        url = f"{server.url}/x.tar"
        assert foreign_sets.numbers(Dataset(url, cache_dir=tmp_path / "disk")) == [1, 6]
        assert foreign_sets.numbers(Dataset(url, cache_dir=tmp_path / "disk")) == [1, 6]

        files["x.tar"] = new

        assert foreign_sets.numbers(Dataset(url, cache_dir=tmp_path / "disk")) == [6, 1]
        assert foreign_sets.numbers(Dataset(url)) == [6, 1]


def test_a_shard_more_leaves_what_is_cached(tmp_path: Path) -> None:
    """The cache knows each file by its own version: a set that grows keeps what it has there."""
    files = {f"{number}.tar": foreign_sets.make_tar([number]) for number in range(3)}
    with RangeServer(files) as server:
        options: dict[str, Any] = {"cache_dir": tmp_path / "disk"}
        assert foreign_sets.numbers(Dataset(f"{server.url}/{{0..1}}.tar", **options)) == [0, 1]
        grown = Dataset(f"{server.url}/{{0..2}}.tar", **options)
        assert len(grown) == 3
        before = len(server.requests)

        assert foreign_sets.numbers(grown) == [0, 1, 2]

        assert {request.path for request in server.requests[before:]} == {"/2.tar"}


def test_other_fields_leave_what_is_cached(tmp_path: Path) -> None:
    """Asking for other fields reads nothing anew."""
    with RangeServer({"x.tar": foreign_sets.make_tar(range(5))}) as server:
        assert foreign_sets.numbers(Dataset(f"{server.url}/x.tar", cache_dir=tmp_path)) == list(range(5))
        dataset = Dataset(f"{server.url}/x.tar", cache_dir=tmp_path, fields={"cls": "str"})
        assert len(dataset) == 5
        before = len(server.requests)

        with Loader(dataset, batch_size=5, num_workers=0, collate=list).sync() as batches:
            (batch,) = batches

        assert [sample["cls"] for sample in batch] == [f"{number}\n" for number in range(5)]
        assert server.requests[before:] == []


def test_what_is_not_at_a_server_is_told() -> None:
    """A missing shard, and a folder whose files nobody names, are errors that say what to do."""
    with RangeServer({"0.tar": foreign_sets.make_tar([1])}) as server:
        with pytest.raises(NotFoundError, match=r"1\.tar"):
            len(Dataset(f"{server.url}/{{0..1}}.tar"))
        with pytest.raises(ShardError, match="name the shards"):
            len(Dataset(f"{server.url}/"))


def test_a_compressed_file_is_fetched_and_unpacked_once(cache: Path) -> None:
    """Index and loaders read the unpacked file; the server is asked for its bytes once."""
    data = gzip.compress(foreign_sets.make_tfrecord(range(30)))
    with RangeServer({"x.tfrecord.gz": data}) as server:
        dataset = Dataset(f"{server.url}/x.tfrecord.gz")
        assert foreign_sets.numbers(dataset) == list(range(30))
        assert foreign_sets.numbers(Dataset(f"{server.url}/x.tfrecord.gz")) == list(range(30))

        # to tell, and whole
        assert sum(r.sent for r in server.asked("x.tfrecord.gz") if r.method == "GET") <= 2 * len(data) + 8


def test_a_signed_address_makes_no_secret_known(cache: Path) -> None:
    """A query goes with every request, two signatures share an index, and it is in no file and no message."""
    with RangeServer({"x.tar": foreign_sets.make_tar(range(4))}) as server:
        for secret in ("topsecret1", "topsecret2"):
            dataset = Dataset(f"{server.url}/x.tar?sig={secret}")
            assert foreign_sets.numbers(dataset) == list(range(4))
            assert "topsecret" not in repr(dataset) + dataset.source

        assert all(request.query.startswith("sig=topsecret") for request in server.requests)

    kept = list((cache / "aioload").rglob("*"))
    assert len([path for path in kept if path.suffix == ".index"]) == 1
    assert not any(b"topsecret" in path.read_bytes() for path in kept if path.is_file())


def test_a_prefix_of_a_bucket_is_a_set(seaweed: Seaweed, cache: Path) -> None:
    """Its shards are listed in the order of their names; one more, or one that changed, is noticed."""
    for number in (2, 0, 1):
        seaweed.put(f"foreign/x-{number}.tar", foreign_sets.make_tar(range(number * 5, number * 5 + 5)))
    seaweed.put("foreign/readme.txt", b"no shard")
    seaweed.put("foreign/deeper/x.tar", foreign_sets.make_tar([99]))
    options: dict[str, Any] = {"storage_options": seaweed.options}
    url = f"s3://{seaweed.bucket}/foreign"

    one, named = Dataset(url, **options), Dataset(f"{url}/x-{{0..2}}.tar", **options)
    assert foreign_sets.numbers(one, num_workers=1) == list(range(15))
    assert foreign_sets.numbers(named) == list(range(15))
    assert one.index.shards == ("x-0.tar", "x-1.tar", "x-2.tar")
    assert one.table.fingerprint() == named.table.fingerprint()
    assert len(list((cache / "aioload" / "indexes").glob("*.index"))) == 1

    seaweed.put("foreign/x-3.tar", foreign_sets.make_tar([15]))
    more = Dataset(url, **options)
    assert foreign_sets.numbers(more) == list(range(16))
    assert more.table.fingerprint() != one.table.fingerprint()

    seaweed.put("foreign/x-3.tar", foreign_sets.make_tar([16]))
    assert foreign_sets.numbers(Dataset(url, **options)) == [*range(15), 16]


def test_several_threads_open_one_set(tmp_path: Path) -> None:
    """A set that many threads ask at once is opened once, and sets of the same files wait for each other."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(50)))
    shared = Dataset(tmp_path / "x.tar")
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: found.append(len(each)))  # type: ignore[misc]
        for each in (shared, shared, Dataset(tmp_path / "x.tar"), Dataset(tmp_path))
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [50] * 4


@pytest.mark.parametrize("fields", [{"cls": "example:int64"}, {"cls": "what"}, {}, ["cls"], {"": "int"}])
def test_fields_that_cannot_be_are_refused(tmp_path: Path, fields: Any) -> None:
    """Kinds of other formats, unknown kinds and no fields are errors of the call."""
    (tmp_path / "x.tar").write_bytes(foreign_sets.make_tar(range(5)))

    with pytest.raises(ConfigError):
        len(Dataset(tmp_path / "x.tar", fields=fields))


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_a_server_that_tells_no_versions_is_looked_at_again(cache: Path, kind: str) -> None:
    """Of files that change and keep their size some bytes tell; what these do not, `make_index` finds."""
    make = foreign_sets.make_tar if kind == "tar" else foreign_sets.make_tfrecord
    wanted = {"fields": {"bin": "bytes", "cls": "int"}}
    files = {f"x.{kind}": make([1, 2, 5, 7, *range(20, 60)])}
    with RangeServer(files, tags=False) as server:
        address = f"{server.url}/x.{kind}"
        before = foreign_sets.numbers(Dataset(address, **wanted))
        files[f"x.{kind}"] = make([2, 1, 5, 7, *range(20, 60)])
        at_the_start = foreign_sets.numbers(Dataset(address, **wanted))
        files[f"x.{kind}"] = make([2, 1, 5, 7, *range(20, 30), 31, 30, *range(32, 60)])
        renewed = Dataset(address, **wanted)
        renewed.make_index()
        within = foreign_sets.numbers(renewed)
        asked = len(server.requests)
        Dataset(address, **wanted).contents  # noqa: B018 - opened
        few = len(server.requests) - asked

    assert (before[:2], at_the_start[:2], within[14:16]) == ([1, 2], [2, 1], [31, 30])
    assert few <= 6
