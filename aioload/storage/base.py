"""What a storage is: names, sizes, and bytes read into memory that the caller owns."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..errors import ConfigError, ShardError

__all__ = [
    "Storage",
    "check_name",
    "check_range",
    "close",
    "ends_early",
    "folders",
    "listing",
    "miscounted",
    "read",
]

_BELIEVED = 64 << 20  # bytes that are set aside without asking whether the file is that long


@runtime_checkable
class Storage(Protocol):
    """A place that holds files under relative names, such as `train/shard-00003.aio`.

    A storage that holds something open has an `aclose()` besides, which is free to call twice; one that asks
    over a network may have `async get(name) -> bytes`, which brings all of a small file at once. All methods
    may be called many times at once; one that lets reads wait for each other tells in `max_reads` how many
    can be under way, in `first_reads` how many should be, and in `max_read_bytes` how long one may be.
    """

    async def size(self, name: str) -> int:
        """Return the bytes of a file.

        Raises:
            NotFoundError: there is no such file.
            StorageError: the storage did not answer as it should.
        """
        ...

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on.

        A cancelled read does not write to `out` after it has returned. Where that cannot be promised (a
        thread stuck in the kernel), the storage keeps a reference to `out` while it may be written to.

        Raises:
            NotFoundError: there is no such file.
            ShardError: the file ends before `out` is full; `.shard` and `.offset` say where.
            StorageError: the storage did not answer as it should.
        """
        ...


async def read(storage: Storage, name: str, start: int = 0, stop: int | None = None) -> bytes:
    """Return bytes `start` to `stop` of a file, by default to its end; for small things, as it copies.

    A whole file is asked for at once where the storage can do that (`get`), and else by its size first.
    """
    if start == 0 and stop is None and hasattr(storage, "get"):
        return bytes(await storage.get(name))
    if stop is None:
        size = await storage.size(name)
        if start > size:
            raise ends_early(name, size, start)
        stop = size
    if stop < start:
        raise ValueError(f"stop must not be before start, got {start} to {stop}")
    if stop - start > _BELIEVED and (size := await storage.size(name)) < stop:
        raise ends_early(name, size, stop)

    buffer = bytearray(stop - start)
    await storage.read_into(name, start, memoryview(buffer))
    return bytes(buffer)


async def listing(storage: Storage) -> list[str]:
    """Return the names of the files in a storage, not of those in folders within.

    Raises:
        ConfigError: it is one that cannot list, such as a web server.
    """
    names = getattr(storage, "listing", None)
    if names is None:
        raise ConfigError(
            f"{storage!r} cannot list its files; name the shards, as in 'https://host/train-{{000..099}}.tar'"
        )
    found: list[str] = await names()
    return found


async def folders(storage: Storage) -> list[str]:
    """Return the names of the folders in a storage; none where it is one that does not tell."""
    names = getattr(storage, "folders", None)
    found: list[str] = [] if names is None else await names()
    return found


async def close(storage: Storage) -> None:
    """Close a storage, if it holds anything open."""
    aclose = getattr(storage, "aclose", None)
    if aclose is not None:
        await aclose()


def check_name(name: str) -> None:
    """Refuse a name that could lead out of the storage, with a ConfigError."""
    if name in ("", ".") or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise ConfigError(
            f"{name!r} is not a file name inside a storage; names are relative and without '..', "
            "such as 'train/shard-00003.aio'",
            shard=name,
        )


def check_range(start: int, out: memoryview) -> memoryview:
    """Refuse a negative start, and return `out` as plain bytes."""
    if start < 0:
        raise ValueError(f"start must not be negative, got {start}")
    return out if out.format == "B" and out.ndim == 1 else out.cast("B")  # cast refuses what is empty


def ends_early(name: str, size: int, stop: int) -> ShardError:
    """Make the error of a file that is shorter than it should be."""
    return ShardError(
        f"{name} ends at byte {size}, but should go on to byte {stop}; it was cut short: copy it again",
        shard=name,
        offset=size,
    )


def miscounted(came: int, wanted: int) -> str:
    """Say that a server sent another number of bytes than it was asked for."""
    return f"{came} bytes came where {wanted} were asked for; the server, or something between, counts wrong"
