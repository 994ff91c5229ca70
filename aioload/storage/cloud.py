"""Files in buckets (s3://, gs://, az://), read by obstore: one attempt a call, checked, straight into place.

obstore says nothing when fewer bytes come than were asked for, and pins no version by itself. So each answer
is compared with what was asked: its range, its length, the file's size and tag, and that nobody encoded it.

A body is taken in pieces of 1 MiB, each copied once. In one piece it costs more (fresh memory for it all),
in smaller ones too (a trip through the loop each). Against nginx on the loopback address, CPU seconds a GB
in ranges of 4 and 8 MiB, eight at a time: `get_range_async` 0.52 and 0.56, `bytes_async` 0.51 and 0.56,
pieces of 256 KiB 0.70 and 0.58, of 1 MiB 0.48 and 0.46, of 4 MiB 0.49 and 0.52. And where a body is cut
short, `filled` is exact to within a piece. A read of no more than a piece takes `bytes_async`, which saves a
trip: a fifth at 64 KiB. `get_range_async` costs half of that there, but compares no version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.lowlevel

from ..errors import AioloadError, ClosedError, StorageError
from .answers import PLAIN
from .base import check_name, check_range, ends_early, miscounted
from .faults import Fault, fault_of
from .pins import Pins, changed
from .stores import RUNTIME, make_store
from .trial import IGNORED, Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import GetOptions, GetResult, ListResult, ObjectMeta
    from obstore.store import ObjectStore

    from .address import Address
    from .options import NetworkOptions

__all__ = ["CloudStorage"]

_PIECE_BYTES = 1 << 20
_MAX_START = 1 << 62  # beyond it, start + length may be more than obstore takes; no file is that long


class CloudStorage:
    """A storage over a bucket, or a folder in one. Making one does no I/O. It runs on asyncio alone.

    Args:
        address: of the folder.
        options: endpoint, keys and time-outs.
        pins: versions of files, shared by all storages that must agree on them.
    """

    def __init__(self, address: Address, options: NetworkOptions, pins: Pins | None = None) -> None:
        self._shown = address.shown.rstrip("/")
        self._folder = f"{address.path.strip('/')}/".lstrip("/")
        self._pins = Pins() if pins is None else pins
        self._trial = Trial()
        self._store: ObjectStore | None = make_store(address, options)

    async def size(self, name: str) -> int:
        """Return the bytes of a file, as it was when it was first seen."""
        return (await self._pinned(name))[0]

    async def version(self, name: str) -> str | None:
        """Return the tag of a file, as it was when it was first seen; None where the server gives none."""
        return (await self._pinned(name))[1]

    async def get(self, name: str) -> bytes:
        """Return the whole of a small file, in one request."""
        answer = await self._ask(name, None)
        memory = bytearray(answer.meta["size"])
        await self._take(answer, name, memoryview(memory))
        return bytes(memory)

    async def listing(self) -> list[str]:
        """Return the names of the files in the folder, whose sizes and tags are known from then on."""
        names = []
        for meta in (await self._list())["objects"]:
            name = meta["path"].removeprefix(self._folder)
            self._compare(name, meta)
            names.append(name)
        return names

    async def folders(self) -> list[str]:
        """Return the names of the folders in the folder."""
        paths = (await self._list())["common_prefixes"]
        return [path.removeprefix(self._folder).strip("/") for path in paths]

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on; filling nothing does no I/O."""
        view = check_range(start, out)
        stop = start + len(view)
        if not view:
            self._open_store(name)
            await anyio.lowlevel.checkpoint()
            return
        if start > _MAX_START:
            raise ends_early(name, await self.size(name), stop)

        try:
            answer = await self._ask_part(name, start, stop)
            if answer.meta["size"] < stop:
                raise ends_early(name, answer.meta["size"], stop)
            await self._take(answer, name, view)
        except StorageError as error:
            # the range begins at or after the end, wherever that is
            if error.status == 416 and (size := await self.size(name)) < stop:
                raise ends_early(name, size, stop) from error
            raise

    async def aclose(self) -> None:
        """Let go of the connections; twice is free."""
        self._store = None

    def __repr__(self) -> str:
        return f"<CloudStorage {self._shown}{' closed' if self._store is None else ''}>"

    def _open_store(self, name: str) -> ObjectStore:
        check_name(name)
        if self._store is None:
            raise ClosedError(f"the storage over {self._shown} has been closed; open it again", shard=name)
        RUNTIME.enter()
        return self._store

    async def _list(self) -> ListResult[Sequence[ObjectMeta]]:
        import obstore

        store = self._open_store("listing")
        try:
            return await obstore.list_with_delimiter_async(store, self._folder or None)
        except Exception as error:
            raise self._translated(error, "") from None

    async def _pinned(self, name: str) -> tuple[int, str | None]:
        """Return size and tag of a file, asking for them where it has not been seen."""
        store = self._open_store(name)
        pin = self._pins.get(name)
        if pin is not None:
            await anyio.lowlevel.checkpoint()
            return pin
        return self._compare(name, await self._head(store, name))

    async def _head(self, store: ObjectStore, name: str) -> ObjectMeta:
        import obstore

        try:
            return await obstore.head_async(store, self._folder + name)
        except Exception as error:
            raise self._translated(error, name) from None

    async def _ask_part(self, name: str, start: int, stop: int) -> GetResult:
        """Ask for a range; of a file whose ranges are ignored only once."""
        async with self._trial.turn():
            if name in self._trial.ignoring:
                raise Fault("ranges", IGNORED).error(name, self._shown)
            try:
                answer = await self._ask(name, (start, stop))
            except StorageError as error:
                if error.cause == IGNORED:
                    self._trial.ignoring.add(name)
                raise
            self._trial.passed = True
            return answer

    async def _ask(self, name: str, part: tuple[int, int] | None) -> GetResult:
        """Ask for a file, or a part of it, and check all that can be told from the head of the answer."""
        import obstore

        store = self._open_store(name)
        pin = self._pins.get(name)
        options: GetOptions = {} if part is None else {"range": part}
        if pin is not None and pin[1] is not None and not pin[1].startswith("W/"):  # weak tags match nothing
            options["if_match"] = pin[1]
        try:
            answer = await obstore.get_async(store, self._folder + name, options=options)
        except Exception as error:
            raise await self._explained(error, name, pin) from None

        self._compare(name, answer.meta)
        encoding = str(answer.attributes.get("Content-Encoding", ""))
        if encoding not in PLAIN:
            raise StorageError(
                f"{self._place(name)} comes encoded as {encoding!r}, of which no ranges can be read; "
                "store it without Content-Encoding",
                shard=name,
                final=True,
            )
        return answer

    # hot: once per read; measured as the head of this module says
    async def _take(self, answer: GetResult, name: str, view: memoryview) -> None:
        """Copy a body into its place, and see that it is neither longer nor shorter."""
        wanted = len(view)
        filled = 0
        try:
            if wanted <= _PIECE_BYTES:
                whole = memoryview(await answer.bytes_async())
                filled = len(whole)
                view[:filled] = whole[:wanted]
            else:
                pieces = answer.stream(min_chunk_size=_PIECE_BYTES)
                while filled < wanted:  # not to the stream's own end, which is one more trip
                    piece = memoryview(await pieces.__anext__())
                    view[filled : filled + len(piece)] = piece[: wanted - filled]
                    filled += len(piece)
        except StopAsyncIteration:
            pass
        except Exception as error:
            raise self._translated(error, name, filled) from None

        if filled != wanted:
            raise StorageError(
                f"{self._place(name)}: {miscounted(filled, wanted)}",
                shard=name,
                filled=filled if filled < wanted else 0,
                cause="another number of bytes than was announced",
            )

    def _compare(self, name: str, meta: ObjectMeta) -> tuple[int, str | None]:
        """Pin what is seen for the first time, and compare it from then on."""
        now = (meta["size"], meta["e_tag"] or meta["version"])
        before = self._pins.pin(name, *now)
        if before != now:
            raise changed(name, self._place(name), before, now)
        return now

    async def _explained(
        self, error: Exception, name: str, pin: tuple[int, str | None] | None
    ) -> AioloadError:
        """Translate, and look once what the file is now, if it is no longer what it was."""
        if pin is None or fault_of(error).status != 412:
            return self._translated(error, name)
        meta = await self._head(self._open_store(name), name)
        return changed(name, self._place(name), pin, (meta["size"], meta["e_tag"] or meta["version"]))

    def _translated(self, error: Exception, name: str, filled: int = 0) -> AioloadError:
        return fault_of(error).error(name, self._shown, filled=filled)

    def _place(self, name: str) -> str:
        return f"{self._shown}/{name}"
