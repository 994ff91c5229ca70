"""MDS folders: what the real package wrote reads back, and what is wrong with one is told where it is."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mds_sets import CASES, FIXTURES, expected, index_of, row, rows, scanned, shard, spans

from aioload.errors import AioloadError, ShardError
from aioload.shard import hashes
from aioload.shard.hashes import check_hashes, known_hashes
from aioload.shard.mds import MdsFormat, scan
from aioload.shard.mdsindex import parse_mds_index

MANIFEST = {
    entry["path"]: entry["expect"]
    for entry in json.loads((CASES.parent / "manifest.json").read_text())["files"]
    if entry["kind"] == "mds"
}
PAIR = MdsFormat((("n", "int"), ("text", "str")), {}, (8, None))
PARTS = [struct.pack("<Iq", len(text), n) + text for n, text in enumerate((b"", b"one", b"number two"))]
THREE = shard(PARTS)
VALUES = [{"n": part[4:12], "text": part[12:]} for part in PARTS]


def first_rows(data: bytes, samples: int, fmt: MdsFormat = PAIR) -> tuple[list[dict[str, bytes]], str | None]:
    """Read rows up to the first error."""
    found: list[dict[str, bytes]] = []
    try:
        for values in rows(data, samples, fmt):
            found.append(values)  # noqa: PERF402 - those before the error matter
    except ShardError as error:
        return found, str(error.facts["category"])
    return found, None


def plain(values: dict[str, bytes]) -> dict[str, Any]:
    """Return a row of the cases as their manifest has it."""
    return {
        "id": int.from_bytes(values["id"], "little"),
        "img": hashlib.sha256(values["img"]).hexdigest()[:16],
        "text": values["text"].decode(),
    }


# the cases


@pytest.mark.parametrize("name", ["plain", "hash_ok", "cut"])
def test_m01_rows_of_the_cases(name: str) -> None:
    """M01: rows as the manifest has them; where the shard is cut, whole rows first, then a typed error."""
    index, told = index_of(CASES / name), MANIFEST[f"mds/{name}"]
    data = (CASES / name / index.shards[0].raw.name).read_bytes()

    found, category = first_rows(data, index.shards[0].samples, index.record_format())

    assert [plain(values) for values in found] == told["rows"]
    assert category == told.get("category")


def test_m01_the_cut_row_is_told_when_the_shard_is_indexed() -> None:
    """M01: for `verify`, which does not read rows to know it."""
    data = (CASES / "cut" / "shard.00000.mds").read_bytes()

    found = scanned(data, 3, "shard.00000.mds")

    assert found.wholes == MANIFEST["mds/cut"]["row"]
    assert found.damage == "shard.00000.mds is cut short: it ends at byte 573, in row 2 or before it"


@pytest.mark.parametrize("name", ["hash_ok", "hash_bad"])
def test_m02_sums_of_the_cases(name: str) -> None:
    """M02: the sum in the index is held against the bytes."""
    raw = index_of(CASES / name).shards[0].raw
    data = (CASES / name / raw.name).read_bytes()

    try:
        outcome = {"outcome": "ok", "checked": check_hashes(raw.name, data, dict(raw.hashes))}
    except ShardError as error:
        outcome = {"outcome": "error", "category": error.facts["category"], "shard": error.shard}

    told = MANIFEST[f"mds/{name}"]
    assert outcome["outcome"] == told["outcome"]
    assert outcome.get("category") == told.get("category")


# what the real package wrote


def test_the_real_package_s_folder_is_scanned_whole() -> None:
    """All rows of all shards, end to end, to the last byte, and the sums fit."""
    folder = FIXTURES / "all"
    index = index_of(folder)

    found = [scanned((folder / s.raw.name).read_bytes(), s.samples) for s in index.shards]

    assert [one.damage for one in found] == [None] * len(index.shards)
    assert sum(one.wholes for one in found) == len(expected(folder)) == 5
    assert [int(one.ends[-1]) for one in found] == [s.raw.size for s in index.shards]
    for s in index.shards:
        assert check_hashes(s.raw.name, (folder / s.raw.name).read_bytes(), dict(s.raw.hashes)) == ("sha1",)


def test_fields_are_those_of_the_file_in_its_order() -> None:
    """Names, kinds, and what needs a decoder of its own."""
    index = index_of(FIXTURES / "all")

    kinds = dict(index.fields)

    assert list(kinds) == sorted(kinds)
    assert {name: kinds[name] for name in ("uint8", "float16", "str_int", "jpeg", "pil", "array_fixed")} == {
        "uint8": "int", "float16": "float", "str_int": "int", "jpeg": "image", "pil": "image",
        "array_fixed": "ndarray",
    }  # fmt: skip
    assert kinds["list_jpeg"] == kinds["bytes"] == "bytes"
    assert index.encodings["array_fixed"] == "mds:ndarray:float32:2,3"
    assert {"bytes", "str", "json", "int", "jpeg", "png", "float64"}.isdisjoint(index.encodings)
    assert index.record_format().column_sizes[list(kinds).index("array_fixed")] == 24


def test_compressed_shards_name_both_files() -> None:
    """With sizes and sums of either, and the compression without its level."""
    first = index_of(FIXTURES / "zstd").shards[0]

    assert first.compression == "zstd"
    assert first.raw.name == "shard.00000.mds"
    assert first.packed is not None
    assert first.packed.name == "shard.00000.mds.zstd"
    assert first.packed.size == (FIXTURES / "zstd" / first.packed.name).stat().st_size
    assert dict(first.packed.hashes).keys() == {"sha1", "xxh64"}


def test_pickled_columns_do_not_keep_the_others_from_being_read() -> None:
    """It is their decoder that is refused (decode/test_mds_values.py)."""
    index = index_of(FIXTURES / "pickled")

    assert index.fields == (("id", "int"), ("object", "bytes"))
    assert index.encodings == {"object": "mds:pkl"}


# rows


def test_a_format_travels_to_workers() -> None:
    """It pickles, and splits the same."""
    again = pickle.loads(pickle.dumps(PAIR))

    assert again == PAIR
    assert again.split(memoryview(PARTS[1])) == (None, VALUES[1])


def test_values_are_views_of_the_record() -> None:
    """No byte is copied."""
    record = bytearray(PARTS[1])

    _, values = PAIR.split(memoryview(record))
    record[-1:] = b"!"

    assert values["text"] == b"on!"


@pytest.mark.parametrize("size", range(len(PARTS[2])))
def test_a_row_that_is_cut_is_an_error(size: int) -> None:
    """At every length; no field is ever shorter than its row says."""
    with pytest.raises(ShardError, match=r"row is (cut short|missing)") as caught:
        PAIR.split(memoryview(PARTS[2])[:size])

    assert caught.value.offset == size


def test_a_row_with_bytes_behind_it_is_an_error() -> None:
    """They belong to no column."""
    with pytest.raises(ShardError, match="followed by bytes that are no row"):
        PAIR.split(memoryview(PARTS[2] + b"."))


@given(data=st.binary(max_size=60))
def test_any_bytes_are_split_whole_or_refused(data: bytes) -> None:
    """What comes out are all bytes behind the sizes, in order."""
    fmt = MdsFormat((("a", "bytes"), ("b", "int"), ("c", "bytes")), {}, (None, 2, None))

    try:
        _, values = fmt.split(memoryview(data))
    except ShardError:
        return

    assert b"".join(values.values()) == data[8:]


# shards


@pytest.mark.parametrize("size", range(len(THREE)))
def test_a_shard_cut_anywhere_gives_its_whole_rows_and_then_an_error(size: int) -> None:
    """Also where it ends between two rows, or in the table: nothing ends in silence."""
    ends = [stop for _, stop in spans(scanned(THREE, 3))]

    found, category = first_rows(THREE[:size], 3)

    assert found == VALUES[: sum(stop <= size for stop in ends)]
    assert category is not None


@pytest.mark.parametrize("bit", range(8 * (4 + 4 * 4)))
def test_a_flipped_bit_in_the_table_never_gives_other_data(bit: int) -> None:
    """Each row is right, or there is an error in its place, and there is at least one or all are right."""
    damaged = bytearray(THREE)
    damaged[bit // 8] ^= 1 << bit % 8

    outcomes: list[dict[str, bytes] | None] = []
    for start, stop in spans(scanned(bytes(damaged), 3)):
        try:
            outcomes.append({k: bytes(v) for k, v in PAIR.split(memoryview(damaged)[start:stop])[1].items()})
        except ShardError:
            outcomes.append(None)

    rights = [value for value in outcomes if value is not None]
    assert all(value in VALUES for value in rights)
    assert None in outcomes or rights == VALUES


@given(data=st.binary(max_size=200), samples=st.integers(0, 2**32))
def test_any_bytes_are_scanned_within_their_bounds(data: bytes, samples: int) -> None:
    """Ranges asked for and records told lie in the file, and the table is not larger than the file."""
    found = scanned(data, samples)

    places = [found.data_start, *found.ends.tolist()]
    assert places == sorted(places)
    assert places[-1] <= len(data)
    assert found.wholes == samples or found.damage


@pytest.mark.parametrize("told", [2, 4, 1000])
def test_an_index_that_counts_other_rows_is_an_error(told: int) -> None:
    """The rows that both know come first."""
    found, category = first_rows(THREE, told)

    assert found == VALUES[: min(told, 3)]
    assert category == "truncated"
    assert (
        scanned(THREE, told).damage == f"shard.mds says it holds 3 rows, and the index of its set says {told}"
    )


def test_a_shard_without_rows_is_whole() -> None:
    """The index says so, and it is so."""
    found = scanned(shard([]), 0)

    assert len(found.ends) == 0
    assert found.damage is None


def test_large_tables_are_read_in_windows() -> None:
    """A million rows are found right, and only the table is read."""
    parts = 1_100_000
    offsets = np.arange(4 + 4 * (parts + 1), 4 + 4 * (parts + 1) + parts + 1, dtype="<u4")
    data = struct.pack("<I", parts) + offsets.tobytes() + bytes(parts)
    asked: list[tuple[int, int]] = []
    scanner = scan(len(data), "shard.mds", parts)

    place = next(scanner)
    try:
        while True:
            asked.append(place)
            place = scanner.send(memoryview(data)[slice(*place)])
    except StopIteration as end:
        found = end.value

    assert found.wholes == parts
    assert found.damage is None
    assert asked[-1][1] == found.data_start
    assert max(stop - start for start, stop in asked) == 4 << 20


# the index


def changed(**changes: Any) -> bytes:
    """Change the first shard of an index; a value of `...` takes the name out."""
    document = json.loads((FIXTURES / "zstd" / "index.json").read_text())
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = document["shards"][0]
        for parent in parents:
            target = target[parent]
        target[name] = value
        if value is ...:
            del target[name]
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 3}, "version 3"),
        ({"version": True}, "no 'version' that is a whole number, but True"),
        ({"format": "jsonl"}, "format 'jsonl'"),
        ({"samples": -1}, "-1 for 'samples'"),
        ({"samples": 1.5}, "no 'samples' that is a whole number"),
        ({"samples": ...}, "no 'samples'"),
        ({"raw_data": None}, "no 'raw_data'"),
        ({"raw_data__bytes": 2**40}, "for 'bytes'"),
        ({"raw_data__hashes": {"sha1": 1}}, "sums that are no text"),
        ({"zip_data": None}, "'compression' without 'zip_data'"),
        ({"compression": None}, "'compression' without 'zip_data'"),
        ({"column_names": ["id", "id", "weights"]}, "cannot be fields"),
        ({"column_names": ["id", "__key__", "weights"]}, "cannot be fields"),
        ({"column_names": ["id", "text"]}, "not as many names"),
        ({"column_names": [], "column_encodings": [], "column_sizes": []}, "cannot be fields"),
        ({"column_names": [1, 2, 3]}, "something else than text"),
        ({"column_sizes": [4, None, None]}, "4 for the size of column 'id', and int takes 8"),
        ({"column_sizes": [8, 0, None]}, "0 for the size of column 'text'"),
        ({"column_sizes": [8, True, None]}, "True for the size"),
        ({"column_encodings": ["int", "str", "ndarray:object"]}, "no type of an array's values"),
        ({"column_encodings": ["int", "str", "ndarray::3"]}, "ndarray::3"),
        ({"column_encodings": ["int", "str", "ndarray:int8:0,3"]}, "side is 0"),
        ({"column_encodings": ["int", "str", "ndarray:int8:x"]}, "ndarray:int8:x"),
        ({"column_names": ["id", "txt", "weights"]}, "other columns than the first"),
        ({"raw_data__basename": "shard.00001.mds"}, "names a file twice"),
        *(
            ({f"{part}__basename": name}, "no file inside the folder")
            for part in ("raw_data", "zip_data")
            for name in ("../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\\b", "a\0b", "..")
        ),
    ],
)
def test_an_index_that_is_wrong_is_refused(changes: dict[str, Any], words: str) -> None:
    """With its name, the shard, and what is wrong."""
    with pytest.raises(ShardError) as caught:
        parse_mds_index(changed(**changes), "train/index.json")

    assert words in str(caught.value)
    assert str(caught.value).startswith("train/index.json cannot be used: ")
    assert caught.value.shard == "train/index.json"


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"version": 2}', b'{"version": 2, "shards": [1]}',
     b'{"version": 2, "shards": []}', b'{"version": 1, "shards": []}'],
)  # fmt: skip
def test_what_is_no_index_is_refused(text: bytes) -> None:
    """A page of a server, a cut file, an empty set."""
    with pytest.raises(ShardError, match=r"^index.json "):
        parse_mds_index(text, "index.json")


def test_files_in_folders_below_are_taken() -> None:
    """As merged indices have them."""
    index = parse_mds_index(changed(raw_data__basename="en/0/shard.00000.mds"), "index.json")

    assert index.shards[0].raw.name == "en/0/shard.00000.mds"


@given(place=st.integers(0, 10**6), data=st.binary(max_size=3), cut=st.booleans())
def test_a_damaged_index_is_refused_or_read(place: int, data: bytes, cut: bool) -> None:
    """Whatever its bytes: a typed error, or an index."""
    text = (FIXTURES / "zstd" / "index.json").read_bytes()
    place %= len(text)

    try:
        index = parse_mds_index(
            text[:place] + data + (b"" if cut else text[place + len(data) :]), "index.json"
        )
    except ShardError:
        return

    assert len(index.fields) == 3
    assert index.record_format()


# sums


def test_unknown_sums_are_told_once_and_not_checked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those that need a package that is not there, and those without a length of their own."""
    hashes._is_known.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    unknown = ("xxh64", "shake_128", "SHAKE256", "no such sum", "\ud800")
    told = {**dict.fromkeys(unknown, "0"), "md5": hashlib.md5(b"x").hexdigest().upper()}

    checked = [check_hashes("a", b"x", told) for _ in range(2)]
    hashes._is_known.cache_clear()

    assert checked == [("md5",), ("md5",)]
    assert len(caplog.records) == len(unknown)
    assert "xxhash" in caplog.records[0].getMessage()


def test_sums_of_the_package_xxhash_are_checked() -> None:
    """Where it is installed."""
    pytest.importorskip("xxhash", reason="needs the extra mds")
    packed = index_of(FIXTURES / "zstd").shards[0].packed
    assert packed is not None
    data = (FIXTURES / "zstd" / packed.name).read_bytes()

    assert known_hashes(dict(packed.hashes)) == ("sha1", "xxh64")
    assert check_hashes("a", data, {"xxh64": dict(packed.hashes)["xxh64"]}) == ("xxh64",)
    with pytest.raises(ShardError, match="its xxh64 is"):
        check_hashes("a", data + b"x", {"xxh64": dict(packed.hashes)["xxh64"]})


def test_errors_travel_between_processes() -> None:
    """As all of ours do."""
    with pytest.raises(AioloadError) as caught:
        check_hashes("a", b"x", {"sha1": "0"})

    again = pickle.loads(pickle.dumps(caught.value))

    assert (again.shard, again.facts["category"]) == ("a", "checksum")


def test_rows_made_by_hand_are_rows() -> None:
    """The helpers of these tests make what the format reads."""
    fmt = MdsFormat((("a", "str"), ("b", "str")), {}, (None, None))

    assert list(rows(shard([row(a=b"x", b=b"yz")], b"any config"), 1, fmt)) == [{"a": b"x", "b": b"yz"}]


def test_the_cases_are_there() -> None:
    """Paths of the manifest are folders."""
    assert all(Path(CASES.parent, path).is_dir() for path in MANIFEST)
