"""Heads of answers are taken apart, and nothing that is not well-formed is believed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from aioload.storage.answers import Head, retry_after, same_tag

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def head(status: int, **headers: str) -> Head:
    """A head with headers named as Python names things."""
    return Head.of(status, CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()}))


def test_a_part_says_which_it_is() -> None:
    """All that a usual answer tells."""
    found = head(
        206,
        content_range="bytes 5-9/20",
        content_length="5",
        etag='"x"',
        last_modified="never looked at",
        content_type="Text/HTML; charset=utf-8",
        content_encoding="identity",
    )

    assert found == Head(206, 5, 5, 10, 20, '"x"', None, "text/html")


@pytest.mark.parametrize("place", ["bytes=0-3/4", "BYTES 0-3/4", " bytes 0-3/4 "])
def test_parts_of_careless_servers_are_understood(place: str) -> None:
    """What can have only one meaning."""
    found = head(206, content_range=place)

    assert (found.start, found.stop, found.size) == (0, 4, 4)


@pytest.mark.parametrize(
    "place",
    [
        *("", "bytes", "bytes 0-3", "bytes 3-2/4", "bytes 0-4/4", "bytes -4/4", "bytes 0-/4", "items 0-3/4"),
        *(
            "bytes 0-3/-4",
            "bytes \u0660-\u0663/\u0664",
            "bytes 0-3/4, bytes 0-1/4",
            "bytes 0-9999999999999999999/*",
        ),
        *("bytes */4", "bytes +0-3/4", "bytes 0-3/4x"),
    ],
)
def test_parts_that_make_no_sense_are_none(place: str) -> None:
    """Neither start nor size is taken from them."""
    found = head(206, content_range=place)

    assert (found.start, found.stop, found.size) == (None, None, None)


def test_a_part_of_unknown_size_is_a_part() -> None:
    """A star stands for a size that the server does not know."""
    found = head(206, content_range="bytes 0-3/*")

    assert (found.start, found.stop, found.size) == (0, 4, None)


def test_places_count_only_where_they_belong() -> None:
    """A whole file with a Content-Range is a whole file, and a range beyond the end tells the size."""
    assert head(200, content_range="bytes 0-3/4").start is None
    assert head(416, content_range="bytes */4").size == 4
    assert head(416, content_range="bytes 0-3/4").size is None


@pytest.mark.parametrize("length", ["", "-1", "1.5", "0x10", "1 2", "9" * 30])
def test_lengths_that_are_none(length: str) -> None:
    """They are not known."""
    assert head(200, content_length=length).length is None


def test_the_date_of_a_change_is_a_tag_where_there_is_no_other() -> None:
    """And where there is neither, there is none."""
    assert head(200, last_modified="Thu, 29 Feb 2024 12:00:00 GMT").tag == "Thu, 29 Feb 2024 12:00:00 GMT"
    assert head(200).tag is None


@pytest.mark.parametrize(("encoding", "seen"), [("identity", None), ("aws-chunked", None), ("GZIP", "gzip")])
def test_encodings_are_seen(encoding: str, seen: str | None) -> None:
    """But for those that leave the bytes as they are."""
    assert head(200, content_encoding=encoding).encoding == seen


PLACES = st.from_regex(r"bytes \d{1,3}-\d{1,3}/(\d{1,3}|\*)", fullmatch=True) | st.text()


@given(
    st.sampled_from([200, 206, 416]),
    st.fixed_dictionaries(
        {}, optional={"Content-Range": PLACES, "Content-Length": st.text(), "ETag": st.text()}
    ),
)
def test_no_head_is_an_error(status: int, headers: dict[str, str]) -> None:
    """Whatever a server sends, ranges that come out of it are ranges."""
    found = Head.of(status, CIMultiDict(headers))

    assert (found.start is None) == (found.stop is None)
    assert found.start is None or 0 <= found.start < found.stop <= (found.size or found.stop)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ('"a"', '"a"', True),
        ('"a"', 'W/"a"', True),
        ('"a"', '"b"', False),
        ('W/"a"', 'W/"b"', False),
        ("Monday", "Tuesday", False),
        ('"a"', None, True),
        (None, '"a"', True),
        ('"a"', "Monday", True),
    ],
)
def test_tags_are_compared_where_they_can_be(before: str | None, now: str | None, same: bool) -> None:
    """A tag that is missing or of another kind says nothing."""
    assert same_tag(before, now) is same


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"Retry-After": "Thu, 29 Feb 2024 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "Thu, 29 Feb 2024 11:00:00 GMT"}, 0.0),
        (
            {"Retry-After": "Fri, 01 Mar 2024 08:00:09 GMT", "Date": "Fri, 01 Mar 2024 08:00:00 GMT"},
            9.0,
        ),
        ({"Retry-After": "Thu, 29 Feb 2024 12:00:30 -0000"}, 30.0),
        ({}, None),
        *(({"Retry-After": text}, None) for text in ("", "-1", "soon", "nan", "inf", "1e9", "9" * 20)),
        ({"Retry-After": "Thu, 99 Feb 2024 12:00:30 GMT"}, None),
    ],
)
def test_the_wait_that_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds or a date, which is measured by the server's own clock; nonsense is no wait."""
    assert retry_after(CIMultiDict(headers), NOON) == seconds


@given(st.text())
def test_any_text_is_a_wait_or_none(text: str) -> None:
    """No header makes an error, or a wait that is not a number."""
    seconds = retry_after({"Retry-After": text}, NOON)

    assert seconds is None or seconds >= 0
