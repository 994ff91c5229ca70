"""The head of a JPEG file: what must be known before its pixels are decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Head", "exif_orientation", "read_head"]

_ORIENTATION = 0x0112
_SOF0, _SOF1, _SOF2, _SOS, _DRI, _APP1 = 0xC0, 0xC1, 0xC2, 0xDA, 0xDD, 0xE1
# tables, application data and comments: nothing in them that decides which decoder can take the file
_PASSED = {0xC4, 0xDB, 0xFE, *range(0xE0, 0xF0)}


@dataclass(frozen=True, slots=True)
class Head:
    """What the head of a plain JPEG says: 8 bits, Huffman codes, gray or three colours."""

    width: int
    """Columns, as stored."""
    height: int
    """Rows, as stored."""
    orientation: int
    """The EXIF orientation, 1 where there is none."""
    height_at: int | None
    """Where the height stands, in two bytes; None unless all rows are in one stream, from top to bottom."""


def read_head(data: bytes | memoryview) -> Head | None:
    """Walk over the segments up to the first scan; None for whatever is not plain.

    Nothing is said about damage: a file that is odd in any way is another decoder's to judge.
    """
    # hot: once per picture
    if bytes(data[:2]) != b"\xff\xd8":
        return None
    place, end = 2, len(data) - 9
    frame = orientation = None
    restarts = False
    while place < end and data[place] == 0xFF:
        marker, size = data[place + 1], data[place + 2] << 8 | data[place + 3]
        if marker == _SOS:
            break
        if _SOF0 <= marker <= _SOF2 and frame is None:
            frame = place
        elif marker == _DRI:
            restarts = True
        elif marker not in _PASSED:
            return None
        elif marker == _APP1 and data[place + 4 : place + 10] == b"Exif\0\0":
            if orientation is not None:
                return None  # tags in several segments
            orientation = exif_orientation(bytes(data[place + 4 : place + 2 + size]))
        place += 2 + size
    else:
        return None

    if frame is None or data[frame + 4] != 8 or data[frame + 9] not in (1, 3):
        return None
    height, width = data[frame + 5] << 8 | data[frame + 6], data[frame + 7] << 8 | data[frame + 8]
    if not height or not width:
        return None
    one_stream = data[frame + 1] != _SOF2 and data[place + 4] == data[frame + 9] and not restarts
    return Head(width, height, orientation or 1, frame + 5 if one_stream else None)


def exif_orientation(exif: bytes) -> int:
    """Read one tag, and none of the others: Pillow's parser reads all, and warns of damage in any."""
    tags = exif.removeprefix(b"Exif\0\0")
    order: Literal["little", "big"] = "little" if tags[:2] == b"II" else "big"
    entry = int.from_bytes(tags[4:8], order) + 2
    count = int.from_bytes(tags[entry - 2 : entry], order)
    for start in range(entry, min(entry + 12 * count, len(tags) - 11), 12):
        if int.from_bytes(tags[start : start + 2], order) == _ORIENTATION:
            is_long = int.from_bytes(tags[start + 2 : start + 4], order) == 4
            return int.from_bytes(tags[start + 8 : start + (12 if is_long else 10)], order)
    return 1
