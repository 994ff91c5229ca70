"""`tf.train.Example` and `SequenceExample`: named features in the bytes of a record, as views of it.

Read as protobuf does: the last entry of a name is the one that counts, members that are unknown are passed
over, and a feature whose kind is said twice is the sum of both where the kinds agree, else the last.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

from .kinds import KEY_NAME, Fields
from .wire import Malformed, byte_strings, floats, int64s, other_form, sole, walk

__all__ = ["ENCODINGS", "LIST_KINDS", "PAYLOADS", "Payload", "entries", "feature_list", "learn", "sniff"]

Payload = Literal["example", "sequence", "bytes"]
PAYLOADS: tuple[Payload, ...] = ("example", "sequence", "bytes")

# tags of members that hold messages or bytes
_FIRST, _SECOND, _THIRD = 0x0A, 0x12, 0x1A

LIST_KINDS = {_FIRST: "bytes", _SECOND: "float", _THIRD: "int64"}
"""The kinds of a feature's list, by their tags."""

ENCODINGS = {
    "example:bytes": "bytes",
    "example:float": "ndarray",
    "example:int64": "ndarray",
    "example:list": "bytes",
    "example:list:bytes": "bytes",
    "example:list:float": "ndarray",
    "example:list:int64": "ndarray",
    "example:list:value": "bytes",
}
"""Encodings of fields, with the kind that goes with each.

Of a feature: its whole list. Of a feature list: by step, the whole list of each, or of each its only value,
which is bytes; where nothing is said, whatever each holds.
"""

_FEATURE: dict[int, Any] = {
    _FIRST: {_FIRST: None},
    _SECOND: {_FIRST: None, 0x0D: None},  # floats: packed, or one by one
    _THIRD: {_FIRST: None, 0x08: None},  # ints: the same
}
_FEATURES: dict[int, Any] = {_FIRST: {_FIRST: None, _SECOND: _FEATURE}}
_SEQUENCE: dict[int, Any] = {
    _FIRST: _FEATURES,
    _SECOND: {_FIRST: {_FIRST: None, _SECOND: {_FIRST: _FEATURE}}},
}

_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")


# hot: once per record in a worker
def entries(
    data: memoryview, wanted: Container[bytes] | None = None, *, lists: bool = False
) -> dict[bytes, memoryview]:
    """Return the features of an example, or of a sequence example's context, by name.

    Args:
        data: the whole message.
        wanted: names to look for; None: all.
        lists: return the feature lists of a sequence example instead.

    Raises:
        Malformed: the bytes are no such message.
    """
    found = {}
    outer = _SECOND if lists else _FIRST
    for tag, start, stop in walk(data, 0, len(data)):
        if tag == outer:
            for inner, first, last in walk(data, start, stop):
                if inner == _FIRST:
                    name, value = _entry(data, first, last)
                    if wanted is None or name in wanted:
                        found[name] = value
                elif inner >> 3 == 1:
                    raise other_form(inner, first)
        elif tag >> 3 == outer >> 3:
            raise other_form(tag, start)
    return found


# hot: once per field of a record in a worker
def feature_list(feature: memoryview) -> tuple[str, memoryview]:
    """Return the kind of a feature and the message of its list; no kind where the feature has none.

    Raises:
        Malformed: the bytes are no feature.
    """
    tag, start = sole(feature, 0, len(feature))
    if tag in LIST_KINDS:
        return LIST_KINDS[tag], feature[start:]

    kind, pieces = 0, list[memoryview]()
    for tag, start, stop in walk(feature, 0, len(feature)):
        if tag in LIST_KINDS:
            if tag != kind:
                kind, pieces = tag, []
            pieces.append(feature[start:stop])
        elif tag >> 3 <= 3:
            raise other_form(tag, start)
    return LIST_KINDS.get(kind, ""), _joined(pieces)


def sniff(data: memoryview) -> Payload | None:
    """Tell what the bytes of a record are; None where they are an example that holds no field.

    Strict: nothing unknown may be in an example, else it is bytes.
    """
    try:
        _check(data, 0, len(data), _SEQUENCE)
        lists = any(tag == _SECOND for tag, _, _ in walk(data, 0, len(data)))
        payload: Payload = "sequence" if lists else "example"
        fields, _ = learn(data, payload)
    except (Malformed, UnicodeDecodeError):
        return "bytes"
    return payload if fields else None


def learn(data: memoryview, payload: Payload) -> tuple[Fields, dict[str, str]]:
    """Return names and kinds of the fields of a record, and the encodings of those that have one.

    They come sorted by name, since protobuf writes maps in whatever order. Features without a kind, and those
    whose names cannot be a field's, are passed over.

    Raises:
        Malformed: the bytes are no such message.
        UnicodeDecodeError: a name is no text.
    """
    if payload == "bytes":
        return (("data", "bytes"),), {}

    kinds: dict[str, str] = {}
    encodings: dict[str, str] = {}
    found = {name: _learn_feature(feature) for name, feature in entries(data).items()}
    if payload == "sequence":
        # a name in both is the list's, since a list's field is looked for nowhere else
        found |= {name: ("", _learn_steps(value)) for name, value in entries(data, lists=True).items()}

    for raw, (kind, encoding) in sorted(found.items()):
        name = str(raw, "utf-8")
        if (kind or encoding) and name and name.isprintable() and name != KEY_NAME:
            kinds[name] = kind or ENCODINGS[encoding]
            if encoding:
                encodings[name] = encoding
    return tuple(kinds.items()), encodings


def _entry(data: memoryview, first: int, last: int) -> tuple[bytes, memoryview]:
    """Return name and value of one entry of a map."""
    if last - first > 2 and data[first] == _FIRST and data[first + 1] < 0x80:
        at = first + 2 + data[first + 1]
        tag, start = sole(data, at, last) if at < last else (0, 0)
        if tag == _SECOND:
            return bytes(data[first + 2 : at]), data[start:last]

    name, pieces = b"", list[memoryview]()
    for tag, start, stop in walk(data, first, last):
        if tag == _FIRST:
            name = bytes(data[start:stop])
        elif tag == _SECOND:
            pieces.append(data[start:stop])
        elif tag >> 3 <= 2:
            raise other_form(tag, start)
    return name, _joined(pieces)


def _joined(pieces: list[memoryview]) -> memoryview:
    """Return messages as the one that they are together: without a copy if there is only one."""
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def _check(data: memoryview, start: int, stop: int, shape: dict[int, Any]) -> None:
    """Raise where a message has a member that its shape has not; goes as deep as the shape does."""
    for tag, first, last in walk(data, start, stop):
        if tag not in shape:
            raise other_form(tag, first)
        if shape[tag] is not None:
            _check(data, first, last, shape[tag])


def _learn_feature(feature: memoryview) -> tuple[str, str]:
    """Return the kind of a field and its encoding, both empty if the feature holds nothing."""
    kind, message = feature_list(feature)
    if kind != "bytes":
        if kind:
            int64s(message) if kind == "int64" else floats(message)
        return "", f"example:{kind}" if kind else ""
    values = list(byte_strings(message))
    return ("image" if _is_image(values[0]) else "bytes", "") if len(values) == 1 else ("", "example:bytes")


def _learn_steps(message: memoryview) -> str:
    """Return the encoding of a feature list."""
    found = {feature_list(step)[0] for step in byte_strings(message)} - {""}
    if found == {"bytes"}:
        alone = all(
            sum(1 for _ in byte_strings(feature_list(step)[1])) == 1 for step in byte_strings(message)
        )
        return "example:list:value" if alone else "example:list:bytes"
    return f"example:list:{found.pop()}" if len(found) == 1 else "example:list"


def _is_image(data: memoryview) -> bool:
    head = bytes(data[:12])
    webp = head[:4] == b"RIFF" and head[8:] == b"WEBP"
    bmp = head[:2] == b"BM" and head[6:10] == bytes(4) and len(data) > 26  # two letters alone are too few
    return head.startswith(_IMAGES) or webp or bmp
