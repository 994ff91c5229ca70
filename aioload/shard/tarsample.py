"""One sample of a WebDataset archive: its files, as they lie with their headers in some bytes.

The key is everything up to the first dot after the last slash; the rest, in lower case, is the field. Names
without a dot there, or that begin with one, belong to no sample. The last sample in the bytes is the one that
is meant: others lie before it only where it has a hard link to a file of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import ShardError
from .scan import run
from .tarheader import BadMember, Member, member_at, ordinary, padded
from .tarsparse import assemble

__all__ = ["Sample", "plain_path", "sample_name", "shown", "split"]


@dataclass(slots=True)
class Sample:
    """A sample's files."""

    key: bytes = b""
    """Its key, as the archive has it."""
    views: dict[str, memoryview] = field(default_factory=dict)
    """The bytes of each field that is wanted."""
    others: list[str] = field(default_factory=list)
    """Names of the fields that are not."""


def split(record: memoryview, wanted: frozenset[str] | None = None) -> Sample:
    """Return the sample that some bytes hold; its bytes are views of them, but for sparse files.

    Args:
        record: the files with their headers.
        wanted: names of fields; None: all.

    Raises:
        ShardError: something in them is damaged or cut, a field is there twice, or a wanted one is a link
            to nothing in them.
    """
    # hot: once a record; guarded by benchmarks/index_tar.py
    at, size, sample = 0, len(record), Sample()
    odd: dict[str, Member] = {}  # fields whose bytes are not simply there

    while at < size:
        member = None
        simple = ordinary(record, at)
        if simple is not None and simple[1] + simple[2] <= size:
            name, start, length = simple
            stop = start + length
            at = start + padded(length)
        else:
            member = _member(record, at)
            name, start, stop, at = member.name, member.data_start, member.data_stop, member.stop

        parts = sample_name(name)
        if parts is None or (member is not None and member.kind == "other"):
            continue
        if parts[0] != sample.key:
            sample, odd = Sample(parts[0]), {}

        suffix = parts[1].decode("utf-8", "backslashreplace")
        if suffix in sample.views or suffix in sample.others:
            raise _broken(sample.key, f"{shown(name)} gives the sample its field {suffix!r} twice")
        if wanted is not None and suffix not in wanted:
            sample.others.append(suffix)
            continue
        sample.views[suffix] = record[start:stop]
        if member is not None and (member.kind != "file" or member.sparse is not None):
            odd[suffix] = member

    for suffix, member in odd.items():
        sample.views[suffix] = _content(record, member, sample.key)
    return sample


def sample_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Return key and field of a path, or None where it belongs to no sample."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot <= base or dot + 1 == len(name):
        return None
    suffix = name[dot + 1 :]
    if suffix.isascii():
        return name[:dot], suffix.lower()
    return name[:dot], suffix.decode(errors="surrogateescape").lower().encode(errors="surrogateescape")


def shown(name: bytes) -> str:
    """Return a path as text; bytes that are no UTF-8 are written as escapes."""
    return name.decode("utf-8", "backslashreplace")


def plain_path(path: bytes) -> bytes:
    """Return a path as links and members are compared: `./a` is `a`."""
    return path.removeprefix(b"./")


def _member(record: memoryview, at: int) -> Member:
    """Return the member whose headers begin at a byte."""
    try:
        member = run(member_at(at, len(record)), lambda start, stop: record[start:stop])
    except BadMember as error:
        where = shown(error.member.name) if error.member else f"byte {error.offset} of the record"
        raise ShardError(
            f"{error} ({where}): the archive is cut short or damaged here, and {len(record) - at:,} bytes of "
            "it or more are lost; restore it, or leave out what is bad (on_error='skip', `aioload pack "
            "--skip-bad`)"
        ) from error
    if member is None:
        raise ShardError(
            f"zeros where a header should be (byte {at} of the record): damage, several archives put "
            "together by `cat`, or an old index; restore the archive, or leave out what is bad"
        )
    return member


def _content(record: memoryview, member: Member, key: bytes) -> memoryview:
    """Return the bytes of a member that is a link or sparse."""
    name, link = shown(member.name), shown(member.link)
    if member.kind == "symlink":
        raise _broken(key, f"{name} is a symbolic link to {link}: only bytes in the archive are read")

    origin = _origin(record, member)
    if origin is None:
        raise _broken(key, f"{name} is a hard link to {link}, which is no file before it in the archive")
    stored = record[origin.data_start : origin.data_stop]
    try:
        return stored if origin.sparse is None else assemble(origin.sparse, stored)
    except ValueError as error:
        raise _broken(key, f"{name} cannot be put together: {error}") from error


def _origin(record: memoryview, member: Member) -> Member | None:
    """Return the file whose bytes a member has: itself, or what a link leads to."""
    if member.kind == "file":
        return member
    origins: dict[bytes, Member | None] = {}
    for each in _members(record[: member.start]):
        linked = each.kind == "link"
        origin = origins.get(plain_path(each.link)) if linked else each
        origins[plain_path(each.name)] = origin if origin is not None and origin.kind == "file" else None
    return origins.get(plain_path(member.link))


def _members(record: memoryview) -> Iterator[Member]:
    at = 0
    while at < len(record):
        member = _member(record, at)
        yield member
        at = member.stop


def _broken(key: bytes, what: str) -> ShardError:
    return ShardError(
        f"{what} (sample {shown(key)!r}); write the archive anew, or pass on_error='skip'", key=shown(key)
    )
