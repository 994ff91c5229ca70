"""Files behind http(s) keep the contract; whatever a server says, no wrong byte passes for a right one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from aiohttp.base_protocol import BaseProtocol
from contract import CONTENT, FILES, StorageContract
from servers.ranges import Act, RangeServer

from aioload.errors import ClosedError, NotFoundError, ShardError, StorageError
from aioload.storage import Storage, read
from aioload.storage.address import Address
from aioload.storage.http import HttpStorage, rest
from aioload.storage.options import NetworkOptions
from aioload.storage.pins import Pins

NAME = "data.bin"
START, STOP = 1000, 700_000


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may sit behind one."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    """A server of the contract's files, of this test alone."""
    with RangeServer(dict(FILES)) as server:
        yield server


@pytest.fixture
async def storage(server: RangeServer) -> AsyncIterator[HttpStorage]:
    """A storage over it that loses patience after a second."""
    storage = storage_of(server)
    yield storage
    await storage.aclose()


def storage_of(server: RangeServer, pins: Pins | None = None, **options: Any) -> HttpStorage:
    """A storage over a server."""
    return HttpStorage(Address.parse(server.url), NetworkOptions.parse({"read_timeout": 1} | options), pins)


async def fill(storage: Storage, name: str = NAME, start: int = START, stop: int = STOP) -> bytearray:
    """Read a part, as a loader does."""
    memory = bytearray(stop - start)
    await storage.read_into(name, start, memoryview(memory))
    return memory


async def failure(storage: Storage, name: str = NAME, start: int = START, stop: int = STOP) -> StorageError:
    """The error of reading a part, having seen that all it calls right is right."""
    memory = bytearray(stop - start)
    with pytest.raises(StorageError) as caught:
        await storage.read_into(name, start, memoryview(memory))
    error = caught.value
    assert memory[: error.filled] == CONTENT[start : start + error.filled]
    return error


async def until(happened: Callable[[], bool]) -> None:
    """Let others run until something has happened; the test's own time-out is the limit."""
    while not happened():
        await anyio.lowlevel.checkpoint()


class TestHttpStorage(StorageContract):
    @pytest.fixture
    async def storage(self, server: RangeServer) -> AsyncIterator[Storage]:
        storage = storage_of(server)
        yield storage
        await storage.aclose()


class TestHttpStorageWithoutTags(StorageContract):
    @pytest.fixture
    async def storage(self) -> AsyncIterator[Storage]:
        with RangeServer(dict(FILES), tags=False) as server:
            storage = storage_of(server)
            yield storage
            await storage.aclose()


async def test_one_request_a_call(server: RangeServer, storage: HttpStorage) -> None:
    """Size, a whole file and a part cost one each, and what was seen is not asked for again."""
    await storage.size(NAME)
    await storage.size(NAME)
    await storage.version(NAME)
    await read(storage, "empty.bin")
    await storage.size("empty.bin")
    await fill(storage)

    assert [(request.path, request.range) for request in server.requests] == [
        ("/data.bin", (0, 1)),
        ("/empty.bin", None),
        ("/data.bin", (START, STOP)),
    ]
    assert server.connections == 1


async def test_requests_ask_for_plain_bytes_of_the_version_seen(
    server: RangeServer, storage: HttpStorage
) -> None:
    """Whatever is between may not compress, and a version is pinned by the first answer."""
    await fill(storage)
    await fill(storage)

    first, second = server.requests
    assert first.headers["accept-encoding"] == "identity"
    assert first.headers["user-agent"].startswith("aioload/")
    assert "if-match" not in first.headers
    assert second.headers["if-match"] == await storage.version(NAME)


# N01: the server ignores ranges


async def test_server_that_ignores_ranges_is_a_final_error_at_once(server: RangeServer) -> None:
    """The file's beginning is not taken for the part, and its body is not fetched."""
    server.files["large.bin"] = bytes(32 << 20)
    server.script("large.bin", Act(ignore_range=True))
    storage = storage_of(server, read_timeout=30)  # the server takes a while to hash the file

    error = await failure(storage, "large.bin", 1 << 20, 2 << 20)
    await storage.aclose()
    server.down()

    assert "ignored the range" in str(error)
    assert (error.final, error.status, error.filled) == (True, 200, 0)
    assert [request.sent < 32 << 20 for request in server.requests] == [True]


async def test_reads_that_waited_for_the_first_answer_go_on_side_by_side(server: RangeServer) -> None:
    """Once ranges are known to work, a read that stays without an answer holds up none of the others."""
    server.script(NAME, Act(), Act(stall=-1))
    storage = storage_of(server)
    came = asyncio.Queue[bytearray]()

    async def read_one() -> None:
        came.put_nowait(await fill(storage))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(read_one)
        parts = [await came.get() for _ in range(2)]
        group.cancel_scope.cancel()
    await storage.aclose()

    assert parts == [CONTENT[START:STOP]] * 2


async def test_whole_file_may_come_unasked(server: RangeServer, storage: HttpStorage) -> None:
    """If the whole file was asked for, a 200 brings it."""
    server.script(NAME, Act(ignore_range=True))

    assert await fill(storage, start=0, stop=len(CONTENT)) == CONTENT


@pytest.mark.parametrize("stop", [5, 15])
async def test_beginning_of_a_file_is_not_the_file(
    server: RangeServer, storage: HttpStorage, stop: int
) -> None:
    """A whole file of another length than was asked for is never cut or filled up."""
    server.script("deep/er/small.bin", Act(ignore_range=True))

    with pytest.raises((StorageError, ShardError), match=r"ignored the range|ends at byte 10") as caught:
        await fill(storage, "deep/er/small.bin", 0, stop)

    assert caught.value.final


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (Act(headers={"Content-Range": None}), "does not say which"),
        (Act(headers={"Content-Range": "bytes 0-9/x"}), "does not say which"),
        (Act(headers={"Content-Type": "multipart/byteranges", "Content-Range": None}), "does not say which"),
        (Act(headers={"Content-Range": f"bytes 0-{STOP - START - 1}/{len(CONTENT)}"}), "came in place of"),
        (Act(headers={"Content-Range": f"bytes {START}-{STOP}/{len(CONTENT)}"}), "came in place of"),
        (Act(headers={"Content-Range": f"bytes {START}-{STOP - 2}/{len(CONTENT)}"}), "came in place of"),
        (Act(encoded=True), "come encoded as 'gzip'"),
        (Act(ignore_range=True, encoded=True), "come encoded as 'gzip'"),
        (Act(headers={"Content-Encoding": "br"}), "come encoded as 'br'"),
        (Act(status=204), "204 No Content"),
        (Act(status=304), "304 Not Modified"),
        (Act(status=400), "400 Bad Request"),
        (Act(status=416), "416"),
    ],
)
async def test_answers_that_are_not_what_was_asked_are_final(
    server: RangeServer, storage: HttpStorage, act: Act, message: str
) -> None:
    """Asking again would bring the same."""
    server.script(NAME, act)

    error = await failure(storage)

    assert message in str(error)
    assert f"{server.url}/{NAME}" in str(error)
    assert (error.final, error.filled, error.status is not None) == (True, 0, True)
    assert await fill(storage) == CONTENT[START:STOP]


@pytest.mark.parametrize("act", [Act(chunked=True), Act(chunked=True, piece=7000), Act(piece=5001)])
async def test_bodies_come_in_any_pieces(server: RangeServer, storage: HttpStorage, act: Act) -> None:
    """In chunks without a length as well."""
    server.script(NAME, act)

    assert await fill(storage) == CONTENT[START:STOP]


async def test_part_of_unknown_size_is_taken(server: RangeServer, storage: HttpStorage) -> None:
    """A server need not know how long the file is."""
    server.script(NAME, Act(headers={"Content-Range": f"bytes {START}-{STOP - 1}/*"}))

    assert await fill(storage) == CONTENT[START:STOP]


@pytest.mark.parametrize("size", [STOP - START - 1, STOP - START + 1, 0])
@pytest.mark.parametrize("chunked", [True, False])
async def test_bodies_of_another_length_are_errors(
    server: RangeServer, storage: HttpStorage, size: int, chunked: bool
) -> None:
    """Longer or shorter than the head says: it may be an accident, so it can be tried again."""
    body = CONTENT[START : START + size]
    server.script(NAME, Act(body=body, chunked=chunked, piece=STOP - START))

    error = await failure(storage)

    assert f"{STOP - START} were asked for" in str(error)
    assert not error.final
    assert error.filled == (size if chunked and size < STOP - START else 0)


# N03: the connection is dropped inside the body


@pytest.mark.parametrize("where", [0, 1, 65_536, 400_000, STOP - START - 1])
@pytest.mark.parametrize("end", ["cut", "reset"])
@pytest.mark.parametrize("chunked", [True, False])
async def test_cut_body_tells_how_much_is_right(
    server: RangeServer, storage: HttpStorage, where: int, end: str, chunked: bool
) -> None:
    """Of what was closed all bytes; of what was reset as many as the system gave."""
    server.script(NAME, Act(**{end: where}, chunked=chunked))

    error = await failure(storage)

    assert not error.final
    assert error.filled == where if end == "cut" else error.filled <= where


def test_cut_body_tells_how_much_is_right_under_uvloop(server: RangeServer) -> None:
    """There many pieces and the end may come before anybody can take them."""
    uvloop = pytest.importorskip("uvloop")
    server.script(NAME, Act(cut=600_001))

    async def read_once() -> StorageError:
        storage = storage_of(server)
        error = await failure(storage)
        await storage.aclose()
        return error

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        error = runner.run(read_once())

    assert error.filled == 600_001


async def test_what_nobody_had_taken_when_a_body_broke_is_kept() -> None:
    """Some event loops read many pieces, and the end, before a task runs: of those no byte is lost."""
    content = aiohttp.StreamReader(BaseProtocol(asyncio.get_running_loop()), 1 << 16)
    content.feed_data(b"abcdef")
    await content.read(2)
    content.feed_data(b"ghi")
    content.set_exception(aiohttp.ClientPayloadError())
    roomy, tight = bytearray(10), bytearray(5)

    assert (rest(content, memoryview(roomy)), roomy[:7]) == (7, b"cdefghi")
    assert (rest(content, memoryview(tight)), tight) == (5, b"cdefg")


async def test_dropped_request_is_not_asked_again_in_silence(
    server: RangeServer, storage: HttpStorage
) -> None:
    """Also over a connection that was used before: whoever tries again must know."""
    await fill(storage)
    server.script(NAME, Act(reset=-1))

    error = await failure(storage)

    assert (error.filled, error.final) == (0, False)
    assert len(server.requests) == 2


# N04: the body stalls


@pytest.mark.parametrize("where", [-1, 0, 300_000])
async def test_stall_is_an_error_after_the_read_timeout(server: RangeServer, where: int) -> None:
    """Before the head or inside the body, with all that had come."""
    server.script(NAME, Act(stall=where, piece=STOP - START))
    storage = storage_of(server, read_timeout=0.1)

    error = await failure(storage)
    await storage.aclose()

    assert "nothing came for 0.1 s" in str(error)
    assert (error.filled, error.final) == (max(0, where), False)


# N05: slow down, and what is final


@pytest.mark.parametrize("status", [429, 503])
async def test_slow_down_is_told_with_the_wait(
    server: RangeServer, storage: HttpStorage, status: int
) -> None:
    """Seconds, or a date by the server's clock."""
    dates = {"Date": "Fri, 01 Mar 2024 08:00:00 GMT", "Retry-After": "Fri, 01 Mar 2024 08:00:09 GMT"}
    server.script(NAME, Act(status=status, headers={"Retry-After": "1"}), Act(status=status, headers=dates))

    seconds, date = await failure(storage), await failure(storage)

    assert (seconds.retry_after, date.retry_after) == (1.0, 9.0)
    assert (seconds.status, seconds.throttled, seconds.final) == (status, True, False)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        *((400, True), (401, True), (403, True), (404, True), (407, True), (410, True), (451, True)),
        *((408, False), (500, False), (502, False), (504, False), (599, False)),
    ],
)
async def test_statuses_are_final_or_not(
    server: RangeServer, storage: HttpStorage, status: int, final: bool
) -> None:
    """The client's fault stays one, the server's may pass; each costs one request."""
    server.script(NAME, *[Act(status=status)] * 3)

    error = await failure(storage)
    with pytest.raises(StorageError, match=str(status)):
        await storage.size(NAME)
    with pytest.raises(StorageError, match=str(status)):
        await storage.get(NAME)

    assert (error.status, error.final, error.throttled) == (status, final, False)
    assert isinstance(error, NotFoundError) == (status in (404, 410))
    assert len(server.requests) == 3


async def test_connection_outlives_small_errors(server: RangeServer, storage: HttpStorage) -> None:
    """A storm of "slow down" is not a storm of new connections as well."""
    server.script(NAME, *[Act(status=503, body=b"<Code>SlowDown</Code>")] * 5)

    for _ in range(5):
        await failure(storage)
    await fill(storage)

    assert server.connections == 1


# N07: the file changes


NEW = CONTENT[::-1]


async def test_changed_file_is_an_error_with_both_tags(server: RangeServer, storage: HttpStorage) -> None:
    """A 412 leads to one look at what the file is now."""
    await fill(storage)
    before = await storage.version(NAME)
    server.script(NAME, Act(content=NEW))

    error = await failure(storage)
    fresh = storage_of(server)
    now = await fresh.version(NAME)
    await fresh.aclose()

    assert "source changed" in str(error)
    assert (error.before, error.now, error.final) == (before, now, True)
    assert before != now


async def test_change_is_seen_where_the_server_does_not_compare(
    server: RangeServer, storage: HttpStorage
) -> None:
    """The tag of each answer is compared."""
    await storage.get(NAME)
    server.script(NAME, Act(content=NEW, ignore_if_match=True), Act(ignore_if_match=True))

    error = await failure(storage)
    with pytest.raises(StorageError, match="source changed"):
        await storage.get(NAME)

    assert (error.final, error.filled) == (True, 0)


async def test_change_is_seen_by_the_date_alone(server: RangeServer) -> None:
    """Where a server has no tags, the time of the last change is one."""
    first, second = ({"ETag": None, "Last-Modified": f"{day}, 01 Jan"} for day in ("Mon", "Tue"))
    server.script(NAME, Act(headers=first), Act(headers=first), Act(headers=second))
    storage = storage_of(server)
    await fill(storage)
    await fill(storage)

    error = await failure(storage)
    await storage.aclose()

    assert (error.before, error.now) == ("Mon, 01 Jan", "Tue, 01 Jan")


@pytest.mark.parametrize("start", [START, len(CONTENT) - 5])
async def test_change_is_seen_by_the_size_alone(start: int) -> None:
    """Longer, or too short for what is asked."""
    with RangeServer({NAME: CONTENT}, tags=False) as server:
        storage = storage_of(server)
        await storage.size(NAME)
        server.script(NAME, Act(content=CONTENT[:-10]), Act(content=CONTENT + b"x"))

        shorter = await failure(storage, start=start, stop=len(CONTENT))
        longer = await failure(storage, start=start, stop=len(CONTENT))
        await storage.aclose()

    assert "source changed" in str(shorter)
    assert "source changed" in str(longer)


async def test_storages_that_share_pins_agree_on_the_version(server: RangeServer) -> None:
    """What one has seen, the other compares."""
    pins = Pins()
    one, other = storage_of(server, pins), storage_of(server, pins)
    await fill(one)
    server.script(NAME, Act(content=NEW, ignore_if_match=True))

    error = await failure(other)
    await one.aclose()
    await other.aclose()

    assert "source changed" in str(error)


async def test_weak_tags_are_compared_and_not_asked_for(server: RangeServer, storage: HttpStorage) -> None:
    """No server finds that a weak tag matches."""
    server.script(NAME, *[Act(headers={"ETag": 'W/"one"'})] * 2, Act(headers={"ETag": 'W/"two"'}))
    await fill(storage)
    await fill(storage)

    error = await failure(storage)

    assert "if-match" not in server.requests[1].headers
    assert (error.before, error.now) == ('W/"one"', 'W/"two"')


# N11: not there, or something else


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/xhtml+xml"])
async def test_web_page_is_not_a_file(server: RangeServer, storage: HttpStorage, kind: str) -> None:
    """An error page with status 200 is told for what it is; it may be gone the next time."""
    page = Act(status=200, headers={"Content-Type": kind}, body=b"\n<!DOCTYPE html><p>Log in</p>")
    server.script(NAME, page, page, page)

    error = await failure(storage)
    with pytest.raises(StorageError, match="a web page"):
        await storage.size(NAME)
    with pytest.raises(StorageError, match="a web page"):
        await storage.get(NAME)

    assert "a web page" in str(error)
    assert (error.status, error.final) == (200, False)
    assert f"{server.url}/{NAME}" in str(error)


async def test_file_that_is_called_a_page_by_mistake_is_read(
    server: RangeServer, storage: HttpStorage
) -> None:
    """Servers have odd types for names that they do not know."""
    server.script(NAME, *[Act(headers={"Content-Type": "text/html"})] * 3)

    assert await fill(storage) == CONTENT[START:STOP]
    assert await storage.get(NAME) == CONTENT


async def test_server_that_is_not_there_is_named(storage: HttpStorage, server: RangeServer) -> None:
    """A refused connection is a storage error with the system's number, and passes when it is back."""
    server.down()

    error = await failure(storage)
    server.up()

    assert "cannot connect: " in str(error)
    assert server.url in str(error)
    assert (error.errno, error.final, error.status) == (111, False, None)
    assert await fill(storage) == CONTENT[START:STOP]


async def test_what_is_no_http_is_an_error() -> None:
    """Another service may listen there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        port = listening.getsockname()[1]
        storage = HttpStorage(Address.parse(f"http://127.0.0.1:{port}"))

        async with anyio.create_task_group() as group:
            group.start_soon(_greet, listening)
            error = await failure(storage)
        await storage.aclose()

    assert "no answer in HTTP" in str(error)


async def _greet(listening: socket.socket) -> None:
    """Accept one connection and speak first, as other services do."""
    loop = asyncio.get_running_loop()
    listening.setblocking(False)
    connection, _ = await loop.sock_accept(listening)
    with connection:
        await loop.sock_recv(connection, 65536)
        await loop.sock_sendall(connection, b"220 welcome\r\n")


# get


async def test_get_of_a_cut_or_encoded_file_is_an_error(server: RangeServer, storage: HttpStorage) -> None:
    """A small file is whole or an error too."""
    server.script(NAME, Act(cut=50_000), Act(encoded=True), Act(stall=10_000), Act(status=206, body=b"x"))

    for message in ("cut short", "come encoded", "nothing came", "a part came"):
        with pytest.raises(StorageError, match=message):
            await storage.get(NAME)

    assert await storage.get(NAME) == CONTENT


async def test_get_needs_no_length(server: RangeServer, storage: HttpStorage) -> None:
    """A manifest may be made while it is sent."""
    server.script(NAME, Act(chunked=True))

    assert await storage.get(NAME) == CONTENT
    assert await storage.size(NAME) == len(CONTENT)


async def test_size_where_ranges_are_ignored(server: RangeServer, storage: HttpStorage) -> None:
    """The head of the whole file tells it."""
    server.script(NAME, Act(ignore_range=True))

    assert await storage.size(NAME) == len(CONTENT)


@pytest.mark.parametrize(
    "act", [Act(ignore_range=True, chunked=True), Act(headers={"Content-Range": "bytes 0-0/*"})]
)
async def test_size_that_is_not_told_is_an_error(server: RangeServer, storage: HttpStorage, act: Act) -> None:
    """It is not made up."""
    server.script(NAME, act)

    with pytest.raises(StorageError, match="does not tell how large"):
        await storage.size(NAME)


async def test_size_of_an_empty_file_whose_server_says_little(
    server: RangeServer, storage: HttpStorage
) -> None:
    """No first byte is no byte."""
    server.script("empty.bin", Act(status=416))

    assert await storage.size("empty.bin") == 0


# cancelling and closing


@pytest.mark.parametrize("where", [-1, 300_000])
async def test_cancelled_read_gives_its_connection_up(
    server: RangeServer, storage: HttpStorage, where: int
) -> None:
    """Nothing is written any more, and the next read works."""
    server.script(NAME, Act(stall=where))
    memory = bytearray(STOP - START)

    async with anyio.create_task_group() as group:
        group.start_soon(storage.read_into, NAME, START, memoryview(memory))
        await until(
            lambda: (
                bool(server.requests) and memory[: max(0, where)] == CONTENT[START : START + max(0, where)]
            )
        )
        group.cancel_scope.cancel()
    memory[:] = bytes(len(memory))
    whole = await read(storage, NAME)

    assert whole == CONTENT
    assert not any(memory)


@pytest.mark.parametrize("where", [-1, 300_000])
async def test_closing_ends_reads_with_a_closed_error(
    server: RangeServer, storage: HttpStorage, where: int
) -> None:
    """Nobody waits for a body that will not come."""
    server.script(NAME, Act(stall=where))

    async with anyio.create_task_group() as group:
        group.start_soon(_expect_closed, storage)
        await until(lambda: bool(server.requests))
        await storage.aclose()


async def test_closing_ends_connecting() -> None:
    """A host that is silent holds up no end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address.parse(f"https://127.0.0.1:{listening.getsockname()[1]}")
        storage = HttpStorage(address, NetworkOptions.parse({"connect_timeout": 1000}))

        async with anyio.create_task_group() as group:
            with anyio.fail_after(30):
                group.start_soon(_expect_closed, storage)
                await anyio.wait_all_tasks_blocked()
                await storage.aclose()


async def _expect_closed(storage: Storage) -> None:
    with pytest.raises(ClosedError):
        await fill(storage)


async def test_closed_storage_says_so(server: RangeServer, storage: HttpStorage) -> None:
    """Closing twice is free, use after it an error, also of what was seen before."""
    await storage.size(NAME)
    assert repr(storage) == f"<HttpStorage {server.url}>"

    await storage.aclose()
    await storage.aclose()

    for use in (storage.size, storage.version, storage.get, fill_from(storage)):
        with pytest.raises(ClosedError, match="open it again"):
            await use(NAME)
    assert repr(storage) == f"<HttpStorage {server.url} closed>"


def fill_from(storage: Storage) -> Any:
    """A read as a function of the name."""
    return lambda name: fill(storage, name)


async def test_two_loops_read_from_one_storage(server: RangeServer, storage: HttpStorage) -> None:
    """Each has connections of its own, and closing in one loop closes those of the other."""
    with anyio.from_thread.start_blocking_portal() as portal:
        there = portal.call(fill, storage)
        here = await fill(storage)
        await storage.aclose()

        assert here == there == CONTENT[START:STOP]
        with pytest.raises(ClosedError):
            portal.call(fill, storage)
    assert server.connections == 2
