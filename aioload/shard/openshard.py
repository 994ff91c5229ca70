"""Open shard: a shard that is being written, record by record (FORMAT.md, section 3)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO, Protocol

import numpy as np

from ..errors import SampleError
from .footer import Footer
from .format import DATA_START, FORMAT_VERSION, SHARD_HEADER, Chunk, NativeFormat, crc32c, shard_name
from .kinds import KEY_NAME, encode

__all__ = ["Files", "OpenShard", "encoded"]


class Files(Protocol):
    """Files that get their names when all their bytes are safe. The methods raise OSError."""

    def begin(self, name: str) -> BinaryIO:
        """Open a file that is not there under its name yet."""

    def finish(self, file: BinaryIO, name: str) -> None:
        """Close the file and give it its name, once its bytes are safe."""


# hot: once per record
def encoded(form: NativeFormat, sample: Mapping[str, Any], key: Any) -> dict[str, bytes | memoryview]:
    """Return the bytes of a sample's values.

    Args:
        form: of the records.
        sample: a value for each field; its own key is passed over.
        key: of the record; the empty text, or None, is no key.

    Raises:
        SampleError: a field is missing, or unknown, or its value does not fit; or the key is no text.
    """
    if key is not None and not isinstance(key, str):
        raise SampleError(f"a key is text, got {type(key).__qualname__}")

    names = dict(form.fields).keys()
    if sample.keys() - {KEY_NAME} != names:
        raise SampleError(
            f"it has the fields {list(sample)}, the set has {sorted(names)}: each needs a value"
        )

    return {name: encode(kind, sample[name], name) for name, kind in form.fields}


class OpenShard:
    """A shard that is being written, and what its footer will say."""

    def __init__(self, folder: Files, number: int, empty: Footer) -> None:
        self.ends = array("Q")
        self.data_bytes = 0
        self._sums = array("I")
        self._columns = [bytearray() for _ in empty.columns]
        self._folder = folder
        self._number = number
        self._empty = empty
        self._file: BinaryIO = folder.begin(shard_name(number))
        self._file.write(SHARD_HEADER.pack(version=FORMAT_VERSION, shard=number, fields=len(empty.fields)))

    # hot: once per record
    def append(self, chunks: Sequence[Chunk], size: int, columns: Sequence[Chunk]) -> None:
        """Write a record; `columns` are its values for the index, as they stand in the record."""
        for chunk in chunks:
            self._file.write(chunk)

        self.data_bytes += size
        self.ends.append(self.data_bytes)
        self._sums.append(crc32c(*chunks))
        for column, value in zip(self._columns, columns, strict=True):
            column += value

    def footer(self, *, last: bool, metadata: Any) -> Footer:
        """Return what is known about the records."""
        columns = zip(self._empty.columns.items(), self._columns, strict=True)
        return replace(
            self._empty,
            ends=np.frombuffer(self.ends, np.uint64),
            sums=np.frombuffer(self._sums, np.uint32),
            columns={name: np.frombuffer(data, like.dtype) for (name, like), data in columns},
            last=last,
            metadata=metadata,
        )

    def finish(self, footer: Footer) -> int:
        """Write the footer, give the file its name, and return its size."""
        tail = footer.render(self._number)
        self._file.write(tail)
        self._folder.finish(self._file, shard_name(self._number))
        return DATA_START + self.data_bytes + len(tail)

    def discard(self) -> None:
        """Close the file, whatever it still holds back."""
        with suppress(OSError):  # a full disk fails the last flush as well; the file is removed next
            self._file.close()
