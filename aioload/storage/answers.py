"""What the head of an HTTP answer tells of a file: pure, and believing nothing that is not well-formed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["GATEWAY", "PLAIN", "THROTTLED", "TRIED_AGAIN", "Head", "retry_after", "same_tag"]

THROTTLED = frozenset({429, 503})
"""Statuses of a server that asks for less."""
GATEWAY = frozenset({502, 504})
"""Statuses of a gateway that could not reach the server behind it."""
TRIED_AGAIN = frozenset({408, 429})
"""Statuses from 400 to 499 that may pass."""
PLAIN = ("", "identity", "aws-chunked")
"""Encodings that are none; the last was taken off by the server, which forgot to say so."""

_NUMBER = r"\d{1,18}"  # no file is longer, and any sum of two of them is one that systems can take
_LENGTH = re.compile(_NUMBER, re.ASCII)
_PART = re.compile(rf"bytes[ =]({_NUMBER})-({_NUMBER})/({_NUMBER}|\*)", re.ASCII | re.IGNORECASE)
_NO_PART = re.compile(rf"bytes[ =]\*/({_NUMBER})", re.ASCII | re.IGNORECASE)
_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an answer, as far as it is about bytes."""

    status: int
    """The server's status."""
    length: int | None
    """Bytes of the body."""
    start: int | None
    """First byte of the file that the body holds, of a part."""
    stop: int | None
    """The one after the last that it holds, of a part."""
    size: int | None
    """Bytes of the whole file, where the answer is about a part of it, or says that there is none such."""
    tag: str | None
    """What tells this content from another: the ETag, else when it was last changed."""
    encoding: str | None
    """How the bytes were encoded on their way, if they were."""
    kind: str
    """The type of the content, in small letters."""

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str]) -> Head:
        """Take the head of an answer apart.

        Args:
            status: of the answer.
            headers: to be asked by any case.
        """
        length = _LENGTH.fullmatch(headers.get("Content-Length", "").strip())
        place = headers.get("Content-Range", "").strip()
        start, stop, size = _part(place) if status == 206 else (None, None, None)
        missed = _NO_PART.fullmatch(place) if status == 416 else None
        encoding = headers.get("Content-Encoding", "").strip().lower()
        return cls(
            status=status,
            length=int(length[0]) if length else None,
            start=start,
            stop=stop,
            size=int(missed[1]) if missed else size,
            tag=headers.get("ETag", "").strip() or headers.get("Last-Modified", "").strip() or None,
            encoding=None if encoding in PLAIN else encoding,
            kind=headers.get("Content-Type", "").partition(";")[0].strip().lower(),
        )


def same_tag(before: str | None, now: str | None) -> bool:
    """Whether two tags may be of the same content; those that cannot be compared may.

    A weak tag is made from a strong one on the way, so the mark is not compared. A server may leave out the
    tag of some answers; size and the sums of the format then are what is left.
    """
    if before is None or now is None or ('"' in before) != ('"' in now):
        return True
    return before.removeprefix("W/") == now.removeprefix("W/")


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that a server asks to wait, whether it says seconds or a date.

    Args:
        headers: to be asked by any case; a date is measured from the one that the answer was sent at.
        now: the time where the answer does not tell.
    """
    text = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    then = _date(text)
    if then is None:
        return None
    sent = _date(headers.get("Date", "")) or now or datetime.now(UTC)
    return max(0.0, (then - sent).total_seconds())


def _part(place: str) -> tuple[int | None, int | None, int | None]:
    """Return start, stop and size of a Content-Range; nothing where it makes no sense."""
    found = _PART.fullmatch(place)
    if found is None:
        return None, None, None
    start, stop = int(found[1]), int(found[2]) + 1
    size = None if found[3] == "*" else int(found[3])
    if start >= stop or (size is not None and stop > size):
        return None, None, None
    return start, stop, size


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
