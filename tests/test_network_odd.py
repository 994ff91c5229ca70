"""Odd addresses, secrets, caches and uses of sets behind an address: the same batches, or a plain word."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import logging
import multiprocessing
import pickle
import shutil
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import anyio
import leaks
import pytest
from batches import Warnings, counted, plain
from servers.ranges import Act, RangeServer
from typer.testing import CliRunner

import aioload
from aioload.cli._app import app

RECORDS = 60
QUICK = {"attempts": 2, "connect_timeout": 1.0, "read_timeout": 0.2, "deadline": 2.0}
SECRETS = [f"{word}-secret" for word in ("user", "word", "query", "header", "server")]
SHOWN_AS = [*SECRETS, base64.b64encode(b"user-secret:word-secret").decode()]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sets in folders of odd names, of odd sizes."""
    root = tmp_path_factory.mktemp("odd")
    counted(root / "set", RECORDS, shard_bytes=2000)
    shutil.copytree(root / "set", root / "a b%20c é" / "set")
    counted(root / "none", 0)
    counted(root / "one", 1)
    counted(root / "many", 400, shard_bytes=400)
    return root


@pytest.fixture
def server(root: Path) -> Iterator[RangeServer]:
    """A server of all of them."""
    with RangeServer(root) as server:
        yield server


def epoch(source: Any, **options: Any) -> list[Any]:
    """Take an epoch, comparable."""
    options = {"batch_size": 8, "num_workers": 0, "shuffle": True, **options}
    with aioload.Loader(source, **options).sync() as batches:
        return [plain(batch) for batch in batches]


@pytest.mark.parametrize(
    "path",
    [
        *("/set", "/set/", "//set//", "/./set", "/set?x=1&y=%20", "/set/?token=a%2Fb+c==", "/set#part"),
        *("/a b%2520c é/set", "/a%20b%2520c%20%C3%A9/set/", "/set?a=b?c=d&e=%zz f"),
    ],
)
def test_odd_paths(root: Path, server: RangeServer, path: str) -> None:
    """Slashes, spaces, escapes and queries: whatever a browser would find."""
    assert epoch(aioload.Dataset(server.url + path)) == epoch(root / "set")


@pytest.mark.parametrize("host", ["LOCALHOST", "me:word@127.0.0.1", "me@127.0.0.1", "[::ffff:127.0.0.1]"])
def test_odd_hosts(root: Path, server: RangeServer, host: str) -> None:
    """Names in any letters, users, and addresses of either family."""
    url = f"HTTP://{host}:{server.url.rpartition(':')[2]}/set"

    assert epoch(aioload.Dataset(url)) == epoch(root / "set")


WRONG = {
    "missing": Act(status=404, body=b"server-secret"),
    "denied": Act(status=403, body=b"server-secret", headers={"WWW-Authenticate": "server-secret"}),
    "busy": Act(status=503, body=b"server-secret", headers={"Retry-After": "server-secret"}),
    "moved": Act(status=302, headers={"Location": "http://x:server-secret@127.0.0.1:1/?sig=server-secret"}),
    "moved to nowhere": Act(status=302, headers={"Location": "http://[server-secret"}),
    "cut": Act(cut=5),
    "reset": Act(reset=-1),
    "stalled": Act(stall=3),
    "compressed": Act(encoded=True),
    "another length": Act(headers={"Content-Length": "3 server-secret"}),
    "another range": Act(headers={"Content-Range": "bytes server-secret"}),
    "a page": Act(status=200, headers={"Content-Type": "text/html"}, body=b"<html>server-secret"),
    "garbage": Act(body=b"server-secret"),
    "a header too long": Act(headers={"X": "server-secret" * 9000}),
}


def pickled(error: Exception) -> bytes:
    """Pickle an error by itself, also where Dask has taught pickle to take all that led to it along."""
    memory = io.BytesIO()
    pickler = pickle.Pickler(memory)
    pickler.dispatch_table = {}
    pickler.dump(error)
    return memory.getvalue()


@pytest.mark.parametrize("file", ["manifest.json", "shard-00001.aio"])
@pytest.mark.parametrize("act", WRONG.values(), ids=WRONG)
def test_secrets_are_told_to_nobody(
    server: RangeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, act: Act
) -> None:
    """Not in messages, tracebacks, facts, pickled errors, logs, representations, states or cached files."""
    caplog.set_level(logging.DEBUG)
    server.script(f"set/{file}", *[act] * 99)
    url = server.url.replace("//", "//user-secret:word-secret@") + "/set?sig=query-secret"
    options = {**QUICK, "headers": {"X-Api-Key": "header-secret"}}
    dataset = aioload.Dataset(url, storage_options=options, cache_dir=tmp_path / "cache")

    told = [repr(dataset), dataset.source]
    try:
        with aioload.Loader(dataset, batch_size=8, num_workers=0).sync() as batches:
            told += [repr(batches), json.dumps(batches.state_dict())]
            list(batches)
            told += [repr(batches.stats())]
    except aioload.AioloadError as error:
        told += [*traceback.format_exception(error), repr(error.facts), repr(pickled(error))]
    told += [str(path) for path in tmp_path.rglob("*")]
    told += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("sums")]

    assert [secret for secret in SHOWN_AS if secret in "\n".join([*told, caplog.text])] == []


@pytest.mark.parametrize("command", [["inspect"], ["verify"], ["pack", "--quiet"]])
@pytest.mark.parametrize("port", [1, 99999])
def test_commands_tell_no_secrets(tmp_path: Path, command: list[str], port: int) -> None:
    """Whatever they are given, and whatever becomes of it."""
    url = f"http://user-secret:word-secret@127.0.0.1:{port}/set?sig=query-secret"
    options = [f"--storage-option={name}={QUICK[name]}" for name in ("attempts", "deadline")]
    rest = [str(tmp_path / "set")] if command[0] == "pack" else []

    done = CliRunner().invoke(app, [*command, *options, url, *rest])

    assert done.exit_code == 1
    assert [secret for secret in SHOWN_AS if secret in done.output + repr(done.exception)] == []


def test_sets_of_odd_sizes(root: Path, server: RangeServer, tmp_path: Path) -> None:
    """None, one, and hundreds of shards, also through a cache."""
    for name, records in {"none": 0, "one": 1, "many": 400}.items():
        dataset = aioload.Dataset(f"{server.url}/{name}", cache_dir=tmp_path / "cache")
        assert epoch(dataset) == epoch(dataset, shuffle=True) == epoch(root / name)
        assert len(dataset) == records


def test_epochs_leave_nothing_open(server: RangeServer, tmp_path: Path) -> None:
    """Descriptors, threads and connections are as many after many epochs as after few."""
    dataset = aioload.Dataset(f"{server.url}/set", cache_dir=tmp_path / "cache")
    held = []
    with aioload.Loader(dataset, batch_size=8, num_workers=0, shuffle="full").sync() as batches:
        for _ in range(20):
            list(batches)
            held.append((len(leaks.observe().descriptors), threading.active_count(), server.connections))

    assert held[-1] == held[4]


def test_one_set_feeds_many_loaders_at_once(root: Path, server: RangeServer, tmp_path: Path) -> None:
    """In turn from one thread, and from threads of their own."""
    dataset = aioload.Dataset(f"{server.url}/set", cache_dir=tmp_path / "cache")
    with (
        aioload.Loader(dataset, batch_size=8, num_workers=0, shuffle=True).sync() as one,
        aioload.Loader(dataset, batch_size=8, num_workers=2, shuffle="full").sync() as other,
    ):
        pairs = [(plain(mine), plain(yours)) for mine, yours in zip(one, other, strict=True)]
    with ThreadPoolExecutor(5) as threads:
        found = list(threads.map(epoch, [dataset] * 5))

    assert [mine for mine, _ in pairs] == epoch(root / "set")
    assert [yours for _, yours in pairs] == epoch(root / "set", shuffle="full")
    assert found == [epoch(root / "set")] * 5


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize("stall", [-1, 5])
def test_closing_does_not_wait_for_a_read_that_hangs(
    root: Path, tmp_path: Path, kind: str, stall: int
) -> None:
    """Neither before an answer nor inside its body, however long it may take by its time-outs."""
    shutil.copytree(root / "set", tmp_path / "bucket" / "set")
    with RangeServer(tmp_path) as server:
        server.script("bucket/set/shard-00001.aio", *[Act(stall=stall)] * 99)
        cloud = {"endpoint": server.url, "anonymous": True, "region": "us-east-1"}
        url, options = (f"{server.url}/bucket/set", {}) if kind == "http" else ("s3://bucket/set", cloud)
        dataset = aioload.Dataset(url, storage_options={**options, "read_timeout": 50.0, "hedge": False})
        with aioload.Loader(dataset, batch_size=8, num_workers=0).sync() as batches:
            closer = threading.Timer(0.2, batches.close)
            closer.start()
            with pytest.raises(aioload.ClosedError):
                list(batches)
            closer.join()


def test_leaving_at_any_moment_leaves_nothing(server: RangeServer, tmp_path: Path) -> None:
    """Cancelled while it opens, reads, fills the cache or closes: the set and its cache can be used again."""
    server.latency = 0.01
    dataset = aioload.Dataset(f"{server.url}/set", cache_dir=tmp_path / "cache")
    random = Random(1)

    async def leave() -> None:
        loader = aioload.Loader(dataset, batch_size=4, num_workers=0, shuffle="full")
        async with loader:
            with anyio.move_on_after(0.06 * random.random()):
                async for _ in loader:
                    pass

    for _ in range(25):
        anyio.run(leave)

    assert len(epoch(dataset)) == -(-RECORDS // 8)


def count_in_child(dataset: aioload.Dataset, answers: Any) -> None:
    """Take an epoch in another process."""
    answers.put(epoch(dataset))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12 on: it has threads
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_set_in_use_goes_to_another_process(
    root: Path, server: RangeServer, tmp_path: Path, way: str
) -> None:
    """Forked or pickled while a loader of this process reads from it and fills its cache."""
    dataset = aioload.Dataset(f"{server.url}/set", cache_dir=tmp_path / "cache")
    context: Any = multiprocessing.get_context(way)
    with aioload.Loader(dataset, batch_size=8, num_workers=0, shuffle=True, prefetch=1).sync() as batches:
        found = [plain(batch) for _, batch in zip(range(3), batches, strict=False)]
        batches.load_state_dict(batches.state_dict())
        answers = context.SimpleQueue()
        child = context.Process(target=count_in_child, args=(dataset, answers))
        child.start()
        theirs = answers.get()
        child.join()
        found += [plain(batch) for batch in batches]

    assert theirs == found == epoch(root / "set")


def leave_a_file(folder: Path) -> None:
    """Move a folder away and put a file in its place, though somebody may make it again in between."""
    for attempt in itertools.count():
        folder.rename(folder.with_name(f"{folder.name}-{attempt}"))
        with contextlib.suppress(FileExistsError):
            folder.touch(exist_ok=False)
            return


def test_a_cache_that_is_moved_away_while_it_is_used(root: Path, server: RangeServer, tmp_path: Path) -> None:
    """It is made again; with a file in its place there is none, and one warning."""
    dataset = aioload.Dataset(f"{server.url}/set", cache_dir=tmp_path / "cache")
    loader = aioload.Loader(dataset, batch_size=4, num_workers=0, shuffle="full", prefetch=1)
    found = []
    with Warnings() as warnings, loader.sync() as batches:
        for step, batch in enumerate(batches):
            found.append(plain(batch))
            if step == 3:
                (tmp_path / "cache").rename(tmp_path / "gone")
            if step == 8:
                leave_a_file(tmp_path / "cache")

    assert found == epoch(root / "set", batch_size=4, shuffle="full")
    assert len(warnings.messages) == 1
    assert "nothing more is cached" in warnings.messages[0]


def test_a_set_that_was_copied_again_and_a_cache_of_the_first_copy(
    root: Path, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same content under new tags: what is missing comes from the new files, and nothing fails."""
    url, cache = f"{server.url}/set", tmp_path / "cache"
    loader = aioload.Loader(
        aioload.Dataset(url, cache_dir=cache), batch_size=4, num_workers=0, shuffle="full", prefetch=1
    )
    with loader.sync() as batches:
        begun = [plain(batch) for _, batch in zip(range(7), batches, strict=False)]
    monkeypatch.setattr(server, "_tag", lambda content: f'"again-{len(content)}"')

    found = epoch(aioload.Dataset(url, cache_dir=cache), batch_size=4, shuffle="full")

    assert found == epoch(root / "set", batch_size=4, shuffle="full")
    assert begun == found[:7]


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize("record_bytes", [1000, 100_000])
def test_a_server_without_ranges_sends_no_shard_twice(tmp_path: Path, kind: str, record_bytes: int) -> None:
    """N01: with many reads in flight, at most twice a shard's bytes."""
    folder = tmp_path / "bucket" / "set"
    with aioload.Writer(folder, fields={"data": "bytes"}, shard_bytes=20 * record_bytes) as writer:
        for number in range(120):
            writer.write({"data": bytes([number]) * record_bytes})
    with RangeServer(tmp_path) as server:
        for path in folder.glob("*.aio"):
            server.script(f"bucket/set/{path.name}", *[Act(ignore_range=True)] * 500)
        cloud = {"endpoint": server.url, "anonymous": True, "region": "us-east-1"}
        url, options = (f"{server.url}/bucket/set", {}) if kind == "http" else ("s3://bucket/set", cloud)
        dataset = aioload.Dataset(url, storage_options=options)
        with pytest.raises(aioload.StorageError, match="range"):
            epoch(dataset, batch_size=4, prefetch=8, shuffle="full")

        for path in folder.iterdir():
            sent = sum(request.sent for request in server.asked(f"bucket/set/{path.name}"))
            assert sent <= 2 * path.stat().st_size
