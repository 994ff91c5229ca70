"""Files in buckets keep the contract, against a whole S3 server."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from contract import FILES, StorageContract
from servers.scripted import Answer, Scripted, scripted
from servers.seaweed import Seaweed

from aioload import errors
from aioload.storage import read
from aioload.storage.address import Address
from aioload.storage.cloud import CloudStorage
from aioload.storage.options import NetworkOptions
from aioload.storage.pins import Pins
from aioload.storage.stores import make_store

ROOT = Path(__file__).parents[2]


def storage_at(server: Seaweed, folder: str, **changed: Any) -> CloudStorage:
    """Open a folder of the server's bucket."""
    address = Address.parse(f"s3://{server.bucket}/{folder}")
    return CloudStorage(address, NetworkOptions.parse(server.options | changed))


def put(server: Seaweed, name: str, data: bytes) -> None:
    """Store a file, past everything under test."""
    address = Address.parse(f"s3://{server.bucket}")
    obstore.put(make_store(address, NetworkOptions.parse(server.options)), name, data)


@pytest.fixture(scope="module")
def filled(seaweed: Seaweed) -> Seaweed:
    """A server that holds the files of the contract."""
    for name, data in FILES.items():
        put(seaweed, f"contract/{name}", data)
    return seaweed


class TestCloudStorage(StorageContract):
    @pytest.fixture
    async def storage(self, filled: Seaweed) -> AsyncIterator[CloudStorage]:
        storage = storage_at(filled, "contract")
        yield storage
        await storage.aclose()


# What a server may do --------------------------------------------------------------------------------

WHOLE = bytes(range(256)) * 16384  # 4 MiB
TAG = ("ETag", '"one"')
MODIFIED = ("Last-Modified", "Mon, 30 Nov 2026 05:00:34 GMT")


def part(start: int, stop: int, *headers: tuple[str, str], **more: Any) -> Answer:
    """Give the right answer to a range."""
    told = ("Content-Range", f"bytes {start}-{stop - 1}/{len(WHOLE)}")
    return Answer(headers=(told, MODIFIED, *(headers or (TAG,))), body=WHOLE[start:stop], **more)


ALL = part(0, len(WHOLE))


@pytest.fixture
def scripted_server() -> Iterator[Scripted]:
    """A server that is yet to be told what to answer."""
    with scripted([]) as server:
        yield server


@pytest.fixture
async def told(scripted_server: Scripted) -> AsyncIterator[CloudStorage]:
    """A storage over a server that answers as it is told."""
    options = {"endpoint": scripted_server.endpoint, "anonymous": True, "read_timeout": 0.3}
    storage = CloudStorage(Address.parse("s3://bucket/set"), NetworkOptions.parse(options))
    yield storage
    await storage.aclose()


async def test_a_read_is_one_request_for_its_range(told: CloudStorage, scripted_server: Scripted) -> None:
    """Nothing is asked before it, and the second time the version that was seen is insisted on."""
    scripted_server.answers = [part(5, 25), part(100, 200)]

    first, second = await read(told, "a b.bin", 5, 25), await read(told, "a b.bin", 100, 200)

    assert (first, second) == (WHOLE[5:25], WHOLE[100:200])
    assert [request.split(" HTTP")[0] for request in scripted_server.requests] == [
        "GET /bucket/set/a%20b.bin"
    ] * 2
    assert "range: bytes=5-24\r\n" in scripted_server.requests[0]
    assert "if-match" not in scripted_server.requests[0]
    assert 'if-match: "one"\r\n' in scripted_server.requests[1]


async def test_a_whole_file_is_one_request(told: CloudStorage, scripted_server: Scripted) -> None:
    """`get` needs no size beforehand, and `size` none afterwards."""
    scripted_server.answers = [Answer("200 OK", (TAG, MODIFIED), b"small")]

    content, size = await told.get("x"), await told.size("x")

    assert (content, size) == (b"small", 5)
    assert len(scripted_server.requests) == 1


@pytest.mark.parametrize("ends", ["close", "reset", "stall"])
async def test_a_body_that_breaks_says_how_much_is_right(
    told: CloudStorage, scripted_server: Scripted, ends: str
) -> None:
    """Whoever tries again goes on behind the bytes that came: whole pieces of them, all in place."""
    scripted_server.answers = [replace(ALL, body=WHOLE[:3_500_000], length=len(WHOLE), ends=ends)]
    out = bytearray(len(WHOLE))

    with pytest.raises(errors.StorageError) as caught:
        await told.read_into("x", 0, memoryview(out))

    filled = caught.value.filled
    assert filled <= 3_500_000
    assert out[:filled] == WHOLE[:filled]
    assert not caught.value.final
    assert len(scripted_server.requests) == 1


async def test_a_cut_body_loses_less_than_a_piece_or_two(
    told: CloudStorage, scripted_server: Scripted
) -> None:
    """`filled` is as exact as obstore lets it be."""
    scripted_server.answers = [replace(ALL, body=WHOLE[:3_500_000], length=len(WHOLE))]

    with pytest.raises(errors.StorageError, match="cut short") as caught:
        await told.read_into("x", 0, memoryview(bytearray(len(WHOLE))))

    assert caught.value.filled >= 3_500_000 - (2 << 20)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer("200 OK", (TAG, MODIFIED), WHOLE), "ignored the range"),
        (part(11, 21), "another range"),
        (Answer(headers=(TAG, MODIFIED), body=WHOLE[:10]), "ignored the range"),
        (part(0, 10, TAG, ("Content-Encoding", "gzip")), "encoded as 'gzip'"),
        (Answer("403 Forbidden", body=b"<Error><Code>AccessDenied</Code></Error>"), "access was refused"),
        (Answer("401 Unauthorized"), "access was refused"),
        (Answer("400 Bad Request"), "answered 400"),
        (Answer("301 Moved Permanently"), "pass its region"),
    ],
)
async def test_what_cannot_get_better_is_final_after_one_request(
    told: CloudStorage, scripted_server: Scripted, answer: Answer, words: str
) -> None:
    """An answer that is wrong in itself is refused at once, and nothing of it is used."""
    scripted_server.answers = [answer]
    out = bytearray(10)

    with pytest.raises(errors.StorageError, match=words) as caught:
        await told.read_into("x", 0, memoryview(out))

    assert caught.value.final
    assert out == bytes(10)
    assert len(scripted_server.requests) == 1


@pytest.mark.parametrize(
    ("status", "throttled"), [("503 Slow Down", True), ("429 Many", True), ("500 X", False)]
)
async def test_what_may_get_better_is_one_request_too(
    told: CloudStorage, scripted_server: Scripted, status: str, throttled: bool
) -> None:
    """Trying again is left to whoever wraps the storage, who learns what it needs to know."""
    scripted_server.answers = [Answer(status)]

    with pytest.raises(errors.StorageError) as caught:
        await told.read_into("x", 0, memoryview(bytearray(10)))

    assert (caught.value.status, caught.value.throttled) == (int(status[:3]), throttled)
    assert not caught.value.final
    assert len(scripted_server.requests) == 1


@pytest.mark.parametrize("asked", [10, 3 << 20])
@pytest.mark.parametrize("off", [-7, 7])
async def test_an_answer_of_another_length_is_noticed(
    told: CloudStorage, scripted_server: Scripted, asked: int, off: int
) -> None:
    """A server that counts wrong cannot leave old bytes in the memory, nor write beside it."""
    scripted_server.answers = [replace(part(0, asked), body=WHOLE[: asked + off])]
    memory = bytearray(asked + 10)

    with pytest.raises(errors.StorageError, match=f"bytes came where {asked} were asked for") as caught:
        await told.read_into("x", 0, memoryview(memory)[:asked])

    assert caught.value.filled == (asked + off if off < 0 else 0)
    assert memory[asked:] == bytes(10)


async def test_a_server_that_forgets_the_tag_it_was_asked_for(
    told: CloudStorage, scripted_server: Scripted
) -> None:
    """Where If-Match is ignored, the tags are compared all the same."""
    scripted_server.answers = [part(0, 10), part(10, 20, ("ETag", '"two"'))]
    await read(told, "x", 0, 10)
    out = bytearray(10)

    with pytest.raises(errors.StorageError, match="source changed") as caught:
        await told.read_into("x", 10, memoryview(out))

    assert (caught.value.before, caught.value.now) == ('"one"', '"two"')
    assert caught.value.final
    assert out == bytes(10)


async def test_nobody_there_may_get_better() -> None:
    """A refused connection names the place and says what to check."""
    options = NetworkOptions.parse({"endpoint": "http://127.0.0.1:9", "anonymous": True})
    storage = CloudStorage(Address.parse("s3://bucket/set"), options)

    with pytest.raises(
        errors.StorageError, match=r"s3://bucket/set/x: cannot connect: connection refused"
    ) as caught:
        await storage.size("x")

    assert not caught.value.final


# What the real server does ---------------------------------------------------------------------------


async def test_a_changed_file_is_never_mixed_in(seaweed: Seaweed) -> None:
    """A file that was replaced by one of the same size is noticed at the next read."""
    put(seaweed, "changing/x", b"old bytes!")
    storage = storage_at(seaweed, "changing")
    await read(storage, "x", 0, 3)

    put(seaweed, "changing/x", b"new bytes!")

    out = bytearray(3)
    with pytest.raises(errors.StorageError, match="source changed") as caught:
        await storage.read_into("x", 3, memoryview(out))
    assert out == bytes(3)
    assert caught.value.before != caught.value.now is not None


async def test_storages_with_the_same_pins_agree(seaweed: Seaweed) -> None:
    """What one has seen, the other insists on."""
    put(seaweed, "pinned/x", b"old bytes!")
    address = Address.parse(f"s3://{seaweed.bucket}/pinned")
    options = NetworkOptions.parse(seaweed.options)
    pins = Pins()
    size = await CloudStorage(address, options, pins).size("x")

    put(seaweed, "pinned/x", b"more new bytes!")

    other = CloudStorage(address, options, pins)
    assert size == await other.size("x") == 10
    with pytest.raises(errors.StorageError, match="source changed"):
        await read(other, "x", 0, 5)


async def test_wrong_key_is_final_and_stays_secret(seaweed: Seaweed) -> None:
    """The error names the file and what the server said, and neither key."""
    storage = storage_at(seaweed, "contract", secret_access_key="not-the-secret")

    with pytest.raises(errors.StorageError, match="SignatureDoesNotMatch") as caught:
        await storage.get("data.bin")

    shown = "".join(traceback.format_exception(caught.value)) + repr(storage)
    assert caught.value.final
    assert "not-the-secret" not in shown
    assert seaweed.options["access_key_id"] not in shown


async def test_missing_bucket_is_named(seaweed: Seaweed) -> None:
    """A wrong bucket is told from a wrong file."""
    storage = CloudStorage(Address.parse("s3://nowhere/set"), NetworkOptions.parse(seaweed.options))

    with pytest.raises(errors.NotFoundError, match="NoSuchBucket"):
        await storage.get("x")


async def test_closing_twice_is_free_and_use_after_it_an_error(seaweed: Seaweed) -> None:
    """A closed storage says so."""
    storage = storage_at(seaweed, "contract")
    await storage.aclose()
    await storage.aclose()

    with pytest.raises(errors.ClosedError, match="has been closed"):
        await storage.size("data.bin")
    assert repr(storage) == f"<CloudStorage s3://{seaweed.bucket}/contract closed>"


FORKED = """
import os, sys, asyncio
from aioload.storage.address import Address
from aioload.storage.cloud import CloudStorage
from aioload.storage.options import NetworkOptions

options = NetworkOptions.parse({"endpoint": "http://127.0.0.1:9", "anonymous": True})
storage = CloudStorage(Address.parse("s3://bucket/set"), options)

def ask():
    try:
        asyncio.run(storage.size("x"))
    except OSError as error:
        return error

first = ask()
child = os.fork()
if child == 0:
    second = ask()
    print(type(first).__name__, "|", second, "|", second.final, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_forked_child_gets_an_error_and_does_not_hang() -> None:
    """obstore hangs in a process forked from one that used it: there it is not called at all."""
    ended = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True, cwd=ROOT
    )

    assert ended.stdout.startswith("StorageError | network storage was used before this process was forked")
    assert ended.stdout.endswith("| True\n")
