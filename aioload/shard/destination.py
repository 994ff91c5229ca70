"""What a writer needs of the place it writes to, be it a folder or a bucket."""

from __future__ import annotations

from typing import BinaryIO, Protocol

from ..errors import StorageError

__all__ = ["Destination"]


class Destination(Protocol):
    """Files that get their names when all their bytes are safe. The methods raise OSError."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What an earlier writer had left here, and what became of it, in a sentence each."""

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet; closing it by itself gives it up."""

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name, once its bytes are safe."""

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file."""

    def clear(self) -> None:
        """Take back what must not stay when the set is given up, as far as that is possible."""

    def close(self) -> None:
        """Let go of the place; twice is free."""

    def translated(self, error: OSError) -> StorageError:
        """Return a foreign error as ours."""
