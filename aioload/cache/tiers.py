"""Tiers: where samples may be kept, as the user says it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..machine import parse_bytes

__all__ = ["Disk", "Memory", "Tiers"]


@dataclass(frozen=True, slots=True)
class Memory:
    """Keep samples in memory, one copy for all workers of a loader and for all ranks of the machine.

    It is taken as it fills, beside `memory_limit`, and no more of it than leaves the machine clear of swap.

    Args:
        limit: bytes for all ranks of this machine together, as a number or a text such as "4GiB".
        version: stands for the code of `prepare` and of your decoders in the name under which samples are
            kept. By default that name is made of the code itself.

    Raises:
        ConfigError: an option cannot be.
    """

    limit: int | str
    version: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", parse_bytes(self.limit, name="limit"))
        _check_version(self.version)

    @property
    def limit_bytes(self) -> int:
        """The limit as a number."""
        return int(self.limit)


@dataclass(frozen=True, slots=True)
class Disk:
    """Keep samples in a folder on a disk of this machine, which runs and ranks share.

    What other sets or other code have left there makes room, the least lately used first.

    Args:
        path: of the folder, which is made where it is not there.
        limit: bytes that it may take, as a number or a text such as "200GiB".
        version: as in `Memory`.

    Raises:
        ConfigError: an option cannot be.
    """

    path: str | os.PathLike[str]
    limit: int | str
    version: str | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "path", os.fspath(self.path))
        except TypeError as error:
            raise ConfigError(f"path must be a folder, got {self.path!r}") from error
        if not self.path:
            raise ConfigError("path must be a folder, got an empty text")
        object.__setattr__(self, "limit", parse_bytes(self.limit, name="limit"))
        _check_version(self.version)

    @property
    def limit_bytes(self) -> int:
        """The limit as a number."""
        return int(self.limit)

    @property
    def folder(self) -> Path:
        """The folder, wherever the program goes."""
        return Path(self.path).expanduser().absolute()


@dataclass(frozen=True, slots=True)
class Tiers:
    """What is kept where: memory first, and the rest on the disk."""

    memory: Memory | None = None
    """None: nothing in memory."""
    disk: Disk | None = None
    """None: nothing on a disk."""

    @classmethod
    def of(cls, cache: Any) -> Tiers | None:
        """Return the tiers that an option means; None for no cache.

        Raises:
            ConfigError: it means none.
        """
        if cache is None:
            return None
        given = cache if isinstance(cache, tuple | list) else (cache,)
        kinds = [type(tier) for tier in given]
        if kinds not in ([Memory], [Disk], [Memory, Disk]):
            raise ConfigError(
                "cache must be aioload.cache.Memory(limit), aioload.cache.Disk(path, limit), or both as "
                f"(Memory(…), Disk(…)); got {cache!r}"
            )
        found = cls(**{kind.__name__.lower(): tier for kind, tier in zip(kinds, given, strict=True)})
        if found.memory is not None and found.disk is not None:
            versions = {found.memory.version, found.disk.version} - {None}
            if len(versions) > 1:
                raise ConfigError(f"both tiers keep the same samples, but have the versions {versions}")
        return found

    @property
    def version(self) -> str | None:
        """What stands for the user's code; None: the code itself."""
        given = [tier.version for tier in (self.memory, self.disk) if tier is not None]
        return next((version for version in given if version is not None), None)


def _check_version(version: Any) -> None:
    if version is not None and not (isinstance(version, str) and version):
        raise ConfigError(f"version must be a text, got {version!r}")
