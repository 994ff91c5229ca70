"""Files behind http(s) addresses, read by aiohttp: one attempt a call, checked, straight into place.

Each answer is compared with what was asked: its status, range, length, the file's size and tag, and that
nobody encoded the bytes. A server that ignores ranges is told by its head; nothing of its body is read. What
it has sent by then is lost, so the first range is asked for alone, and none after one that was ignored.

How large a file is, is asked for with a range of one byte. That is one request like HEAD, but shows as well
whether ranges work, and is not refused where an address is signed for GET alone.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio.lowlevel

from ..errors import StorageError
from .address import Address
from .answers import Head, same_tag
from .base import check_name, check_range, ends_early, miscounted
from .options import NetworkOptions
from .pins import Pins, changed
from .trial import IGNORED, Trial
from .web import BROKEN, Web

if TYPE_CHECKING:
    from aiohttp import ClientResponse, StreamReader

__all__ = ["HttpStorage", "rest"]

_MAX_START = 1 << 59  # no file is that long, and some servers count in 64 bits with a sign
_PAGES = ("text/html", "application/xhtml+xml")
_PAGE_BEGINS = (b"<!doctype html", b"<html")


class HttpStorage:
    """A storage over a folder of a web server. Making one does no I/O. It runs on asyncio alone.

    Usable from several event loops, each with connections of its own. Proxies of the environment are used,
    passwords of ~/.netrc are not.

    Args:
        address: of the folder. User and password in it are sent, and so is its query with each request.
        options: headers and time-outs; all that is about buckets must be left out.
        pins: versions of files, shared by all storages that must agree on them.

    Raises:
        ConfigError: the options do not go with such an address.
    """

    def __init__(
        self, address: Address, options: NetworkOptions | None = None, pins: Pins | None = None
    ) -> None:
        self._shown = address.shown
        self._pins = Pins() if pins is None else pins
        self._web = Web(address, options or NetworkOptions())
        self._trial = Trial()

    async def size(self, name: str) -> int:
        """Return the bytes of a file, as it was when it was first seen."""
        return (await self._pinned(name))[0]

    async def version(self, name: str) -> str | None:
        """Return the tag of a file, as it was when it was first seen; None where the server gives none."""
        return (await self._pinned(name))[1]

    async def get(self, name: str) -> bytes:
        """Return the whole of a small file, in one request."""
        self._check(name)
        async with self._web.get(name, self._headers(name)) as answer:
            head = await self._head(name, answer)
            if head.status != 200:
                raise self._error(name, answer, "a part came where the whole was asked for")
            if head.length is not None:
                self._compare(name, head.length, head.tag)
            body = await self._whole(name, answer)
            if _is_page(name, head) and body.lstrip()[:20].lower().startswith(_PAGE_BEGINS):
                raise self._error(name, answer, _a_page(head), final=False)
            self._compare(name, len(body), head.tag)
            return body

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on; filling nothing does no I/O."""
        view = check_range(start, out)
        stop = start + len(view)
        self._check(name)
        if not view:
            await anyio.lowlevel.checkpoint()
            return
        if start > _MAX_START:
            raise ends_early(name, await self.size(name), stop)

        async with AsyncExitStack() as alone:
            if not self._trial.passed:
                await alone.enter_async_context(self._trial.turn())
            if name in self._trial.ignoring:
                raise StorageError(
                    f"{self._shown}/{name}: {_IGNORED} (status 200)", shard=name, status=200, final=True
                )
            async with self._web.get(name, self._headers(name, start, stop)) as answer:
                head = await self._head(name, answer)
                if head.status == 416:
                    await self._explain_beyond(name, answer, head, stop)
                elif head.status == 206:
                    self._check_part(name, answer, head, start, stop)
                    self._trial.passed = True
                else:
                    self._check_unasked(name, answer, head, start, stop)
                await alone.aclose()
                await self._take(name, answer, view)

    async def aclose(self) -> None:
        """End what is under way and close the connections; twice is free."""
        await self._web.aclose()

    def __repr__(self) -> str:
        return f"<HttpStorage {self._shown}{' closed' if self._web.is_closed else ''}>"

    def _check(self, name: str) -> None:
        check_name(name, is_text=True)
        self._web.check_open(name)

    def _headers(self, name: str, start: int = 0, stop: int | None = None) -> dict[str, str]:
        """Return what decides which bytes come."""
        headers = {"Accept-Encoding": "identity"}
        if stop is not None:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        pin = self._pins.get(name)
        if pin is not None and pin[1] is not None and pin[1].startswith('"'):  # weak tags match nothing
            headers["If-Match"] = pin[1]
        return headers

    async def _pinned(self, name: str) -> tuple[int, str | None]:
        """Return size and tag of a file, asking for them where it has not been seen."""
        self._check(name)
        pin = self._pins.get(name)
        if pin is not None:
            await anyio.lowlevel.checkpoint()
            return pin
        return self._compare(name, *await self._look(name))

    async def _look(self, name: str) -> tuple[int, str | None]:
        """Ask what a file is now, with a range of one byte and whatever was pinned."""
        headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
        async with self._web.get(name, headers) as answer:
            head = await self._head(name, answer)
            size = head.length if head.status == 200 else head.size
            if head.status == 416 and size is None:
                size = 0  # a file that has no first byte
            if size is None:
                raise self._error(name, answer, "the server does not tell how large the file is")
            if head.status == 200 and _is_page(name, head):
                raise self._error(name, answer, _a_page(head), final=False)
            if head.status == 206 and head.length == 1:
                await self._whole(name, answer)  # so that the connection can be used again
            return size, head.tag

    async def _head(self, name: str, answer: ClientResponse) -> Head:
        """Return the head of an answer that is of use, or raise what it says."""
        head = Head.of(answer.status, answer.headers)
        if head.status == 412:
            raise await self._explained(name, answer, head)
        if head.status not in (200, 206, 416):
            await self._web.refused(name, answer)
        if head.encoding is not None and head.status != 416:
            raise self._error(
                name,
                answer,
                f"the bytes come encoded as {head.encoding[:20]!r}, of which no ranges can be read; serve "
                "the file without Content-Encoding",
            )
        return head

    def _check_part(self, name: str, answer: ClientResponse, head: Head, start: int, stop: int) -> None:
        """See that a part is the one that was asked for."""
        if head.start is None or head.stop is None:
            raise self._error(name, answer, f"a part came that does not say which; {_NO_RANGES}")
        if head.size is not None:
            self._compare(name, head.size, head.tag)
        else:
            self._compare_tag(name, head.tag)
        if head.start == start and head.stop < stop and head.stop == head.size:
            raise ends_early(name, head.size, stop)
        if (head.start, head.stop) != (start, stop):
            raise self._error(
                name,
                answer,
                f"bytes {head.start} to {head.stop} came in place of {start} to {stop}; {_NO_RANGES}",
            )
        if head.length is not None and head.length != stop - start:
            raise self._error(name, answer, miscounted(head.length, stop - start), final=False)

    def _check_unasked(self, name: str, answer: ClientResponse, head: Head, start: int, stop: int) -> None:
        """Take a whole file that is just what was asked for, and nothing else in place of a part."""
        if start == 0 and head.length == stop:
            self._compare(name, stop, head.tag)
            return
        if _is_page(name, head):
            raise self._error(name, answer, _a_page(head), final=False)
        if head.length is not None:
            self._compare(name, head.length, head.tag)
            if head.length < stop:
                raise ends_early(name, head.length, stop)
        self._trial.ignoring.add(name)
        raise self._error(name, answer, _IGNORED)

    async def _explain_beyond(self, name: str, answer: ClientResponse, head: Head, stop: int) -> None:
        """Raise what it means that a range begins at or after the end."""
        if head.size is not None:
            self._compare(name, head.size, head.tag)
        size = await self.size(name) if head.size is None else head.size
        if size < stop:
            raise ends_early(name, size, stop)
        await self._web.refused(name, answer)

    async def _explained(self, name: str, answer: ClientResponse, head: Head) -> StorageError:
        """Tell what a file is now that is no longer what was pinned."""
        pin = self._pins.get(name)
        if pin is None:
            await self._web.refused(name, answer)
        if head.tag is not None and not same_tag(pin[1], head.tag):
            return changed(name, self._web.place(name), pin, (None, head.tag))
        return changed(name, self._web.place(name), pin, await self._look(name))

    # hot: once per read; measured as DESIGN.md says
    async def _take(self, name: str, answer: ClientResponse, view: memoryview) -> None:
        """Copy a body into its place as it comes, and see that it is neither longer nor shorter."""
        content = answer.content
        wanted = len(view)
        filled = 0
        try:
            while not content.at_eof() and filled <= wanted:
                piece, _ = await content.readchunk()
                view[filled : filled + len(piece)] = piece[: wanted - filled]
                filled += len(piece)
        except BROKEN as error:
            filled += rest(content, view[filled:])
            fault = self._web.translated(error, name, filled)
            try:
                raise fault from fault.__cause__
            finally:
                del fault  # this frame is among its own, and holds the caller's memory
        if filled != wanted:
            raise StorageError(
                f"{self._web.place(name, answer)}: {miscounted(filled, wanted)}",
                shard=name,
                status=answer.status,
                filled=filled if filled < wanted else 0,
                cause="another number of bytes than was announced",
            )

    async def _whole(self, name: str, answer: ClientResponse) -> bytes:
        try:
            return await answer.read()
        except BROKEN as error:
            fault = self._web.translated(error, name)
            try:
                raise fault from fault.__cause__
            finally:
                del fault  # this frame is among its own, and holds the caller's memory

    def _compare(self, name: str, size: int, tag: str | None) -> tuple[int, str | None]:
        """Pin what is seen for the first time, and compare it from then on; return what is pinned."""
        pin = self._pins.pin(name, size, tag)
        if pin[0] != size or not same_tag(pin[1], tag):
            raise changed(name, self._web.place(name), pin, (size, tag))
        return pin

    def _compare_tag(self, name: str, tag: str | None) -> None:
        """Compare what there is where the size is not told."""
        pin = self._pins.get(name)
        if pin is not None and not same_tag(pin[1], tag):
            raise changed(name, self._web.place(name), pin, (None, tag))

    def _error(self, name: str, answer: ClientResponse, what: str, *, final: bool = True) -> StorageError:
        return StorageError(
            f"{self._web.place(name, answer)}: {what} (status {answer.status})",
            shard=name,
            status=answer.status,
            cause=what,
            final=final,
        )


_NO_RANGES = "a server that answers no ranges cannot be streamed from"
_IGNORED = f"{IGNORED}; {_NO_RANGES}"


def _is_page(name: str, head: Head) -> bool:
    return head.kind in _PAGES and not name.endswith((".html", ".htm", ".xhtml"))


def _a_page(head: Head) -> str:
    return f"a web page ({head.kind}) came in place of the file; look at it in a browser"


def rest(content: StreamReader, view: memoryview) -> int:
    """Save what had come before a body broke and was not taken yet; return how many bytes that is.

    aiohttp has no public way to it. Where its inside should change, these bytes are asked for twice.
    """
    filled = 0
    skip = getattr(content, "_buffer_offset", 0)
    for piece in tuple(getattr(content, "_buffer", ())):
        part = memoryview(piece)[skip:][: len(view) - filled]
        view[filled : filled + len(part)] = part
        filled += len(part)
        skip = 0
    return filled
