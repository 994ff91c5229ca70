"""Home: where a set lies, on this disk, in the network or in a user's storage, and how it is opened there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from .errors import ConfigError, NotFoundError, ShardError
from .foreign import (
    MDS_INDEX,
    Contents,
    Foreign,
    Lost,
    Place,
    Wids,
    list_shards,
    looked_up,
    matched,
    open_foreign,
    parse_wids,
    place_of,
)
from .machine import available_memory, is_local, local_world_size, parse_bytes
from .shard.format import INDEX_NAME, MANIFEST_NAME
from .shard.index import Index, open_index, parse_index
from .shard.manifest import Manifest
from .shard.pages import Pages
from .storage import Lent, LocalStorage, Packed, Storage, Unpacked, close, default_cache_folder, read
from .storage.remote import Remote

if TYPE_CHECKING:
    from .foreign import Opening
    from .shard.sidecar import Loss

__all__ = ["Away", "Home"]


@dataclass(frozen=True, slots=True)
class Away:
    """Opens a storage of a set's files in another process, maybe on another machine."""

    root: str
    """Folder or address."""
    options: Mapping[str, Any] | None = field(repr=False)
    """Of the network; None if it is a folder."""
    pinned: Mapping[str, tuple[int, str | None]] = field(repr=False)
    """Versions of files that have been seen: no other is to be read there."""
    lost: Mapping[str, Loss] = field(repr=False)
    """Shards of which nothing is to be read, whatever lies there by then."""

    def __call__(self) -> Storage:
        """Return the storage; nothing of it is cached."""
        storage: Storage
        if self.options is None:
            storage = LocalStorage(self.root)
        else:
            storage = Remote(self.root, self.options, pinned=self.pinned).open()
        return Lost(storage, self.lost) if self.lost else storage


_INDEX_MEMORY = 1 << 30
_MEMORY_SHARE = 16  # of the memory that there is, and of a rank's share of it, what an index may take


class Home:
    """Where one set lies. Making one does no I/O.

    Args:
        source: as `Dataset` takes it.
        storage_options: likewise.
        cache_dir: likewise.
        cache_bytes: likewise.
        index_memory: likewise.

    Raises:
        ConfigError: the address or an option cannot be.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Storage,
        storage_options: Mapping[str, Any] | None,
        cache_dir: str | os.PathLike[str] | bool | None,
        cache_bytes: int | str | None,
        index_memory: int | str = "auto",
    ) -> None:
        if index_memory != "auto":
            index_memory = parse_bytes(index_memory, name="index_memory")
        self._index_memory = index_memory
        self._storage = source if isinstance(source, Storage) else None
        self._asked = Place(repr(source)) if isinstance(source, Storage) else place_of(source)
        self._place = self._asked  # what it was found to be, when it was opened last
        self._given = source if isinstance(source, (str, os.PathLike, Storage)) else tuple(source)
        self._options = storage_options, cache_dir, cache_bytes
        self._token = secrets.token_hex(8)
        self.remote: Remote | None = None
        """The network's side of it, where it lies there."""
        if self._storage is None and self._place.is_address:
            self.remote = Remote(self._place.root, storage_options, cache_dir, cache_bytes)
        elif storage_options or cache_dir or cache_bytes:
            raise ConfigError(
                "storage_options, cache_dir and cache_bytes go with an address such as s3://…, which "
                f"{self._place.root} is not; leave them out"
            )
        # as it is now: what was given may be changed later
        self._again = {} if self.remote is None else _options_of(self.remote, cache_dir, cache_bytes)
        if index_memory != "auto":
            self._again["index_memory"] = index_memory
        self.shown = _described(self._root, self._place.names)
        """Where it is, for messages: nothing secret is in it."""

    @property
    def again(self) -> tuple[Any, dict[str, Any]]:
        """Source and options that make another such place, in another process, too."""
        return self._given, self._again

    def storage(self, opened: Contents | None) -> Storage:
        """Return a storage of the set's files, for one event loop; whoever opens it closes it.

        Args:
            opened: what is in the set, once that is known.
        """
        if opened is None:
            return self._plain_storage()
        storage = self._plain_storage(opened)
        if opened.packed:
            storage = self._unpacked(storage, opened.packed)
        return Lost(storage, opened.lost) if opened.lost else storage

    def away(self, opened: Contents) -> Away:
        """Return what opens the set's files elsewhere.

        Raises:
            ConfigError: nothing does.
        """
        if self._storage is not None:
            raise ConfigError(
                "remote_reads needs a set in a folder or at an address that workers can get at, and not a "
                f"storage of this process ({self.shown})"
            )
        if opened.packed:
            raise ConfigError(
                f"remote_reads cannot read shards that are compressed as a whole ({self.shown}), which are "
                "unpacked on the loader's machine; leave it out, or unpack them"
            )
        if self.remote is None:
            return Away(str(Path(self._place.root).absolute()), None, {}, opened.lost)
        options = asdict(self.remote.options)
        return Away(self._place.root, options, self.remote.pins.known(), opened.lost)

    async def open(self, opening: Opening) -> Contents:
        """Return what is in the set.

        Raises:
            ConfigError: there is no set, or it does not go with what is wanted of it.
            ShardError: it is damaged, or nothing that is read here.
            StorageError: the storage failed.
        """
        self._place = looked_up(self._asked) if self._storage is None else self._asked
        storage = self._plain_storage()
        try:
            if self.remote is not None:
                self._place = await matched(storage, self._asked, self.shown)
            own = await self._own(storage)
            if own is not None:
                if opening.fields is not None:
                    raise ConfigError(f"{self.shown} knows its fields; leave `fields` out")
                return own
            document, wids = await self._find_document(storage)
            if wids is not None:
                storage = await self._follow(wids, storage)
            names = self._place.names
            if names is None:
                names = () if document is not None else await list_shards(storage, self.shown)
            foreign = Foreign(names, self.shown, self.identity, self._folder(), document)
            contents = await open_foreign(foreign, storage, self._unpacked, opening)
            if wids is not None:
                wids.compare(contents.index)
            return contents
        finally:
            await close(storage)

    @property
    def _root(self) -> str:
        return self._place.root if self.remote is None else self.remote.shown

    async def _own(self, storage: Storage) -> Contents | None:
        """Return what is in a set of the own format; None where there is none."""
        if self._place.names not in (None, (MANIFEST_NAME,)):
            return None
        root = self._root
        try:
            head = await read(storage, MANIFEST_NAME)
        except NotFoundError:
            return None
        manifest = Manifest.parse(head, _join(root, MANIFEST_NAME))
        index = await self._index(storage, manifest, _join(root, INDEX_NAME))
        return Contents("aioload", manifest.format, manifest.fields, {}, index, manifest.metadata)

    async def _index(self, storage: Storage, manifest: Manifest, where: str) -> Index:
        """Return the index of a set of the own format: in memory, or in parts if it would take too much."""
        room = self._index_memory
        if isinstance(room, str):
            room = min(_INDEX_MEMORY, available_memory() // _MEMORY_SHARE // local_world_size())
        if manifest.index_bytes <= room:
            return parse_index(await read(storage, INDEX_NAME), manifest, where)
        # a disk of this machine answers while plans are made; whatever else there is might not
        if isinstance(storage, LocalStorage) and is_local(storage.path(INDEX_NAME)):
            pages = Pages(storage.path(INDEX_NAME), room, where)
        else:
            pages = await self._brought(storage, manifest, room, where)
        steps = open_index(pages, manifest)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                index: Index = end.value
                return index
            await anyio.lowlevel.checkpoint()

    async def _brought(self, storage: Storage, manifest: Manifest, room: int, where: str) -> Pages:
        """Bring the index to this disk, once for all processes, and open it there."""
        plain = Packed("plain", size=manifest.index_bytes, hashes={"crc32c": f"{manifest.index_crc32c:08x}"})
        here = self._unpacked(Lent(storage), {INDEX_NAME: plain})
        try:
            return Pages(await here.unpack(INDEX_NAME), room, where)
        finally:
            await here.aclose()

    async def _find_document(self, storage: Storage) -> tuple[bytes | None, Wids | None]:
        """Return the index of an MDS folder, or the wids index of archives, where there is one."""
        names = self._place.names
        if names is not None and not (len(names) == 1 and names[0].lower().endswith(".json")):
            return None, None
        name = MDS_INDEX if names is None else names[0]
        try:
            document = await read(storage, name)
        except NotFoundError:
            if names is not None:
                raise
            return None, None
        wids = parse_wids(document, _join(self._root, name))
        if wids is not None:
            return None, wids
        if name != MDS_INDEX:
            raise ShardError(f"{self.shown} is no wids index; give shards, or their folder", shard=name)
        self._place = Place(self._place.root)
        return document, None

    async def _follow(self, wids: Wids, storage: Storage) -> Storage:
        """Go to the shards that an index names; return a storage of them, in place of the other."""
        place = wids.place(self._place)
        if place.root == self._place.root:
            self._place = place
            return storage
        if self._storage is not None:
            raise ConfigError(
                f"{wids.where} names addresses, which {self.shown} cannot read; give them as a list"
            )
        await close(storage)
        self._asked = self._place = place
        self.remote = Remote(place.root, *self._options)
        return self._plain_storage()

    def _folder(self) -> Path | None:
        """Return the folder on this machine, if it is one."""
        return None if self.remote or self._storage is not None else Path(self._place.root).absolute()

    @property
    def identity(self) -> str | None:
        """What tells this place from all others, also in other processes; None: nothing does."""
        folder = self._folder()
        if folder is not None:
            return str(folder)
        if self.remote is not None:
            return self.remote.key("")
        text = repr(self._storage)
        return text if hasattr(self._storage, "version") and " at 0x" not in text else None

    def _plain_storage(self, opened: Contents | None = None) -> Storage:
        """Return a storage of the files as they lie there; what is cached is known by what is in them."""
        if self.remote is not None:
            if opened is None:
                return self.remote.open()
            versions, fingerprint = opened.versions, opened.index.fingerprint()
            return self.remote.open(
                lambda name: versions.get(name, fingerprint),
                checked=opened.index.sums is not None,
                passed={packed.name or name for name, packed in opened.packed.items()},  # kept unpacked
            )
        return LocalStorage(self._place.root) if self._storage is None else Lent(self._storage)

    def _unpacked(self, storage: Storage, packed: Mapping[str, Packed]) -> Unpacked:
        """Return a storage around one that holds shards which are compressed as a whole."""
        folder = self.remote.folder if self.remote is not None else None
        root = self.identity or self._token  # what cannot be told apart is not found again
        key = self.remote.key if self.remote is not None else partial(_join, root)
        limit = self.remote.cache_bytes if self.remote is not None else None
        return Unpacked(storage, folder or default_cache_folder(), packed.get, key, limit_bytes=limit)


def _options_of(remote: Remote, cache_dir: Any, cache_bytes: int | str | None) -> dict[str, Any]:
    return {
        "storage_options": asdict(remote.options),
        "cache_dir": cache_dir if cache_dir is True else remote.folder,
        "cache_bytes": cache_bytes,
    }


def _described(root: str, names: Sequence[str] | None) -> str:
    if names is None:
        return root
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return _join(root, names[0]) + more


def _join(folder: str, name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118 - the first may be the description of a storage
