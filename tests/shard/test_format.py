"""FORMAT.md and the code say the same; a record that was cut up is put together again."""

from __future__ import annotations

import itertools
import mmap
import pickle
import re
from pathlib import Path

import numpy as np
import own_sets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ConfigError, SampleError, ShardError
from aioload.shard.footer import footer_bytes
from aioload.shard.format import (
    FORMAT_VERSION,
    INDEX_HEADER,
    INDEX_NAME,
    MANIFEST_NAME,
    MAX_PAYLOAD_BYTES,
    SHARD_HEADER,
    SHARD_TRAILER,
    Layout,
    NativeFormat,
    check_sum,
    crc32c,
    shard_name,
)
from aioload.shard.kinds import KINDS, MAX_FIELDS

PAGE = (Path(__file__).parents[2] / "FORMAT.md").read_text()
TYPES = {"u32": "I", "u64": "Q"}

records = st.tuples(st.none() | st.text(min_size=1), st.lists(st.binary(), min_size=1, max_size=5))


# The page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "layout"), [("3.1", SHARD_HEADER), ("3.4", SHARD_TRAILER), ("4.1", INDEX_HEADER)]
)
def test_page_describes_the_fixed_structures(section: str, layout: Layout) -> None:
    """Offset, size, type and name of each member are those of the structs, and so is the magic."""
    rows = _table(section)
    sizes = [int(row["size"]) for row in rows]

    members = tuple((row["name"].strip("`"), TYPES.get(row["type"], row["size"] + "s")) for row in rows)
    magic = next(row["meaning"] for row in rows if row["name"] == "`magic`")

    assert members == layout.members
    assert [int(row["offset"]) for row in rows] == list(itertools.accumulate(sizes, initial=0))[:-1]
    assert sum(sizes) == layout.size
    assert bytes.fromhex(magic[:23]) == layout.magic


@pytest.mark.parametrize(("n", "c", "d"), [(0, 0, 0), (1, 0, 5), (2, 1, 7), (3, 2, 90)])
def test_page_gives_the_size_of_a_footer(n: int, c: int, d: int) -> None:
    """The sections of the footer add up to the footer."""
    sizes = [eval(row["size"], {"n": n, "c": c, "d": d}) for row in _table("3.3")]

    assert sum(sizes) == footer_bytes(n, c, d)


def test_page_gives_the_size_and_order_of_the_index(tmp_path: Path) -> None:
    """The arrays of the index follow each other as the page has them, each at a multiple of 8."""
    rows = [{"a": i, "b": i / 2} for i in range(5)]
    files = own_sets.pack(
        tmp_path / "set",
        {"a": "int", "b": "float"},
        [(None, row) for row in rows],
        shard_bytes=250,
        index_fields=["a", "b"],
    )
    counts = {"n": 5, "s": len(files) - 2, "c": 2}

    sizes = [eval(row["size"], counts) for row in _table("4.2")]
    starts = dict(
        zip([row["name"] for row in _table("4.2")], itertools.accumulate(sizes, initial=40), strict=False)
    )
    sums = np.frombuffer(files[INDEX_NAME], "<u4", 5, starts["`sums`"])

    assert len(files) > 3
    assert sum(sizes) + 40 == len(files[INDEX_NAME])
    assert all(start % 8 == 0 for name, start in starts.items() if name != "`padding`")
    assert sums[0] == crc32c(files["shard-00000.aio"][24:52])


def test_page_names_kinds_files_limits_and_version() -> None:
    """The rest of what the page counts up is what the code has."""
    kinds = [row["kind"].strip("`") for row in _table("2.")]

    assert tuple(kinds) == KINDS
    assert f"1 to {MAX_FIELDS:,} fields" in PAGE
    assert f"{MAX_PAYLOAD_BYTES:,} bytes together" in PAGE
    assert f"file format, version {FORMAT_VERSION}\n" in PAGE
    assert all(f"`{name}`" in PAGE for name in (MANIFEST_NAME, INDEX_NAME, shard_name(0), shard_name(1)))


def test_page_shows_a_shard_as_it_is_written(tmp_path: Path) -> None:
    """The hex dump of section 7 is the file that the writer makes of the records told there."""
    records = [("a", {"text": "hi", "label": 3}), (None, {"text": "", "label": -1})]

    files = own_sets.pack(tmp_path / "set", {"text": "str", "label": "int"}, records, index_fields=["label"])

    assert _dump(files["shard-00000.aio"]) == PAGE.split("```\n")[1]


def test_page_says_how_the_manifest_ends(tmp_path: Path) -> None:
    """The last bytes of a manifest are those of section 5, and so is their number."""
    manifest = own_sets.pack(tmp_path / "set", {"a": "int"}, [])[MANIFEST_NAME]
    count, pattern = re.search(r"these (\d+) bytes.*: `(.*)`", PAGE).groups()  # type: ignore[union-attr] - it is there

    last = manifest[-int(count) :].decode()

    assert re.sub("[0-9a-f]{8}", "xxxxxxxx", last) == pattern.replace("\\n", "\n")


def test_page_names_the_sum(tmp_path: Path) -> None:
    """The sum of the nine digits is the one by which a CRC-32C is known."""
    assert crc32c(b"1234", memoryview(b"56"), np.frombuffer(b"789", np.uint8)) == 0xE3069283
    assert "0xE3069283" in PAGE


# Structures -------------------------------------------------------------------------------------------


@given(bit=st.integers(0, 8 * SHARD_TRAILER.size - 1))
def test_any_flipped_bit_of_a_fixed_structure_is_an_error(bit: int) -> None:
    """A sum of its own covers each of them."""
    data = SHARD_TRAILER.pack(footer_start=24, records=0, description_bytes=7, footer_crc32c=9, shard=3)

    assert SHARD_TRAILER.unpack(data, "x")["shard"] == 3
    with pytest.raises(ShardError, match="x"):
        SHARD_TRAILER.unpack(own_sets.flip(data, bit), "x", 100)


def test_other_versions_are_named() -> None:
    """What a newer aioload wrote is refused in a sentence that says so."""
    data = SHARD_HEADER.pack(version=2, shard=0, fields=1)

    with pytest.raises(ShardError, match=r"format version 2.*reads version 1.*upgrade"):
        SHARD_HEADER.unpack(data, "shard-00000.aio")


# Records ----------------------------------------------------------------------------------------------


@given(record=records)
def test_split_is_the_inverse_of_join(record: tuple[str | None, list[bytes]]) -> None:
    """Key and values of any size come back as they were."""
    key, values = record
    named = {f"f{i}": value for i, value in enumerate(values)}
    cut = NativeFormat(tuple((name, "bytes") for name in named))

    data = b"".join(cut.join(key, named))

    assert cut.split(memoryview(data)) == (key, named)


@given(record=records, garbage=st.binary(max_size=60))
def test_split_of_other_bytes_is_an_error_or_fits_exactly(
    record: tuple[str | None, list[bytes]], garbage: bytes
) -> None:
    """Without any sum, lengths alone never let a value reach outside the record, or leave bytes over."""
    cut = NativeFormat(tuple((f"f{i}", "bytes") for i in range(len(record[1]))))

    assert _split_size(cut, garbage) in (None, len(garbage))


def test_record_longer_or_shorter_than_its_lengths_is_an_error() -> None:
    """A byte too many or too few never makes a longer or shorter value."""
    cut = NativeFormat((("a", "bytes"), ("b", "bytes")))
    data = b"".join(cut.join("key", {"a": b"12", "b": b"345"}))

    for wrong in (data[:-1], data + b"x", data[:8], b""):
        with pytest.raises(ShardError, match="record of"):
            cut.split(memoryview(wrong))


def test_key_that_is_not_text_is_an_error() -> None:
    """A key is UTF-8 or an error."""
    cut = NativeFormat((("a", "bytes"),))
    data = bytearray(b"".join(cut.join("key", {"a": b""})))
    data[8] = 0xFF

    with pytest.raises(ShardError, match="UTF-8"):
        cut.split(memoryview(data))


def test_record_beyond_the_limit_is_refused() -> None:
    """4 GiB do not fit the 32-bit ends, and are refused before a byte is written."""
    cut = NativeFormat((("a", "bytes"), ("b", "bytes")))
    with mmap.mmap(-1, MAX_PAYLOAD_BYTES) as untouched, memoryview(untouched) as huge:
        fits = cut.join(None, {"a": huge, "b": b""})

        with pytest.raises(SampleError, match="at most 4294967295 bytes"):
            cut.join(None, {"a": huge, "b": b"1"})

        assert len(fits[2]) == MAX_PAYLOAD_BYTES
        del fits


def test_key_with_lone_surrogates_is_refused() -> None:
    """File names that are not text cannot be keys."""
    with pytest.raises(SampleError, match="key"):
        NativeFormat((("a", "bytes"),)).join("\udc80", {"a": b""})


def test_format_travels_between_processes() -> None:
    """Workers get the format by pickle."""
    cut = NativeFormat((("a", "bytes"), ("b", "int")))

    again = pickle.loads(pickle.dumps(cut))

    assert again == cut
    assert again.split(memoryview(b"".join(cut.join(None, {"a": b"1", "b": b"2"}))))[1] == {
        "a": b"1",
        "b": b"2",
    }


def test_format_checks_its_fields() -> None:
    """An unknown kind is noticed where the format is made."""
    with pytest.raises(ConfigError, match="video"):
        NativeFormat((("a", "video"),))


def test_wrong_sum_names_shard_record_and_offset() -> None:
    """What failed is told as attributes, too."""
    with pytest.raises(ShardError, match=r"record 7 .*shard-00002.aio.*checksum") as caught:
        check_sum(memoryview(b"abc"), 1, shard="shard-00002.aio", record_id=7, start=900)

    assert (caught.value.shard, caught.value.record, caught.value.offset) == ("shard-00002.aio", 7, 900)


def _table(section: str) -> list[dict[str, str]]:
    """Return the rows of the first table of a section by the names of their columns."""
    text = re.split(rf"^##+ {re.escape(section)}", PAGE, flags=re.MULTILINE)[1]
    lines = list(
        itertools.takewhile(lambda line: line.startswith("|"), text[text.index("\n|") + 1 :].splitlines())
    )
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def _dump(data: bytes) -> str:
    rows = [(start, data[start : start + 16]) for start in range(0, len(data), 16)]
    return "".join(
        f"{start:04x}  {row.hex(' '):<47}  {re.sub('[^ -~]', '.', row.decode('latin-1'))}\n"
        for start, row in rows
    )


def _split_size(cut: NativeFormat, data: bytes) -> int | None:
    """Return how many bytes the parts of a record take, None where it is refused."""
    try:
        _, values = cut.split(memoryview(data))
    except ShardError:
        return None
    key_bytes = int.from_bytes(data[:4], "little")
    return cut.header_bytes + key_bytes + sum(len(value) for value in values.values())
