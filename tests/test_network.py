"""Sets behind an address: the same batches as from a disk, whatever the network does, or a typed error.

Rows N01, N03, N04, N05, N07, N11 and K01 of the cases, as a loader shows them; each storage's own tests are
in `storage/`.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import FACES, counted, plain, take_sync
from servers.ranges import BAD_DAY, Act, RangeServer
from servers.seaweed import Seaweed
from typer.testing import CliRunner

import aioload
from aioload.cli._app import app

RECORDS = 300
QUICK = {"attempts": 3, "connect_timeout": 1.0, "read_timeout": 1.0, "deadline": 8.0}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of several shards."""
    return counted(tmp_path_factory.mktemp("network") / "set", RECORDS, shard_bytes=8000)


@pytest.fixture
def server(packed: Path) -> Iterator[RangeServer]:
    """A server of its files."""
    with RangeServer(packed) as server:
        yield server


@pytest.fixture
def remote(server: RangeServer) -> aioload.Dataset:
    """The set behind it."""
    return aioload.Dataset(server.url, storage_options=QUICK)


def epoch(dataset: Any, **options: Any) -> list[Any]:
    """Take an epoch, comparable."""
    options = {"batch_size": 16, "num_workers": 0, "shuffle": True, **options}
    return [plain(batch) for batch in take_sync(aioload.Loader(dataset, **options))]


def numbers(dataset: Any, **options: Any) -> list[int]:
    """Return the records' numbers in the order in which they come."""
    loader = aioload.Loader(dataset, batch_size=16, num_workers=0, **options)
    return [int(n) for batch in take_sync(loader) for n in batch["n"]]


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_batches_are_those_of_a_local_set(
    packed: Path, remote: aioload.Dataset, take: Callable[..., Any], workers: int, shuffle: Any
) -> None:
    """In every order, on both faces, with and without workers."""
    options: dict[str, Any] = {"batch_size": 16, "num_workers": workers, "shuffle": shuffle}

    batches = take(aioload.Loader(remote, **options))

    assert [plain(batch) for batch in batches] == epoch(packed, shuffle=shuffle)


def test_a_bad_day_changes_nothing(packed: Path) -> None:
    """Refusals, resets, cuts and slow answers cost time, and no record."""
    faults = replace(BAD_DAY, seed=5, status503=0.1, reset=0.05, cut=0.1, stall=0.0, slow=0.05)
    with RangeServer(packed, faults=faults) as server:
        dataset = aioload.Dataset(server.url)
        with aioload.Loader(dataset, batch_size=16, num_workers=2, shuffle="full").sync() as batches:
            found = [plain(batch) for batch in batches]
            stats = batches.stats()

    assert found == epoch(packed, shuffle="full")
    assert stats.retries > 0
    assert stats.requests >= stats.retries
    assert stats.network_bytes >= stats.read_bytes > 0


def test_opening_costs_two_small_requests(server: RangeServer, remote: aioload.Dataset) -> None:
    """Manifest and index, and nothing else; no list, no sizes."""
    assert len(remote) == RECORDS

    assert [request.path.rpartition("/")[2] for request in server.requests] == ["manifest.json", "index.aioi"]


def test_a_run_goes_on_where_it_stopped(packed: Path, remote: aioload.Dataset) -> None:
    """A state of a local run continues behind an address."""
    with aioload.Loader(packed, batch_size=16, num_workers=0, shuffle=True).sync() as batches:
        begun = [plain(batch) for _, batch in zip(range(7), batches, strict=False)]
        state = batches.state_dict()

    loader = aioload.Loader(remote, batch_size=16, num_workers=0, shuffle=True)
    loader.load_state_dict(json.loads(json.dumps(state)))

    assert begun + [plain(batch) for batch in take_sync(loader)] == epoch(packed)


def test_an_address_travels_to_another_process(packed: Path, remote: aioload.Dataset) -> None:
    """A set is pickled with what it was made of, not with its connections."""
    len(remote)

    assert epoch(pickle.loads(pickle.dumps(remote))) == epoch(packed)


def test_one_record_can_be_looked_at(packed: Path, remote: aioload.Dataset) -> None:
    """As of a local set."""
    assert plain(remote[17]) == plain(aioload.Dataset(packed)[17])


@pytest.mark.parametrize("workers", [0, 2])
def test_n01_a_server_that_ignores_ranges(server: RangeServer, remote: aioload.Dataset, workers: int) -> None:
    """N01: a typed error, and the shards were not sent for each of their reads."""
    shards = [f"shard-{number:05}.aio" for number in range(len(remote.index.shards))]
    for shard in shards:
        server.script(shard, *[Act(ignore_range=True)] * 200)

    with pytest.raises(aioload.StorageError, match="range") as caught:
        epoch(remote, num_workers=workers)

    assert any(f"/{shard}: " in str(caught.value) for shard in shards)
    assert all(len(server.asked(shard)) <= 1 for shard in shards)


def test_n03_bodies_that_are_cut_go_on(server: RangeServer, packed: Path, remote: aioload.Dataset) -> None:
    """N03: the next request asks from the first missing byte."""
    server.script("shard-00000.aio", Act(cut=500))

    assert epoch(remote, shuffle=False) == epoch(packed, shuffle=False)

    starts = [request.range[0] for request in server.asked("shard-00000.aio") if request.range]
    assert starts[0] + 500 in starts


def test_n04_a_body_that_stalls(server: RangeServer, remote: aioload.Dataset) -> None:
    """N04: silence is an error in the end, and not the end of the job."""
    server.script("shard-00002.aio", *[Act(stall=100)] * 200)
    began = time.monotonic()

    with pytest.raises(aioload.StorageError, match=r"shard-00002\.aio") as caught:
        epoch(remote, shuffle=False)

    assert caught.value.attempts
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("status", [403, 404])
def test_n05_what_is_final_is_asked_once(server: RangeServer, remote: aioload.Dataset, status: int) -> None:
    """N05: an answer that will not change is not asked for again."""
    server.script("manifest.json", *[Act(status=status, body=b"no")] * 9)

    with pytest.raises(aioload.AioloadError):
        len(remote)

    assert len(server.asked("manifest.json")) == 1


@pytest.mark.parametrize("obeys", [True, False])
def test_n07_a_source_that_changes(
    packed: Path, server: RangeServer, remote: aioload.Dataset, obeys: bool
) -> None:
    """N07: a shard that is replaced under the reader is an error with both tags, also without If-Match."""
    changed = (packed / "shard-00006.aio").read_bytes()[:-1] + b"!"
    loader = aioload.Loader(remote, batch_size=4, num_workers=0, prefetch=1)
    with loader.sync() as batches:
        whole = list(batches)
        again = iter(batches)
        next(again)
        server.script("shard-00006.aio", *[Act(content=changed, ignore_if_match=not obeys)] * 99)

        with pytest.raises(aioload.StorageError, match="changed") as caught:
            list(again)

    assert len(whole) == RECORDS / 4
    assert caught.value.before != caught.value.now


def test_n11_a_missing_shard_is_named(server: RangeServer, remote: aioload.Dataset) -> None:
    """N11: address and status stand in the error."""
    server.script("shard-00001.aio", *[Act(status=404, body=b"gone")] * 200)

    with pytest.raises(aioload.NotFoundError, match=r"127\.0\.0\.1.*shard-00001\.aio"):
        epoch(remote)


def test_n11_a_missing_shard_can_be_skipped(
    packed: Path, server: RangeServer, remote: aioload.Dataset
) -> None:
    """N11: the rest is the same, and what is missing is counted."""
    server.script("shard-00001.aio", *[Act(status=404, body=b"gone")] * 400)

    found = numbers(remote, on_error=aioload.Skip(limit=200))

    index = aioload.Dataset(packed).index
    shards = [int(shard) for shard in index.locate(np.arange(RECORDS)).shard]
    assert found == [record for record in range(RECORDS) if shards[record] != 1]


def test_n11_a_page_in_place_of_a_shard(server: RangeServer, remote: aioload.Dataset) -> None:
    """N11: a page that says sorry with status 200 is no data."""
    page = Act(status=200, headers={"Content-Type": "text/html", "Content-Range": None}, body=b"<html>sorry")
    server.script("shard-00001.aio", *[page] * 200)

    with pytest.raises(aioload.StorageError, match=r"shard-00001\.aio"):
        epoch(remote)


def test_n11_nobody_answers(packed: Path) -> None:
    """N11: a refused connection is a typed error that names the address."""
    with RangeServer(packed) as server:
        url = server.url

    with pytest.raises(aioload.StorageError, match=r"127\.0\.0\.1"):
        len(aioload.Dataset(url, storage_options=QUICK))


def test_a_server_that_comes_back_is_not_noticed(packed: Path, server: RangeServer) -> None:
    """Training goes on after an outage that is shorter than the deadline."""
    dataset = aioload.Dataset(server.url, storage_options={"deadline": 30.0})
    with aioload.Loader(dataset, batch_size=4, num_workers=0, shuffle="full", prefetch=1).sync() as batches:
        found = [plain(batch) for _, batch in zip(range(10), batches, strict=False)]
        server.down()
        state = batches.state_dict()
        batches.load_state_dict(state)
        later = iter(batches)
        server.up()
        found += [plain(batch) for batch in later]

    assert found == epoch(packed, shuffle="full", batch_size=4)


def test_a_second_epoch_comes_from_the_disk(packed: Path, server: RangeServer, tmp_path: Path) -> None:
    """What was read once is cached: no byte of a shard comes over the network again, also in another run."""
    options: dict[str, Any] = {"storage_options": QUICK, "cache_dir": tmp_path / "cache"}
    first = epoch(aioload.Dataset(server.url, **options))
    server.requests.clear()

    dataset = aioload.Dataset(server.url, **options)
    with aioload.Loader(dataset, batch_size=16, num_workers=2, shuffle=True).sync() as batches:
        second = [plain(batch) for batch in batches]
        asked = len(server.requests)
        stats = batches.stats()

    assert first == second == epoch(packed)
    assert asked == 2  # manifest and index, that always come from the source
    assert stats.cache_misses == 0
    assert stats.cache_hits > 0


def test_k01_equal_names_in_one_cache(tmp_path: Path) -> None:
    """K01: two sets whose files are called the same never mix."""
    counted(tmp_path / "a", 60)
    with aioload.Writer(tmp_path / "c", fields={"n": "int", "text": "str"}) as writer:
        for record in range(60):
            writer.write({"n": 1000 + record, "text": "c"})
    with RangeServer(tmp_path) as server:
        found = [
            numbers(aioload.Dataset(f"{server.url}/{name}", cache_dir=tmp_path / "cache"))
            for name in ("a", "c", "a", "c")
        ]

    assert found == [list(range(60)), list(range(1000, 1060))] * 2


def test_a_bucket_is_a_place_like_any(packed: Path, seaweed: Seaweed, request: pytest.FixtureRequest) -> None:
    """A set is packed into a bucket, and streamed from there in both epochs as from a disk."""
    url = f"s3://{seaweed.bucket}/{request.node.name}"
    counted(url, RECORDS, shard_bytes=8000, storage_options=seaweed.options)  # type: ignore[arg-type]
    loader = aioload.Loader(
        aioload.Dataset(url, storage_options=seaweed.options), batch_size=16, num_workers=2, shuffle=True
    )

    with loader.sync() as batches:
        first, second = ([plain(batch) for batch in batches] for _ in range(2))

    local = aioload.Loader(packed, batch_size=16, num_workers=0, shuffle=True)
    with local.sync() as batches:
        assert first == [plain(batch) for batch in batches]
        assert second == [plain(batch) for batch in batches]


def test_commands_look_at_addresses(packed: Path, server: RangeServer) -> None:
    """`inspect` shows what a local set shows, and `verify` finds a changed byte."""
    runner = CliRunner()

    shown = [
        json.loads(runner.invoke(app, ["inspect", str(at), "--json"]).stdout) for at in (packed, server.url)
    ]
    fine = runner.invoke(app, ["verify", server.url, "--json"])
    damaged = (packed / "shard-00001.aio").read_bytes()
    server.script("shard-00001.aio", Act(content=damaged[:200] + bytes([damaged[200] ^ 1]) + damaged[201:]))
    wrong = runner.invoke(app, ["verify", server.url, "--json"])

    assert shown[0] == shown[1]
    assert (fine.exit_code, json.loads(fine.stdout)["ok"]) == (0, True)
    assert (wrong.exit_code, json.loads(wrong.stdout)["problems"][0]["shard"]) == (1, "shard-00001.aio")
