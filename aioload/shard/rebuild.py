"""Rebuild: manifest and index made again from what each shard knows about itself."""

from __future__ import annotations

from ..errors import NotFoundError, ShardError
from .footer import Footer
from .format import shard_name
from .index import join_footers, make_manifest, render_index
from .manifest import Manifest
from .reader import Reader, read_footer, read_header, read_trailer

__all__ = ["rebuild"]


def rebuild(reader: Reader) -> tuple[Manifest, bytes]:
    """Make manifest and index again from the shards alone.

    Only the shards' ends are read; `verify` tells afterwards whether the records are whole.

    Returns:
        The manifest, and the bytes of the index file.

    Raises:
        ShardError: a shard is missing, damaged, or of another set.
        StorageError: the storage failed.
    """
    footers: list[Footer] = []
    sizes: list[int] = []

    while not footers or not footers[-1].last:
        number = len(footers)
        sizes.append(_size(reader, shard_name(number)))
        read_header(reader, number)
        footers.append(read_footer(reader, number, read_trailer(reader, number)))
        _check_alike(footers[-1], footers[0], shard_name(number))

    index = join_footers(footers, sizes)
    rendered = render_index(index)
    return make_manifest(index, rendered, footers[-1].metadata), rendered


def _size(reader: Reader, name: str) -> int:
    try:
        return reader.size(name)
    except NotFoundError as error:
        message = f"{name} is missing, and no shard before it is the last: never finished, or a part was lost"
        raise ShardError(message, shard=name) from error


def _check_alike(footer: Footer, first: Footer, name: str) -> None:
    if footer.fields != first.fields or [*footer.columns] != [*first.columns]:
        raise ShardError(
            f"{name} has the fields {footer.fields}, {shard_name(0)} {first.fields}: one is of another set",
            shard=name,
        )
