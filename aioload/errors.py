"""Errors: who must act, and every fact about what happened as an attribute."""

from __future__ import annotations

from typing import Any

__all__ = [
    "AioloadError",
    "ClosedError",
    "ConfigError",
    "NotFoundError",
    "SampleError",
    "ShardError",
    "StorageError",
    "WorkerError",
]


class AioloadError(Exception):
    """Parent of every error this library raises.

    Args:
        message: what went wrong, where, and what to do about it.
        facts: whatever is known, by name (`shard`, `record`, `key`, `field`, `offset`, `attempts`, …). Each
            becomes an attribute; names that were not given read as None. Values must be plain, since errors
            travel between processes; secrets are never among them.
    """

    shard: str | None = None
    record: int | None = None
    key: str | None = None
    field: str | None = None
    offset: int | None = None
    attempts: int | None = None
    step: int | None = None
    cause: str | None = None

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.facts, getattr(self, "__notes__", None))


class ConfigError(AioloadError, ValueError):
    """An option, or a combination of them, cannot work; raised before any process starts."""

    final = True


class ShardError(AioloadError):
    """Stored bytes are not what they should be: damaged, cut short, or of another format."""

    final = True


class StorageError(AioloadError, OSError):
    """The place where the bytes are did not answer as it should."""

    status: int | None = None
    """The server's status."""
    filled: int = 0
    """Bytes at the beginning of what was asked for that are right already."""
    retry_after: float | None = None
    """Seconds that the server asks to wait before the next attempt."""
    throttled: bool = False
    """Whether the server asks for less (429, 503)."""
    unreachable: bool = False
    """Whether no connection could be made, by us or by a gateway on the way."""
    final: bool = False
    """Whether another attempt would end the same way."""
    before: str | None = None
    """The tag of the file when it was opened, where it has changed."""
    now: str | None = None
    """Its tag now."""

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would print an errno tuple


class NotFoundError(StorageError, FileNotFoundError):
    """A file or object that was named does not exist."""

    final = True


class SampleError(AioloadError):
    """Decode, transform or collate failed on a sample; the worker's traceback is in `.cause`."""


class WorkerError(AioloadError):
    """A worker process died, could not start, or did not answer."""


class ClosedError(AioloadError):
    """The loader, or this iterator of it, has been closed."""

    final = True


def _rebuild(
    kind: type[AioloadError], message: str, facts: dict[str, Any], notes: list[str] | None
) -> AioloadError:
    """Make an error again on the other side of a process border."""
    error = kind(message, **facts)
    for note in notes or ():
        error.add_note(note)
    return error
