"""Requests go where they should: through redirects and proxies, and secrets go nowhere else."""

from __future__ import annotations

import ssl
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from servers.deaf import deaf
from servers.ranges import Act, RangeServer, Request
from yarl import URL

from aioload.errors import ConfigError, StorageError
from aioload.storage import read
from aioload.storage.address import Address
from aioload.storage.http import HttpStorage
from aioload.storage.moves import Hop, Moves
from aioload.storage.options import NetworkOptions
from aioload.storage.proxies import proxy_for

CONTENT = bytes(range(256)) * 40
NAME = "set/data.bin"
FILES = {NAME: CONTENT}
SECRET = "hunter2"
HEADERS = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may sit behind one."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    """The server that an address names."""
    with RangeServer(dict(FILES)) as server:
        yield server


@pytest.fixture
def other() -> Iterator[RangeServer]:
    """One of another origin, by its port."""
    with RangeServer(dict(FILES)) as server:
        yield server


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RangeServer]:
    """One that speaks https, with a certificate that is trusted."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with RangeServer(dict(FILES), tls=_certificate(authority)) as server:
        yield server


def _certificate(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[HttpStorage]:
    """A storage over the folder `set` of a server, or over any address."""
    storage = HttpStorage(Address.parse(url), NetworkOptions.parse({"read_timeout": 2} | options))
    try:
        yield storage
    finally:
        await storage.aclose()


async def fill(storage: HttpStorage, start: int = 5, stop: int = 5000) -> bytearray:
    """Read a part."""
    memory = bytearray(stop - start)
    await storage.read_into("data.bin", start, memoryview(memory))
    return memory


async def failure(storage: HttpStorage) -> StorageError:
    """The error of reading a part; nothing that a log would show of it tells a secret."""
    with pytest.raises(StorageError) as caught:
        await fill(storage)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(caught.value.facts)
    return caught.value


def only(server: RangeServer) -> Request:
    """The one request that a server got."""
    assert len(server.requests) == 1
    return server.requests[0]


def moved(to: str, status: int = 302) -> Act:
    """A redirect."""
    return Act(status=status, headers={"Location": to}, body=b"over there")


# redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_keeps_the_range(server: RangeServer, other: RangeServer, status: int) -> None:
    """All that decides which bytes come goes along."""
    async with opened(f"{server.url}/set") as storage:
        tag = await storage.version("data.bin")
        server.script(NAME, moved(f"{other.url}/{NAME}?signed=1", status))

        assert await fill(storage) == CONTENT[5:5000]

    assert only(other).range == (5, 5000)
    assert only(other).headers["if-match"] == tag
    assert only(other).headers["accept-encoding"] == "identity"
    assert only(other).query == "signed=1"


async def test_redirect_to_another_origin_takes_no_secrets_along(
    server: RangeServer, other: RangeServer
) -> None:
    """Neither the user's headers nor the query; and none on a way back through it either."""
    server.script(NAME, moved(f"{other.url}/{NAME}"), Act())
    other.script(NAME, moved(f"{server.url}/{NAME}"))

    async with opened(f"{server.url}/set?sig={SECRET}", headers=HEADERS) as storage:
        assert await fill(storage) == CONTENT[5:5000]

    first, back = server.requests
    assert (first.headers["authorization"], first.headers["x-api-key"]) == (f"Bearer {SECRET}", SECRET)
    for request in (only(other), back):
        assert SECRET not in request.target + repr(request.headers)
        assert request.range == (5, 5000)


async def test_redirect_to_another_origin_takes_no_password_along(
    server: RangeServer, other: RangeServer
) -> None:
    """Nor does one that the server itself writes into the new address."""
    to = other.url.replace("://", f"://user:{SECRET}@")
    server.script(NAME, moved(f"{to}/{NAME}"))

    async with opened(f"{server.url}/set".replace("://", f"://user:{SECRET}@")) as storage:
        assert await fill(storage) == CONTENT[5:5000]

    assert "authorization" in only(server).headers
    assert "authorization" not in only(other).headers


@pytest.mark.parametrize("to", ["/set/new ü.bin", "new%20%C3%BC.bin", "../set/new ü.bin?x=%2F#part"])
async def test_redirect_within_an_origin_keeps_what_it_was_given(server: RangeServer, to: str) -> None:
    """Addresses may be relative, and not as encoded as they should be."""
    server.files["set/new ü.bin"] = CONTENT
    server.script(NAME, moved(to))

    async with opened(f"{server.url}/set", headers=HEADERS) as storage:
        assert await fill(storage) == CONTENT[5:5000]

    assert server.requests[1].path == "/set/new ü.bin"
    assert server.requests[1].query == ("x=%2F" if "?" in to else "")
    assert server.requests[1].headers["x-api-key"] == SECRET
    assert server.connections == 1


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("ftp://host/set/data.bin", "address of kind 'ftp'"),
        ("file:///etc/passwd", "address of kind 'file'"),
        (f"javascript:{SECRET}", "address of kind 'javascript'"),
        (f"http://[{SECRET}", "no address"),
        (f"http://host:{SECRET}/", "no address"),
    ],
)
async def test_redirect_to_elsewhere_is_not_followed(server: RangeServer, to: str, message: str) -> None:
    """It is a final error that says where it would have led, as far as that is no secret."""
    server.script(NAME, moved(to))

    async with opened(f"{server.url}/set") as storage:
        error = await failure(storage)

    assert message in str(error)
    assert "not followed" in str(error)
    assert (error.final, error.status) == (True, 302)


async def test_endless_redirects_end(server: RangeServer) -> None:
    """After a few, with a final error."""
    server.script(NAME, *[moved(f"/{NAME}")] * 50)

    async with opened(f"{server.url}/set") as storage:
        error = await failure(storage)

    assert "redirected more than 10 times" in str(error)
    assert error.final
    assert len(server.requests) == 11


async def test_way_is_remembered(server: RangeServer, other: RangeServer) -> None:
    """Of many reads only the first asks for it; each keeps its range, and secrets stay where they were."""
    server.script(NAME, moved(f"{other.url}/{NAME}?signed=1"))

    async with opened(f"{server.url}/set", headers=HEADERS) as storage:
        parts = [await fill(storage, start, start + 100) for start in (0, 1000, 2000)]

    assert parts == [CONTENT[start : start + 100] for start in (0, 1000, 2000)]
    assert len(server.requests) == 1
    assert [request.range for request in other.requests] == [(0, 100), (1000, 1100), (2000, 2100)]
    assert SECRET not in repr([request.headers for request in other.requests])


@pytest.mark.parametrize("headers", [{"Cache-Control": "private, no-store"}, {"cache-control": "No-Cache"}])
async def test_way_is_asked_for_again_where_the_server_wants_that(
    server: RangeServer, other: RangeServer, headers: dict[str, str]
) -> None:
    """It then decides on each read."""
    for _ in range(2):
        server.script(NAME, Act(status=302, headers={"Location": f"{other.url}/{NAME}"} | headers))

    async with opened(f"{server.url}/set") as storage:
        await fill(storage)
        await fill(storage)

    assert (len(server.requests), len(other.requests)) == (2, 2)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
async def test_way_that_has_expired_is_asked_for_again(
    server: RangeServer, other: RangeServer, status: int
) -> None:
    """At once and by the same read; an error from the place that is named then counts."""
    server.script(NAME, moved(f"{other.url}/{NAME}?signed=1"), moved(f"{other.url}/{NAME}?signed=2"))
    other.script(NAME, Act(), Act(status=status))

    async with opened(f"{server.url}/set") as storage:
        await fill(storage)

        assert await fill(storage) == CONTENT[5:5000]

    assert [request.query for request in other.requests] == ["signed=1", "signed=1", "signed=2"]


async def test_way_to_a_place_that_is_gone_is_forgotten(server: RangeServer) -> None:
    """The next try begins where the address says."""
    async with opened(f"{server.url}/set") as storage:
        with RangeServer(dict(FILES)) as away:
            server.script(NAME, moved(f"{away.url}/{NAME}"))
            await fill(storage)

        await failure(storage)

        assert await fill(storage) == CONTENT[5:5000]


def test_way_is_remembered_for_a_short_while() -> None:
    """What is signed expires, and servers move."""
    now = [100.0]
    moves = Moves(lambda: now[0])
    hop = Hop(URL("http://host/x"))
    moves.keep("x", hop)

    early, now[0] = moves.get("x"), 161.0

    assert (early, moves.get("x")) == (hop, None)


async def test_redirect_without_an_address_is_an_answer(server: RangeServer) -> None:
    """One that brings no bytes."""
    server.script(NAME, Act(status=302))

    async with opened(f"{server.url}/set") as storage:
        error = await failure(storage)

    assert (error.status, error.final) == (302, True)


async def test_error_behind_a_redirect_names_both_places(server: RangeServer, other: RangeServer) -> None:
    """The address that was given, and the origin that answered."""
    server.script(NAME, moved(f"{other.url}/{NAME}?sig={SECRET}"))
    other.script(NAME, Act(status=403))

    async with opened(f"{server.url}/set") as storage:
        error = await failure(storage)

    assert f"{server.url}/{NAME} (sent on to {other.url})" in str(error)


# https


async def test_https_reads_from_whom_it_trusts(secure: RangeServer) -> None:
    """Certificates are checked against the system's, or those that SSL_CERT_FILE names."""
    async with opened(f"{secure.url}/set") as storage:
        assert await fill(storage) == CONTENT[5:5000]


async def test_https_refuses_whom_it_does_not_trust() -> None:
    """It is final, and says why."""
    with RangeServer(dict(FILES), tls=_certificate(trustme.CA())) as server:
        async with opened(f"{server.url}/set") as storage:
            error = await failure(storage)

    assert "certificate is refused" in str(error)
    assert error.final
    assert server.requests == []


async def test_https_never_leads_to_http(secure: RangeServer, other: RangeServer) -> None:
    """A redirect that would give the encryption up is a final error."""
    secure.script(NAME, moved(f"{other.url}/{NAME}"))

    async with opened(f"{secure.url}/set") as storage:
        error = await failure(storage)

    assert "not encrypted" in str(error)
    assert error.final
    assert other.requests == []


async def test_http_may_lead_to_https(server: RangeServer, secure: RangeServer) -> None:
    """Which is another origin, so that no secrets go along that could be read on the way."""
    server.script(NAME, moved(f"{secure.url}/{NAME}"))

    async with opened(f"{server.url}/set", headers=HEADERS) as storage:
        assert await fill(storage) == CONTENT[5:5000]

    assert SECRET not in repr(only(secure).headers)


async def test_https_ends_early_at_once(secure: RangeServer) -> None:
    """A body that nobody wants is not waited for, and what came of a cut one is kept."""
    secure.script(NAME, Act(ignore_range=True), Act(cut=3000))

    async with opened(f"{secure.url}/set") as storage:
        ignored = await failure(storage)
    async with opened(f"{secure.url}/set") as storage:
        cut = await failure(storage)

    assert "ignored the range" in str(ignored)
    assert (cut.filled, cut.final) == (3000, False)


# addresses and headers


async def test_user_and_password_are_sent_and_not_shown(server: RangeServer) -> None:
    """As they stand in the address, decoded."""
    server.script(NAME, Act(), Act(status=401))
    url = f"{server.url}/set".replace("://", f"://us%C3%A9r:{SECRET}%40@")

    async with opened(url) as storage:
        await fill(storage)
        error = await failure(storage)
        assert SECRET not in repr(storage)

    assert server.requests[0].headers["authorization"] == "Basic dXPDqXI6aHVudGVyMkA="
    assert "access was refused (401)" in str(error)


@pytest.mark.parametrize(
    "act",
    [
        *(Act(status=403), Act(status=404), Act(status=416), Act(status=503), Act(ignore_range=True)),
        *(Act(cut=9), Act(reset=-1), Act(stall=9), Act(encoded=True), Act(headers={"Content-Range": "x"})),
    ],
)
async def test_query_is_sent_with_each_file_and_never_shown(server: RangeServer, act: Act) -> None:
    """It may be a signature; no kind of error tells it."""
    server.script(NAME, act)

    async with opened(f"{server.url}/set?sig={SECRET}&x=%2F", read_timeout=0.1) as storage:
        await failure(storage)

        assert SECRET not in repr(storage)
    assert {request.query for request in server.requests} == {f"sig={SECRET}&x=%2F"}


async def test_query_is_not_shown_where_nobody_answers(server: RangeServer) -> None:
    """Not by what led to the error either."""
    server.down()

    async with opened(f"{server.url}/set?sig={SECRET}", headers=HEADERS) as storage:
        error = await failure(storage)
    server.up()

    assert isinstance(error.__cause__, ConnectionRefusedError)


async def test_headers_are_sent_with_each_request(server: RangeServer) -> None:
    """A user agent of the user's own takes the place of ours."""
    async with opened(f"{server.url}/set", headers={**HEADERS, "user-agent": "mine"}) as storage:
        await storage.size("data.bin")
        await read(storage, "data.bin")

    assert [request.headers["x-api-key"] for request in server.requests] == [SECRET] * 2
    assert [request.headers["user-agent"] for request in server.requests] == ["mine"] * 2


async def test_cookies_are_not_kept(server: RangeServer) -> None:
    """A request depends on nothing that came before."""
    server.script(NAME, Act(headers={"Set-Cookie": "a=b; Path=/"}))

    async with opened(f"{server.url}/set".replace("127.0.0.1", "localhost")) as storage:
        await fill(storage)
        await fill(storage)

    assert "cookie" not in server.requests[1].headers


@pytest.mark.parametrize("name", ["a b.bin", "ü/零.bin", "100%.bin", "a%2Fb.bin", "q?x=1&y#z.bin", "+;=.bin"])
async def test_any_name_is_asked_for_as_it_is(server: RangeServer, name: str) -> None:
    """Signs that mean something in an address are written so that they do not."""
    server.files[f"set/{name}"] = name.encode()

    async with opened(f"{server.url}/set") as storage:
        assert await read(storage, name) == name.encode()

    assert only(server).path == f"/set/{name}"


async def test_server_at_an_address_of_six() -> None:
    """Brackets and all."""
    try:
        server = RangeServer(dict(FILES), host="::1").__enter__()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    try:
        async with opened(f"{server.url}/set") as storage:
            assert await fill(storage) == CONTENT[5:5000]
    finally:
        server.__exit__()


async def test_host_by_name(server: RangeServer) -> None:
    """The system is asked, in a thread that ends with the storage."""
    async with opened(f"{server.url}/set".replace("127.0.0.1", "localhost")) as storage:
        assert await fill(storage) == CONTENT[5:5000]


async def test_host_that_is_not_found() -> None:
    """It may be the network, so it can be tried again."""
    async with opened(f"http://nowhere.invalid/set?sig={SECRET}") as storage:
        error = await failure(storage)

    assert "cannot be found" in str(error)
    assert not error.final


@pytest.mark.parametrize(
    ("option", "value"),
    [("endpoint", "http://x"), ("region", "x"), ("access_key_id", SECRET), ("secret_access_key", SECRET)],
)
def test_options_of_buckets_are_refused(option: str, value: str) -> None:
    """They would do nothing."""
    with pytest.raises(ConfigError, match=f"{option} go with buckets"):
        HttpStorage(Address.parse("http://host"), NetworkOptions.parse({option: value}))


@pytest.mark.parametrize("options", [{"headers": {"authorization": SECRET}}, {"anonymous": True}])
def test_two_ways_to_sign_exclude_each_other(options: dict[str, Any]) -> None:
    """Which one is meant is not guessed."""
    with pytest.raises(ConfigError, match="exclude each other"):
        HttpStorage(Address.parse(f"http://user:{SECRET}@host"), NetworkOptions.parse(options))


# proxies and the rest of the environment


async def test_proxy_of_the_environment_is_used(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its password, which goes to no one else and is not shown."""
    monkeypatch.setenv("http_proxy", server.url.replace("://", f"://user:{SECRET}@"))
    server.script(NAME, Act(), Act(status=502))

    async with opened("http://data.invalid/set") as storage:
        assert await fill(storage) == CONTENT[5:5000]
        await failure(storage)

    assert server.requests[0].target == f"http://data.invalid/{NAME}"
    assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
    assert "authorization" not in server.requests[0].headers


async def test_hosts_can_be_taken_out(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_PROXY names them."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    async with opened(f"{server.url}/set") as storage:
        assert await fill(storage) == CONTENT[5:5000]


async def test_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells that it is the proxy."""
    monkeypatch.setenv("http_proxy", f"http://user:{SECRET}@127.0.0.1:9")

    async with opened("http://data.invalid/set") as storage:
        error = await failure(storage)

    assert "cannot connect to the proxy" in str(error)


async def test_proxy_that_lets_no_tunnel_through(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answers is told."""
    monkeypatch.setenv("https_proxy", server.url)

    async with opened(f"https://data.invalid/set?sig={SECRET}") as storage:
        error = await failure(storage)

    assert "the proxy answered 405" in str(error)
    assert server.requests[0].method == "CONNECT"


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://host", "http://one:1"),
        ("https://host", "http://all"),
        ("http://inner.example", None),
        ("http://host:8080", None),
    ],
)
def test_proxies_go_by_scheme_and_host(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None) -> None:
    """One that is written without a scheme is of http."""
    monkeypatch.setenv("http_proxy", "one:1")
    monkeypatch.setenv("all_proxy", "http://all")
    monkeypatch.setenv("no_proxy", ".example,host:8080")

    assert proxy_for(url) == proxy


def test_proxy_of_another_kind_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than going round it."""
    monkeypatch.setenv("all_proxy", f"socks5://user:{SECRET}@host")

    with pytest.raises(ConfigError, match="proxy of kind 'socks5'") as caught:
        proxy_for("http://host")

    assert SECRET not in str(caught.value)


async def test_passwords_of_a_netrc_are_not_used(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What an address does not say is not sent."""
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login user password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async with opened(f"{server.url}/set") as storage:
        await fill(storage)

    assert "authorization" not in only(server).headers


# nobody there


async def test_a_connection_that_is_not_made_in_time_is_told_from_silence() -> None:
    """The server cannot be reached, and may come back."""
    with deaf() as url:
        async with opened(f"{url}/set", connect_timeout=0.2) as storage:
            error = await failure(storage)

    assert "no connection within 0.2 s" in str(error)
    assert error.unreachable


@pytest.mark.parametrize(("status", "unreachable"), [(502, True), (504, True), (503, False), (500, False)])
async def test_a_gateway_tells_that_nobody_is_behind_it(
    server: RangeServer, status: int, unreachable: bool
) -> None:
    """That is no answer of the server itself."""
    server.script(NAME, Act(status=status, body=b"no"))

    async with opened(f"{server.url}/set") as storage:
        error = await failure(storage)

    assert (error.status, error.unreachable, error.final) == (status, unreachable, False)
