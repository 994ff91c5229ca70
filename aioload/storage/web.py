"""Web: requests of http(s), one attempt each, with redirects, proxies and time-outs, and errors of ours.

A redirect keeps the range and all else that decides which bytes come. Credentials and a user's headers stay
with the origin they were given for, and from https it never leads to http.

aiohttp's errors quote whole addresses, signatures included. So they are never chained: what is told are the
system's own errors and texts of ours.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NoReturn
from urllib.parse import quote

import aiohttp
import anyio
from yarl import URL

from .._version import __version__
from ..errors import AioloadError, ClosedError, ConfigError, NotFoundError, StorageError
from .address import Address
from .answers import GATEWAY, THROTTLED, TRIED_AGAIN, retry_after
from .moves import STALE, Hop, Moves, may_be_kept
from .options import NetworkOptions
from .proxies import proxy_for
from .resolver import Resolver

__all__ = ["BROKEN", "Web"]

BROKEN = (aiohttp.ClientError, OSError, TimeoutError, RuntimeError)
"""What aiohttp raises when something fails; `Web.translated` makes errors of ours from it."""

_BUFFER_BYTES = 512 << 10  # that may wait to be taken, of each answer; DESIGN.md has the figures
_MAX_FIELD_BYTES = 64 << 10  # signed addresses to be redirected to are long
_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FOUND = frozenset({200, 206})
_ALLOWED = "%/:=&?~#+!$,;'@()*[]"  # in an address beside letters and digits; the rest gets encoded
_SMALL_BYTES = 64 << 10  # of a body that nobody wants: read, so that the connection can be used again
_MOST_URLS = 4096
_GRACE = 1.0  # seconds for a loop to close what it has open


class Web:
    """Asks for files in a folder; usable from several event loops, each with connections of its own.

    Args:
        address: of the folder; http or https.
        options: headers and time-outs.

    Raises:
        ConfigError: the options do not go with such an address.
    """

    def __init__(self, address: Address, options: NetworkOptions) -> None:
        _check(address, options)
        self._address = address
        self._options = options
        self._headers = _credentials(address) | dict(options.headers or {})
        self._tls: ssl.SSLContext | None = _tls() if address.scheme == "https" else None
        self._urls: dict[str, URL] = {}
        self._moves = Moves()
        self._proxies: dict[URL, str | None] = {}
        self._seats: dict[asyncio.AbstractEventLoop, _Seat] = {}
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer be asked."""
        return self._closed

    def place(self, name: str, answer: aiohttp.ClientResponse | None = None) -> str:
        """Return the address of a file for messages, and where an answer came from if that is elsewhere."""
        shown = self._address.child(name).shown
        if answer is None:
            return shown
        origin = URL(self._address.url, encoded=True).origin()
        return shown if answer.url.origin() == origin else f"{shown} (sent on to {answer.url.origin()})"

    def check_open(self, name: str) -> None:
        """Raise a ClosedError if it has been closed."""
        if self._closed:
            raise ClosedError(
                f"the storage over {self._address.shown} has been closed; open it again", shard=name
            )

    @asynccontextmanager
    async def get(self, name: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Ask for a file and lend the answer, of whatever status but a redirect, its body still to come.

        What is not read of a body by the end costs the connection.

        Args:
            name: the file.
            headers: what decides which bytes come.
        """
        self.check_open(name)
        seat = self._seat()
        with anyio.CancelScope() as scope:
            seat.scopes.add(scope)
            try:
                answer = await self._follow(seat.session, name, headers)
                try:
                    yield answer
                finally:
                    answer.close()
            finally:
                seat.scopes.discard(scope)
        if scope.cancelled_caught:
            self.check_open(name)

    async def refused(self, name: str, answer: aiohttp.ClientResponse) -> NoReturn:
        """Raise the error of a status that brings no bytes."""
        await _drain(answer)
        status = answer.status
        kind: type[StorageError] = StorageError
        place = self.place(name, answer)
        if status in (404, 410):
            kind = NotFoundError
            message = f"there is no {place} ({status}); check the address"
        elif status in (401, 403, 407):
            message = f"{place}: access was refused ({status}); check the headers or the signature given"
        elif status in THROTTLED:
            message = f"{place}: the server asks to be left alone for a while ({_phrase(status)})"
        else:
            message = f"{place}: the server answered {_phrase(status)}"
        raise kind(
            message,
            shard=name,
            status=status,
            cause=_phrase(status),
            retry_after=retry_after(answer.headers),
            throttled=status in THROTTLED,
            unreachable=status in GATEWAY,
            final=status < 500 and status not in TRIED_AGAIN,
        )

    def translated(self, error: Exception, name: str, filled: int = 0) -> AioloadError:
        """Make an error of ours from one of aiohttp's, or of the system."""
        if self._closed and isinstance(error, RuntimeError | aiohttp.ClientConnectionError):
            return ClosedError(f"the storage over {self._address.shown} has been closed", shard=name)
        error = error.first if isinstance(error, _LostError) else error
        what, final = self._fault(error)
        system = getattr(error, "os_error", None)
        found = StorageError(
            f"{self.place(name)}: {what}",
            shard=name,
            errno=getattr(error, "errno", None),
            status=error.status if isinstance(error, aiohttp.ClientHttpProxyError) else None,
            filled=filled,
            cause=what,
            unreachable=isinstance(error, aiohttp.ConnectionTimeoutError),
            final=final,
        )
        found.__cause__ = system if isinstance(system, OSError) else None  # which also hides aiohttp's own
        return found

    async def aclose(self) -> None:
        """End what is under way with a ClosedError and close all connections; twice is free."""
        self._closed = True
        seats, self._seats = self._seats, {}
        own = asyncio.get_running_loop()
        with anyio.CancelScope(shield=True):
            for loop, seat in seats.items():
                if loop is own:
                    await seat.aclose()
                elif loop.is_running():
                    with anyio.move_on_after(_GRACE), suppress(RuntimeError):  # it may end meanwhile
                        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(seat.aclose(), loop))

    def _seat(self) -> _Seat:
        loop = asyncio.get_running_loop()
        seat = self._seats.get(loop)
        if seat is None:
            seat = self._seats[loop] = _Seat(self._options)
        return seat

    async def _follow(
        self, session: aiohttp.ClientSession, name: str, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Ask, and go where redirects lead, or have led just before."""
        known = self._moves.get(name)
        if known is not None:
            answer = await self._ask(session, name, known, headers)
            if answer.status not in STALE and answer.status not in _REDIRECTS:
                return answer
            self._moves.forget(name)
            await _finish(answer)

        hop, is_kept = Hop(self._url(name)), True
        for moves in range(_MOST_REDIRECTS + 1):
            answer = await self._ask(session, name, hop, headers)
            if answer.status not in _REDIRECTS or "Location" not in answer.headers:
                if moves and is_kept and answer.status in _FOUND:
                    self._moves.keep(name, hop)
                return answer
            is_kept &= may_be_kept(answer.headers)
            try:
                hop = hop.to(self._target(name, hop.url, answer))
            finally:
                await _finish(answer)
        raise StorageError(
            f"{self.place(name)}: redirected more than {_MOST_REDIRECTS} times; check the address",
            shard=name,
            final=True,
        )

    async def _ask(
        self, session: aiohttp.ClientSession, name: str, hop: Hop, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Ask at one place; a redirect is an answer."""
        sent = {**self._headers, **headers} if hop.trusted else headers
        try:
            return await session.get(
                hop.url,
                headers=sent,
                allow_redirects=False,
                proxy=self._proxy(hop.url),
                ssl=self._ssl(hop.url),
            )
        except BROKEN as error:
            self._moves.forget(name)
            fault = self.translated(error, name)
            try:
                raise fault from fault.__cause__
            finally:
                del fault  # this frame is among its own, and holds the caller's memory

    def _url(self, name: str) -> URL:
        """Return what is asked for; kept, as making it takes a tenth of a small request."""
        url = self._urls.get(name)
        if url is None:
            if len(self._urls) >= _MOST_URLS:
                self._urls.clear()
            url = self._urls[name] = URL(self._address.child(name).url, encoded=True)
        return url

    def _target(self, name: str, url: URL, answer: aiohttp.ClientResponse) -> URL:
        """Return where a redirect leads, if that is somewhere to go."""
        try:
            target = url.join(URL(quote(answer.headers["Location"], safe=_ALLOWED), encoded=True))
            if target.scheme not in ("http", "https"):
                what = f"an address of kind {target.scheme[:20]!r}"
            elif (url.scheme, target.scheme) == ("https", "http"):
                what = f"{target.origin()}, which is not encrypted"
            else:
                # a user and password in it would be the server's own choice, and are not sent
                return target.with_user(None).with_fragment(None)
        except ValueError:
            what = "what is no address"
        raise StorageError(
            f"{self.place(name, answer)}: the server redirects to {what}; this is not followed",
            shard=name,
            status=answer.status,
            final=True,
        )

    def _ssl(self, url: URL) -> ssl.SSLContext | bool:
        """Return the certificates that are trusted; made here only for a redirect from http."""
        if url.scheme != "https":
            return True
        if self._tls is None:
            self._tls = _tls()
        return self._tls

    def _proxy(self, url: URL) -> str | None:
        origin = url.origin()
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(str(origin))
        return self._proxies[origin]

    def _fault(self, error: Exception) -> tuple[str, bool]:
        """Tell what happened, and whether it would happen again for sure."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                reason = getattr(error.certificate_error, "verify_message", "") or "it is not trusted"
                return f"the server's certificate is refused: {reason}; SSL_CERT_FILE names others", True
            case aiohttp.ClientConnectorDNSError():
                return f"the host {error.host} cannot be found; check the address and the network", False
            case aiohttp.ClientProxyConnectionError():
                return f"cannot connect to the proxy: {_system(error)}; check HTTP_PROXY and NO_PROXY", False
            case aiohttp.ClientConnectorError():
                return f"cannot connect: {_system(error)}; check the address and the network", False
            case aiohttp.ConnectionTimeoutError():
                seconds = self._options.connect_timeout
                return (
                    f"no connection within {seconds:g} s; check the network, or raise connect_timeout",
                    False,
                )
            case aiohttp.ServerTimeoutError() | TimeoutError():
                seconds = self._options.read_timeout
                return (
                    f"nothing came for {seconds:g} s; the server or the network may be overloaded, else "
                    "raise read_timeout"
                ), False
            case aiohttp.ServerDisconnectedError():
                return "the server closed the connection without an answer", False
            case aiohttp.ClientPayloadError():
                return "the answer was cut short", False
            case aiohttp.ClientHttpProxyError():
                return f"the proxy answered {_phrase(error.status)}", error.status == 407
            case aiohttp.ClientResponseError():
                return "what came is no answer in HTTP; check the address and its port", False
            case aiohttp.InvalidURL():
                return "this is no address that can be asked; check it", True
            case OSError():
                return f"the connection broke: {_system(error)}", False
        return f"the request failed ({type(error).__name__})", False


class _Seat:
    """What one event loop has open."""

    def __init__(self, options: NetworkOptions) -> None:
        self.scopes: set[anyio.CancelScope] = set()
        """Of the requests under way."""
        self._resolver = Resolver()
        self.session = aiohttp.ClientSession(
            # whoever asks decides how many at once, so that none waits here unseen
            connector=aiohttp.TCPConnector(limit=0, resolver=self._resolver),
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=options.connect_timeout,
                sock_connect=options.connect_timeout,
                sock_read=options.read_timeout,
            ),
            headers={"User-Agent": f"aioload/{__version__}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,  # that bytes are encoded must be seen
            read_bufsize=_BUFFER_BYTES,
            max_field_size=_MAX_FIELD_BYTES,
            middlewares=(_once,),
        )

    async def aclose(self) -> None:
        """End the requests and close the connections."""
        for scope in list(self.scopes):
            scope.cancel()
        await self.session.close()
        await self._resolver.close()


class _LostError(aiohttp.ClientConnectionError):
    """A connection that broke before an answer came; of a kind that aiohttp does not ask again for."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.first = error


async def _once(
    request: aiohttp.ClientRequest,
    send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]],
) -> aiohttp.ClientResponse:
    """Keep aiohttp from asking twice in silence: who tries again counts, waits and may be told not to."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _LostError(error) from error


def _check(address: Address, options: NetworkOptions) -> None:
    named = {
        "endpoint": options.endpoint,
        "region": options.region,
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
    }
    given = [name for name, value in named.items() if value is not None]
    if given:
        raise ConfigError(f"the storage options {', '.join(given)} go with buckets, not with {address.shown}")
    own = {name.lower() for name in options.headers or {}} & {"authorization"}
    if address.userinfo and (own or options.anonymous):
        other = "the header Authorization" if own else "anonymous"
        raise ConfigError(f"{other} and a user in the address exclude each other; leave out one of them")


def _credentials(address: Address) -> dict[str, str]:
    """Return what a user and password in an address become."""
    if address.credentials is None:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(b':'.join(address.credentials)).decode()}"}


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _finish(answer: aiohttp.ClientResponse) -> None:
    """Be done with an answer that is not what was asked for."""
    try:
        await _drain(answer)
    finally:
        answer.close()


async def _drain(answer: aiohttp.ClientResponse) -> None:
    """Read a small body to its end; that of a large one ends with the connection."""
    if answer.content_length is not None and answer.content_length <= _SMALL_BYTES:
        with suppress(*BROKEN):
            await answer.read()


def _phrase(status: int) -> str:
    """Say a status with words of the standard; a server's own could hold anything."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _system(error: OSError) -> str:
    """Return what the system says, which is no more than a code stands for."""
    found = getattr(error, "os_error", error)
    return (found.strerror if isinstance(found, OSError) else None) or type(found).__name__
