"""WebDataset archives: each dialect reads back as it was written; damage is a typed error in its place."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tars
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tars import MARK, Sample, by_hand, by_tarfile, outcomes, records, samples, scanned

from aioload.errors import ShardError
from aioload.shard.scan import run
from aioload.shard.tar import TarFormat, scan
from aioload.shard.tarheader import header_sums

FILES = Path(__file__).parent / "files"
CASES = Path(__file__).parent.parent / "cases" / "files"
ROWS = [row for row in json.loads((CASES / "manifest.json").read_text())["files"] if row["kind"] == "tar"]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
PLAIN = [
    ("a.jpg", b"picture" * 99),
    ("a.cls", b"1"),
    ("b.jpg", b""),
    ("b.cls", b"2"),
    ("c.jpg", b"x"),
    ("c.cls", b""),
]
ANY_TEXT = st.text(
    st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=1, max_size=12
)
FOLDERS = st.sampled_from(["", "d.v1/", "./", "ü/x/"])
KEYS = st.builds(lambda folder, text, n: folder + text * n, FOLDERS, ANY_TEXT, st.sampled_from([1, 1, 30]))
NOISE = [("folder/.hidden", b"?"), ("README", b"no sample"), ("x.", b""), ("long" * 40, b"?")]


def grouped(files: list[tuple[str, bytes]]) -> list[Sample]:
    """Return the samples that files make, by the rule of keys."""
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files:
        folder, slash, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        if stem and suffix:
            found.setdefault(folder + slash + stem, {})[suffix.lower()] = data
    return list(found.items())


@st.composite
def some_files(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    """Files of some samples in their order, and files of none between them."""
    files: list[tuple[str, bytes]] = []
    for key in draw(st.lists(KEYS, max_size=6, unique=True)):
        suffixes = draw(st.lists(ANY_TEXT, min_size=1, max_size=4, unique_by=str.lower))
        files += [(f"{key}.{suffix}", draw(st.binary(max_size=1200))) for suffix in suffixes]
        files += draw(st.lists(st.sampled_from(NOISE), max_size=2))
    return files


# what writers write


@given(files=some_files(), form=st.sampled_from(FORMATS))
def test_what_tarfile_writes_reads_back(files: list[tuple[str, bytes]], form: int) -> None:
    """Any names and sizes in all of its formats: the samples, their keys and their bytes are the same."""
    if form == tarfile.USTAR_FORMAT:
        files = [(name, data) for name, data in files if len(name.encode()) <= 100]

    assert samples(by_tarfile(files, form)) == grouped(files)


@pytest.mark.parametrize("form", FORMATS)
def test_thousands_of_members_read_back(form: int) -> None:
    """Windows begin and end anywhere, and the few odd members lie anywhere in them."""
    draw = random.Random(form)
    files = [
        (f"{'deep/' * 30 * (number % 50 == 7)}{number:06d}.{suffix}", draw.randbytes(size))
        for number in range(1500)
        for suffix, size in (("Jpg", draw.choice([0, 9, 700, 3000])), ("json", 20))
    ]

    assert samples(by_tarfile(files, form)) == grouped(files)


def test_what_webdataset_writes_reads_back() -> None:
    """The archive that files/make_webdataset.py made with the real package."""
    found = samples((FILES / "webdataset.tar").read_bytes())

    assert [key for key, _ in found] == ["train/a", "train/中", "k" * 120]
    assert [json.loads(fields["json"]) for _, fields in found] == [{"n": [1, None]}, {}, []]
    assert [fields["bin"] for _, fields in found] == [b"\0" * 700, b"", b"\xff"]
    assert [(fields["txt"].decode(), int(fields["cls"])) for _, fields in found] == [
        ("é", 3),
        ("", -1),
        ("end", 0),
    ]
    arrays = [np.load(io.BytesIO(fields["left.npy"])).tolist() for _, fields in found]
    assert arrays == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("version", ["old", "0.0", "0.1", "1.0"])
def test_sparse_files_are_whole(version: str) -> None:
    """What GNU tar has written of a file with holes (files/make_sparse.sh) comes back with them."""
    whole = bytearray(1_000_000)
    for island in range(1, 6):
        whole[island * 81920 : island * 81920 + 4096] = b"%d\n" % island * 2048

    found = samples((FILES / f"sparse-{version}.tar").read_bytes())

    assert found == [("a", {"bin": bytes(whole), "txt": b"text"})]


def test_a_sparse_file_cannot_ask_for_everything() -> None:
    """A map of a few bytes that stands for a petabyte is an error before anything is allocated."""
    words = b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=1125899906842624"
    data = pax(*words) + by_hand(b"a.bin", b"0\n".ljust(512, b"\0")) + MARK

    (found,) = outcomes(data)

    assert "sparse file of 1125899906842624 bytes" in str(found)


@pytest.mark.parametrize(
    "map_",
    [b"", b"x\n", b"9999999999999999999\n", b"1\n0\n600\n", b"1\n99\n4\n", b"2\n0\n4\n", b"2\n2\n2\n0\n2\n"],
)
def test_a_damaged_map_is_an_error(map_: bytes) -> None:
    """A map that does not fit the file or what is stored: a typed error, never other bytes."""
    words = b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=100"
    data = pax(*words) + by_hand(b"a.bin", map_.ljust(512, b"\0") + b"data") + MARK

    (found,) = outcomes(data)

    assert isinstance(found, ShardError)
    assert (found.key, "sparse file" in str(found)) == ("a", True)


def pax(*words: bytes, kind: bytes = b"x") -> bytes:
    """Return a PAX header of some records of less than 100 bytes."""
    return by_hand(b"./PaxHeaders/0", b"".join(b"%02d %s\n" % (len(word) + 4, word) for word in words), kind)


def test_odd_headers_are_read() -> None:
    """Bare old headers, signed sums, sizes to the base 256, long links, all types of files without data."""
    ustar = bytearray(by_hand(b"tail.p", b"5", size=b"%011o " % 1))
    ustar[257:263], ustar[345:349] = b"ustar\0", b"head"
    data = (
        by_hand("ü.old".encode("latin1"), b"1", b"\0", signed=True)
        + by_hand(b"folder.x/", b"", b"\0", size=b"%011o\0" % 4096)
        + by_hand(b"w.wide", b"22", size=b"\x80" + (2).to_bytes(11))
        + b"".join(
            by_hand(b"no." + kind, kind=kind, size=b"%011o\0" % 99) for kind in (b"3", b"4", b"5", b"6")
        )
        + by_hand(b"no.label", b"not a file", b"V")
        + by_hand(b"c.contiguous", b"3" * 513, b"7")
        + by_hand(b"././@LongLink", b"long/" * 30 + b"L.txt\0", b"L")
        + pax(b"path=p/second.txt", b"size=4")
        + by_hand(b"short", b"four", size=b"%011o\0" % 0)
        + summed(ustar)
        + MARK
    )

    assert samples(data) == [
        (r"\xfc", {"old": b"1"}),
        ("w", {"wide": b"22"}),
        ("c", {"contiguous": b"3" * 513}),
        ("long/" * 30 + "L", {"txt": b"four"}),
        ("head/tail", {"p": b"5"}),
    ]


def summed(member: bytearray) -> bytes:
    """Return a member of one block and its data with a new sum."""
    return tars.summed(member[:512]) + member[512:]


def test_a_global_header_may_not_name_files() -> None:
    """A record is read alone, so what would change all names is an error; a comment is none."""
    fine = pax(b"comment=x", kind=b"g") + by_hand(b"a.x", b"1")

    found = outcomes(fine + pax(b"path=b.x", kind=b"g") + by_hand(b"c.x", b"2") + MARK)

    assert found[0] == ("a", {"x": b"1"})
    assert "global header that sets path" in str(found[1])


@pytest.mark.parametrize("tail", [b"", bytes(100), bytes(512), MARK, MARK + b"garbage" * 999])
def test_an_archive_may_end_in_any_way(tail: bytes) -> None:
    """No end mark, half of one, or anything behind one: the samples are the same."""
    data = by_tarfile(PLAIN).removesuffix(MARK) + tail

    assert samples(data) == grouped(PLAIN)
    assert scanned(data).facts == {"end_mark": len(tail) >= 512}


@pytest.mark.parametrize("data", [b"", b"no archive", b"<html>" * 500, by_hand(b"a.x", b"1")[:-600]])
def test_what_is_no_archive_is_an_error(data: bytes) -> None:
    """A file that does not begin with a header names itself."""
    with pytest.raises(ShardError, match=r"some\.tar is no tar archive"):
        scanned(data)


def test_an_empty_archive_has_no_records() -> None:
    """An end mark alone is an archive."""
    found = scanned(MARK)

    assert (len(found.ends), found.wholes, found.damage, found.fields) == (0, 0, None, ())


# links


def test_a_hard_link_has_the_bytes_of_its_target() -> None:
    """In the same sample or an earlier one, by a chain, to a file of no sample, the latest of a name."""
    data = (
        by_hand(b"store", b"one")
        + by_hand(b"a.x", b"A")
        + by_hand(b"a.y", kind=b"1", link=b"a.x")
        + by_hand(b"b.x", b"B")
        + by_hand(b"b.y", kind=b"1", link=b"./store", size=b"%011o\0" % 3)
        + by_hand(b"c.x", b"C")
        + by_hand(b"store", b"two!")
        + by_hand(b"d.x", kind=b"1", link=b"b.y")
        + by_hand(b"d.y", kind=b"1", link=b"store")
        + by_hand(b"e.x", b"E")
        + MARK
    )

    found = scanned(data)

    assert found.far.tolist() == [[1, 0], [3, 0]]
    assert samples(data) == [
        ("a", {"x": b"A", "y": b"A"}),
        ("b", {"x": b"B", "y": b"one"}),
        ("c", {"x": b"C"}),
        ("d", {"x": b"one", "y": b"two!"}),
        ("e", {"x": b"E"}),
    ]


@pytest.mark.parametrize(
    ("kind", "link", "message"),
    [
        (b"2", b"a.x", "b.y is a symbolic link to a.x"),
        (b"2", b"/etc/passwd", "b.y is a symbolic link to /etc/passwd"),
        (b"1", b"/etc/passwd", "b.y is a hard link to /etc/passwd, which is no file before it"),
        (b"1", b"c.x", "b.y is a hard link to c.x, which is no file before it"),
        (b"1", b"b.y", "b.y is a hard link to b.y, which is no file before it"),
        (b"1", b"folder", "b.y is a hard link to folder, which is no file before it"),
    ],
)
def test_a_link_to_no_bytes_is_an_error_of_its_sample(kind: bytes, link: bytes, message: str) -> None:
    """Symbolic links, and hard links to what is not there, not yet there, or no file; the others are read."""
    data = (
        by_hand(b"folder", kind=b"5")
        + by_hand(b"a.x", b"A")
        + by_hand(b"b.x", b"B")
        + by_hand(b"b.y", kind=kind, link=link)
        + by_hand(b"c.x", b"C")
        + MARK
    )

    first, second, third = outcomes(data)

    assert (first, third) == (("a", {"x": b"A"}), ("c", {"x": b"C"}))
    assert message in str(second)
    assert TarFormat((("x", "bytes"),)).split(records(data, scanned(data))[1])[1] == {"x": b"B"}


# samples


@pytest.mark.parametrize("case", ROWS, ids=lambda case: Path(case["path"]).stem)
def test_the_cases_are_as_their_manifest_says(case: dict[str, Any]) -> None:
    """Rows T01, T02, T04, T06, T09 (and T00, T10, S05): whole samples, then a typed error in its place."""
    data, expected = (CASES / case["path"]).read_bytes(), case["expect"]
    if case["case"] == "T02":
        with pytest.raises(ShardError, match=r"^0\.json in some\.tar .*side by side"):
            scanned(data)
        return

    found = outcomes(data)

    wholes = [outcome for outcome in found if not isinstance(outcome, ShardError)]
    assert wholes == found[: len(wholes)]
    assert len(found) - len(wholes) == (expected["outcome"] == "error")
    assert [
        (key, {name: (len(value), hashlib.sha256(value).hexdigest()[:16]) for name, value in fields.items()})
        for key, fields in wholes
    ] == [
        (sample["key"], {name: (value["len"], value["sha256"]) for name, value in sample["fields"].items()})
        for sample in expected["samples"]
    ]


def test_t01_an_absent_field_is_an_error_that_lists_the_fields() -> None:
    """T01: a sample that lacks a field says which it has; never None, and other fields do not mind."""
    data = by_tarfile([("dir.v1/22.05.png", b"1"), ("dir.v1/22.json", b"{}"), ("README", b"")])
    (record,) = records(data, scanned(data))

    with pytest.raises(ShardError, match=r"'dir.v1/22' has no field 'png': it has json, 05\.png") as caught:
        TarFormat((("png", "image"), ("json", "json"))).split(record)

    assert (caught.value.key, caught.value.facts["fields"]) == ("dir.v1/22", ["json", "05.png"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0.x", "1.x", "0.y", "1.y"], r"^0\.y in some\.tar \(byte 2048\): its sample '0' has ended before"),
        (["a.x", "b.x", "c.x", "b.y", "a.y"], r"^b\.y in some\.tar \(byte 3072\): its sample 'b' has ended"),
        (["a.x", "a.y", "a.X"], r"^a\.X in some\.tar \(byte 2048\): the sample 'a' has its field 'x' twice"),
        (["é.É", "é.é"], r"^é\.é in some\.tar \(byte 1024\): the sample 'é' has its field 'é' twice"),
    ],
)
def test_files_that_do_not_lie_side_by_side_are_an_error(names: list[str], message: str) -> None:
    """T02: interleaved keys and fields that come twice name the member, its place and the shard."""
    data = by_tarfile([(name, b"?") for name in names])

    with pytest.raises(ShardError, match=message) as caught:
        scanned(data)

    assert (caught.value.shard, caught.value.facts["member"]) == (
        "some.tar",
        message[1:].split(" ")[0].replace("\\", ""),
    )


def test_keys_with_one_hash_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two keys happen to have the same hash, their names decide."""
    monkeypatch.setattr("aioload.shard.tar.hash", lambda key: 7, raising=False)

    assert samples(by_tarfile(PLAIN)) == grouped(PLAIN)
    with pytest.raises(ShardError, match=r"^a\.y in"):
        scanned(by_tarfile([("a.x", b""), ("b.x", b""), ("a.y", b"")]))


def test_a_format_travels_and_copies_nothing() -> None:
    """A format that was pickled gives views of the record, of the fields that are wanted, with their key."""
    data = by_tarfile(PLAIN)
    form = pickle.loads(pickle.dumps(TarFormat((("jpg", "image"),))))
    record = records(data, scanned(data))[0]

    key, views = form.split(record)

    assert (key, list(views), views["jpg"]) == ("a", ["jpg"], PLAIN[0][1])
    assert views["jpg"].obj is record.obj
    assert scanned(data).fields == (("jpg", "image"), ("cls", "int"))


# reading


def test_large_members_are_hopped_over() -> None:
    """Of ten members of 100 MB each, little more than their headers is asked for."""
    size, step = 100 << 20, (100 << 20) + 512
    heads = {number * step: by_hand(b"%d.bin" % number, size=b"%011o\0" % size) for number in range(10)}
    asked = []

    def read(start: int, stop: int) -> bytes:
        asked.append(stop - start)
        data = bytearray(stop - start)
        data[:512] = heads.get(start, bytes(512))
        return bytes(data)

    found = run(scan(10 * step + 1024, "large.tar"), read)

    assert found.ends.tolist() == [(number + 1) * step for number in range(10)]
    assert sum(asked) <= 11 * 65536


def test_small_members_are_read_in_few_requests() -> None:
    """An archive of small files is asked for once, in ranges that grow."""
    data = by_tarfile([(f"{number}.txt", bytes(900)) for number in range(6000)], tarfile.PAX_FORMAT)
    asked: list[tuple[int, int]] = []

    scanned(data, lambda start, stop: asked.append((start, stop)))

    assert sum(stop - start for start, stop in asked) <= 1.05 * len(data)
    assert len(asked) <= 10


# damage


EXOTIC = (
    pax(b"comment=hello", kind=b"g")
    + by_tarfile(
        [("é" * 60 + ".jpg", b"1" * 700), ("é" * 60 + ".cls", b"2")], tarfile.PAX_FORMAT
    ).removesuffix(MARK)
    + by_tarfile([("l" * 120 + ".jpg", b"3"), ("l" * 120 + ".cls", b"4")], tarfile.GNU_FORMAT).removesuffix(
        MARK
    )
    + pax(b"GNU.sparse.major=1", b"GNU.sparse.minor=0", b"GNU.sparse.realsize=2000")
    + by_hand(b"s.jpg", b"1\n1000\n4\n".ljust(512, b"\0") + b"data")
    + by_hand(b"s.cls", b"5")
    + by_hand(b"h.jpg", kind=b"1", link=b"s.jpg")
    + by_hand(b"h.cls", b"6")
    + MARK
)


ARCHIVES = {"ustar": by_tarfile(PLAIN), "pax": by_tarfile(PLAIN, tarfile.PAX_FORMAT), "exotic": EXOTIC}


@pytest.mark.parametrize(("name", "step"), [("ustar", 1), ("pax", 5), ("exotic", 17)])
def test_a_cut_is_an_error_or_between_members(name: str, step: int) -> None:
    """T09: wherever an archive is cut: samples as they were, then an error; no field is ever short."""
    data = ARCHIVES[name]
    whole = samples(data)

    found = {size: outcomes(data[:size]) for size in range(FIRST_FILE, len(data) - len(MARK), step)}

    for size, outcome in found.items():
        *before, last = outcome
        rests = outcome[:-1] if isinstance(last, ShardError) else outcome
        assert rests == before_of(whole, rests)
        assert before[:-1] == whole[: len(before[:-1])]
        # without an error, the cut lies between two files, or in what fills a block
        assert isinstance(last, ShardError) or not any(data[size : -(-size // 512) * 512])


def before_of(whole: list[Sample], some: list[Any]) -> list[Sample]:
    """Return samples with only the fields that some others have: what is cut may lack whole files."""
    pairs = zip(whole, some, strict=False)
    return [(key, {name: fields[name] for name in other[1]}) for (key, fields), other in pairs]


FIRST_FILE = 5 * 512  # what is cut before that is no archive, or has its first file damaged


@pytest.mark.parametrize("size", range(0, FIRST_FILE, 7))
def test_a_cut_at_the_beginning_is_an_error(size: int) -> None:
    """What ends before the first file does is no archive, or one with nothing but an error."""
    data = by_tarfile([("a.bin", bytes(range(256)) * 8)])[:size]

    with pytest.raises(ShardError):
        samples(data)


def test_a_flipped_byte_is_an_error_or_in_a_field() -> None:
    """In a header: an error, and samples as they were. In data, which has no sums: no other byte changes."""
    data = ARCHIVES["ustar"]
    whole = samples(data)

    for place in range(512, len(data) - len(MARK)):
        found = outcomes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        wholes = [outcome for outcome in found if isinstance(outcome, tuple)]
        if len(wholes) < len(found):
            assert_parts(wholes, whole)
        else:
            old, new = (b"".join(b"".join(each.values()) for _, each in some) for some in (whole, wholes))
            assert [key for key, _ in found] == [key for key, _ in whole]
            assert sum(a != b for a, b in zip(old, new, strict=True)) <= 1


def assert_parts(found: list[Sample], whole: list[Sample]) -> None:
    """Assert that samples are some of others, but that a field may lack: never other bytes or keys."""
    fields = dict(whole)
    assert len(dict(found)) == len(found)
    for key, values in found:
        assert values.items() <= fields[key].items()


@given(
    st.lists(st.tuples(st.integers(0, len(EXOTIC) - 1), st.binary(min_size=1, max_size=12)), max_size=4),
    st.integers(0, len(EXOTIC)) | st.just(len(EXOTIC)),
)
def test_any_damage_is_a_typed_error_or_samples(damages: list[tuple[int, bytes]], size: int) -> None:
    """Whatever happens to an archive of all dialects, nothing but samples and errors of ours come of it."""
    data = bytearray(EXOTIC)
    for place, junk in damages:
        data[place : place + len(junk)] = junk

    assert_typed(bytes(data[:size]))


@given(
    st.sampled_from([at for at in range(0, len(EXOTIC), 512) if EXOTIC[at + 154 : at + 156] == b"\0 "]),
    st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4),
)
def test_a_header_may_say_anything(place: int, damages: list[tuple[int, bytes]]) -> None:
    """The same where the sum of a header is right and all else may be wrong."""
    head = bytearray(EXOTIC[place : place + 512])
    for at, junk in damages:
        head[at : at + len(junk)] = junk

    assert_typed(EXOTIC[:place] + tars.summed(head) + EXOTIC[place + 512 :])


def assert_typed(data: bytes) -> None:
    """Assert that reading an archive gives samples and errors of ours, within the file."""
    with contextlib.suppress(ShardError):
        assert all(isinstance(outcome, tuple | ShardError) for outcome in outcomes(data))


def test_damage_is_the_last_record() -> None:
    """Its span goes to the file's end, it says why, and a sample that has lost a file goes with it."""
    data = by_tarfile([("a.x", b"1"), ("b.x", b"2"), ("b.y", b"3" * 99), ("c.x", b"")])[: 5 * 512 + 50]

    found = scanned(data)

    assert (found.wholes, found.ends.tolist()) == (1, [1024, len(data)])
    assert (
        found.damage
        == "byte 2048: the file ends before the 99 bytes of a member (b.y); it is cut short or damaged, and "
        "its last 1,586 bytes cannot be read"
    )


# reading on


MANY = [
    (f"{number}.{field}", bytes([number]) * (600 * number + 1))
    for number in range(7)
    for field in ("jpg", "cls")
]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_damaged_header_costs_its_sample(form: int) -> None:
    """Behind a header with a wrong sum the samples go on; its own is one record, which is an error."""
    data = bytearray(by_tarfile(MANY, form))
    place = data.index(b"3.cls\0")
    data[place + 104] ^= 0x01

    found = outcomes(bytes(data))

    (error,) = (outcome for outcome in found if isinstance(outcome, ShardError))
    assert [each for each in found if each is not error] == [each for each in grouped(MANY) if each[0] != "3"]
    assert "a damaged header: its checksum is" in str(error)
    (hole,) = scanned(bytes(data)).holes
    assert hole.startswith(f"byte {place - place % 512 - (1024 if form == tarfile.PAX_FORMAT else 0)}: ")
    assert scanned(bytes(data)).damage is None


@settings(max_examples=300)
@given(
    st.integers(0, len(MANY) - 1),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT]),
    st.lists(st.tuples(st.integers(0, 500), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3),
)
def test_damage_to_a_header_gives_no_other_samples(
    number: int, form: int, damages: list[tuple[int, bytes]]
) -> None:
    """Whatever is written over a header, but for its sum: all other samples are as they were, or lost."""
    data = bytearray(by_tarfile(MANY, form))
    start = data.index(MANY[number][0].encode() + b"\0")
    for place, junk in damages:
        data[start + place : start + place + len(junk)] = junk
    head = bytes(data[start : start + 512])
    assume(head[148:154] not in [b"%06o" % total for total in header_sums(head)])

    assert_parts(wholes_of(data), grouped(MANY))


def wholes_of(data: bytes | bytearray) -> list[Sample]:
    """Return the samples of an archive that can be read; none where its very first header leads nowhere."""
    try:
        found = outcomes(bytes(data))
    except ShardError:
        return []
    return [each for each in found if isinstance(each, tuple)]


@given(st.data(), st.booleans(), st.booleans())
def test_files_of_an_inner_archive_are_no_samples(draw: st.DataObject, marked: bool, last: bool) -> None:
    """A tar that is a file of a sample is never read as the archive, whichever header is damaged."""
    inner = by_tarfile([(f"inner{number}.jpg", b"?" * 300) for number in range(4)])
    inner = b"?" * draw.draw(st.sampled_from([0, 512, 1536])) + (
        inner if marked else inner.removesuffix(MARK)
    )
    files = [("0.jpg", b"0" * 99), ("0.tar", inner), ("1.jpg", b"1"), ("1.tar", inner)]
    data = bytearray(by_tarfile(files[: None if last else 3]))
    heads = [place for place in range(0, len(data), 512) if data[place : place + 2] in (b"0.", b"1.")]
    place = draw.draw(st.sampled_from(heads)) + draw.draw(st.integers(0, 156))
    data[place] = draw.draw(st.integers(0, 255))

    found = wholes_of(data)

    assert not any("inner" in key for key, _ in found)
    assert {key for key, _ in found} <= {"0", "1"}


def test_a_damaged_name_costs_its_sample_and_no_other() -> None:
    """Where the name is what is damaged, the record of the others of its key lacks a field, and says so."""
    data = bytearray(by_tarfile(MANY))
    data[data.index(b"3.cls\0")] ^= 0x08

    found = outcomes(bytes(data))

    assert [each[0] for each in found if isinstance(each, tuple)] == list("0123456")
    assert found[3] == ("3", {"jpg": MANY[6][1]})
    assert len(found) == 8


@pytest.mark.parametrize("digit", range(11))
def test_a_damaged_digit_of_a_size_is_found_by_the_sum(digit: int) -> None:
    """Whichever digit is another, or none at all, the sample behind it is found where the sum says."""
    for change in (0x01, 0x40):
        data = bytearray(by_tarfile(MANY))
        data[data.index(b"3.cls\0") + 124 + digit] ^= change

        found = outcomes(bytes(data))

        assert [each for each in found if isinstance(each, tuple)] == [
            each for each in grouped(MANY) if each[0] != "3"
        ]
        assert len(found) == 7


def test_an_extended_header_takes_the_next_member_along() -> None:
    """What would lose its long name is not read under the short one; the sample behind it is."""
    long = "long/" * 30
    data = bytearray(
        by_tarfile(
            [("a.x", b"1"), (f"{long}b.x", b"2"), (f"{long}c.x", b"3"), ("d.x", b"4")], tarfile.GNU_FORMAT
        )
    )
    data[data.index(b"././@LongLink")] ^= 1

    found = outcomes(bytes(data))

    assert [each for each in found if isinstance(each, tuple)] == [
        ("a", {"x": b"1"}),
        (f"{long}c", {"x": b"3"}),
        ("d", {"x": b"4"}),
    ]
    assert len(found) == 4


def test_the_fields_are_those_of_a_whole_sample() -> None:
    """A first sample that has lost a file does not decide which fields there are."""
    data = bytearray(by_tarfile(MANY))
    data[data.index(b"0.cls\0")] ^= 0x40

    assert scanned(bytes(data)).fields == (("jpg", "image"), ("cls", "int"))


def test_members_behind_an_end_mark_are_told() -> None:
    """Zeros in the middle, as of a lost sector, or two archives put together, are damage and no end."""
    data = by_tarfile(MANY)
    place = data.index(b"3.jpg\0")

    lost = outcomes(data[:place] + bytes(1024) + data[place + 1024 :])
    joined = outcomes(data + data)

    assert lost[:3] == joined[:3] == grouped(MANY)[:3]
    assert isinstance(lost[3], ShardError)
    assert isinstance(joined[-1], ShardError)
    assert len(joined) == len(grouped(MANY)) + 1
    assert f"a header at byte {len(data)}" in str(scanned(data + data).damage)
