"""Files become a set: sources are told apart, and what cannot be read is never passed over in silence."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scripts
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from shard.tars import by_tarfile

from aioload import ConfigError, Dataset, NotFoundError, SampleError, ShardError, WorkerError, Writer
from aioload.foreign import expand
from aioload.packing import PackReport, Recipe, Source, Unreadable, find_source, pack

CASES = Path(__file__).parent / "cases" / "files"
NO_CHECK = Recipe(check="none")

KILLED_PACKER = """
    import os, signal, sys
    from aioload.packing import Recipe, find_source, pack

    fatal = int(sys.argv[3])
    done = 0

    def progress(cost, num_bytes):
        global done
        done += 1
        if done == 5:
            print("five", flush=True)
            os.kill(os.getpid(), fatal)

    pack(find_source([sys.argv[1]]), sys.argv[2], recipe=Recipe(quality=50), num_workers=2, progress=progress)
"""


def archive(folder: Path, name: str) -> Path:
    """Copy an archive of the cases, beside which an index will lie."""
    return Path(shutil.copy(CASES / "tar" / name, folder))


def picture(number: int, size: tuple[int, int] = (16, 12), **options: object) -> bytes:
    """Return a small JPEG file; each number gives another."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def case(name: str) -> bytes:
    """Return an image of the cases."""
    return (CASES / "images" / name).read_bytes()


def write(folder: Path, *names: str) -> dict[str, bytes]:
    """Write a picture under each name; return their bytes."""
    return write_files(folder, {name: picture(number) for number, name in enumerate(names)})


def write_files(folder: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write files into a folder and its sub-folders; return them."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return files


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    """Write an archive."""
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def packed(source: Source, path: Path, **options: object) -> tuple[PackReport, Dataset]:
    """Pack a source and open what came of it."""
    report = pack(source, path, **options)
    return report, Dataset(path)


def stored(dataset: Dataset, field: str) -> list[bytes]:
    """Return the bytes of a field, of all records."""
    return [
        bytes(dataset.format.split(memoryview(dataset.read_record(number)))[1][field])
        for number in range(len(dataset))
    ]


def keys(dataset: Dataset) -> list[str]:
    """Return the keys of all records."""
    return [dataset[number]["__key__"] for number in range(len(dataset))]


# folders


def test_a_sub_folder_is_a_class(tmp_path: Path) -> None:
    """Images keep their bytes; classes are the sorted sub-folders, and their names stand in the metadata."""
    files = write(tmp_path / "src", "b/2.jpg", "a/x/1.jpg", "b/1.JPEG", "a-b/0.jpg")

    report, dataset = packed(find_source([tmp_path / "src"]), tmp_path / "set")

    assert dataset.fields == {"image": "image", "label": "int"}
    assert dataset.metadata == {"classes": ["a", "a-b", "b"]}
    assert keys(dataset) == ["a/x/1", "a-b/0", "b/1", "b/2"]
    assert [dataset[number]["label"] for number in range(4)] == [0, 1, 2, 2]
    assert stored(dataset, "image") == [files[n] for n in ("a/x/1.jpg", "a-b/0.jpg", "b/1.JPEG", "b/2.jpg")]
    assert (report.records, report.shards, report.unreadable, report.notes) == (4, 1, (), ())


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    """Images that lie in the folder itself are packed without labels, sorted by name."""
    files = write(tmp_path / "src", "2.png.jpg", "10.jpg", "1.jpg")

    _, dataset = packed(find_source([tmp_path / "src"]), tmp_path / "set")

    assert dataset.fields == {"image": "image"}
    assert keys(dataset) == ["1", "10", "2.png"]
    assert stored(dataset, "image") == [files["1.jpg"], files["10.jpg"], files["2.png.jpg"]]


def test_an_image_beside_the_classes_is_an_error(tmp_path: Path) -> None:
    """An image that has no class is named, and what to do about it."""
    write(tmp_path, "a/1.jpg", "lost.jpg")

    with pytest.raises(ConfigError, match=r"lost\.jpg.*--kind flat"):
        find_source([tmp_path])


def test_flat_can_be_asked_for(tmp_path: Path) -> None:
    """With `flat` asked for, sub-folders are part of the key and not classes."""
    write(tmp_path, "a/1.jpg", "lost.jpg")

    source = find_source([tmp_path], kind="flat")

    assert [item.key for item in source.items] == ["a/1", "lost"]
    assert source.fields == {"image": "image"}


def test_what_is_no_image_is_left_out_and_told(tmp_path: Path) -> None:
    """Hidden files are passed over; other files are counted, and the first is named."""
    write(tmp_path, "a/1.jpg", "a/.hidden.jpg", ".cache/2.jpg")
    (tmp_path / "a" / "notes.md").write_text("x")

    source = find_source([tmp_path])

    assert [item.key for item in source.items] == ["a/1"]
    assert source.notes == ("1 file is left out, with no suffix of an image: a/notes.md …",)


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    """A folder that links to one above it is entered once."""
    write(tmp_path, "a/1.jpg")
    (tmp_path / "a" / "up").symlink_to(tmp_path)

    source = find_source([tmp_path])

    assert [item.key for item in source.items] == ["a/1"]


def test_a_name_that_is_no_utf8_is_packed(tmp_path: Path) -> None:
    """The key of a file whose name is not UTF-8 has escapes in the place of the odd bytes."""
    (tmp_path / "src").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "src") + b"/caf\xe9.jpg")).write_bytes(picture(0))

    _, dataset = packed(find_source([tmp_path / "src"]), tmp_path / "set")

    assert keys(dataset) == [r"caf\xe9"]


def test_the_shuffled_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    """The same seed gives the same order, another seed another one, and none the sorted one."""
    write(tmp_path, *(f"{number:02}.jpg" for number in range(30)))

    orders = [[item.key for item in find_source([tmp_path], seed=seed).items] for seed in (None, 1, 1, 2)]

    assert orders[0] == sorted(orders[0])
    assert orders[1] == orders[2]
    assert orders[1] != orders[3]
    assert sorted(orders[1]) == sorted(orders[3]) == orders[0]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_folder_is_no_table(tmp_path: Path, kind: str) -> None:
    """A folder cannot be packed as a table."""
    write(tmp_path, "1.jpg")

    with pytest.raises(ConfigError, match="is a folder"):
        find_source([tmp_path], kind=kind)


def test_nothing_to_pack_is_an_error(tmp_path: Path) -> None:
    """A folder without images, what an address cannot be packed as, and a missing path are told apart."""
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match="neither images nor shards;"):
        find_source([tmp_path / "empty"])
    with pytest.raises(ConfigError, match=r"^http://… cannot be packed as 'csv' from an address") as caught:
        find_source(["http://me:word@example.com/photos.csv?sig=word"])
    assert "word" not in str(caught.value)
    with pytest.raises(NotFoundError, match="missing does not exist"):
        find_source([tmp_path / "missing"])


# tables


def test_a_csv_keeps_its_columns_as_fields(tmp_path: Path) -> None:
    """Columns are int or float where all rows hold such numbers, and nothing would be lost, else text."""
    files = write(tmp_path / "photos", "a.jpg", "b.jpg")
    table = tmp_path / "table.csv"
    table.write_text(
        "label,path,weight,code,big\n3,photos/a.jpg,1,007,9223372036854775808\n-4,photos/b.jpg,2.5e-1,1,1\n"
    )

    _, dataset = packed(find_source([table]), tmp_path / "set", index_fields=["label"])

    assert dataset.fields == {
        "image": "image",
        "label": "int",
        "weight": "float",
        "code": "str",
        "big": "str",
    }
    assert stored(dataset, "image") == list(files.values())
    assert keys(dataset) == ["photos/a", "photos/b"]
    assert [dataset[0][n] for n in ("label", "weight", "code")] == [3, 1.0, "007"]
    assert dataset.index.columns["label"].tolist() == [3, -4]


def test_json_lines_keep_their_members_as_fields(tmp_path: Path) -> None:
    """Members are int, float or text where all rows hold such values, else JSON."""
    write(tmp_path, "a.jpg", "b.jpg")
    rows = [
        {"file": "a.jpg", "label": 1, "weight": 1, "name": "é", "boxes": [[1, 2]]},
        {"file": "b.jpg", "label": 2, "weight": 0.5, "name": "", "boxes": None},
    ]
    table = tmp_path / "table.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)) + "\n\n")

    _, dataset = packed(find_source([table]), tmp_path / "set")

    assert list(dataset.fields.values()) == ["image", "int", "float", "str", "json"]
    assert [dataset[0][n] for n in ("label", "weight", "name", "boxes")] == [1, 1.0, "é", [[1, 2]]]
    assert dataset[1]["boxes"] is None


def test_the_path_column_can_be_named(tmp_path: Path) -> None:
    """The user may say which column holds the path; where none is found, the columns are told."""
    write(tmp_path, "a.jpg")
    table = tmp_path / "table.tsv"
    table.write_text("where\tlabel\na.jpg\tcat\n")

    source = find_source([table], path_field="where")

    assert [item.values for item in source.items] == [{"label": "cat"}]
    with pytest.raises(ConfigError, match="no column 'path' or 'file' or 'image', but where, label"):
        find_source([table])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "path,label\na.jpg,1\nb.jpg\n", "line 3 .* has 1 values, the header 2 names"),
        ("t.csv", 'path,label\n"a.jpg,1\n', "line 2 .* cannot be read"),
        ("t.jsonl", '{"path": "a.jpg", "label": 1}\n{"path": "b.jpg"}\n', r"line 2 .* \['label', 'path'\]"),
        ("t.jsonl", '{"path": "a.jpg"\n', "line 1 .* is no JSON"),
    ],
)
def test_a_broken_table_names_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    """A row that does not fit the others is an error that names file and line."""
    table = tmp_path / name
    table.write_text(text)

    with pytest.raises(ShardError, match=message):
        find_source([table])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n", "has no rows"),
        ("path,image\na.jpg,1\n", "has a column of that name"),
        ("path,path\na.jpg,1\n", "names a column twice"),
        ("path,label\n,1\n", "row 1 .* has no path"),
    ],
)
def test_a_table_that_cannot_be_packed_says_why(tmp_path: Path, text: str, message: str) -> None:
    """A table without rows, or with columns that clash, is an error before anything is written."""
    table = tmp_path / "t.csv"
    table.write_text(text)

    with pytest.raises(ConfigError, match=message):
        find_source([table])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_whole_numbers_of_a_csv_are_exact(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int]
) -> None:
    """Any 64-bit number in a table is the number in the item."""
    table = tmp_path_factory.mktemp("numbers") / "t.csv"
    table.write_text("path,label\n" + "".join(f"a.jpg,{number}\n" for number in numbers))

    source = find_source([table])

    assert source.fields["label"] == "int"
    assert [item.values["label"] for item in source.items] == numbers


# archives


def test_an_archive_gives_a_field_for_each_suffix(tmp_path: Path) -> None:
    """The suffix is the field and tells its kind."""
    array = io.BytesIO()
    np.save(array, np.arange(3))
    files = {
        "jpg": picture(1),
        "cls": b"7\n",
        "txt": "é".encode(),
        "json": b'{"a": [1]}',
        "npy": array.getvalue(),
        "x": b"\0",
    }
    path = write_tar(tmp_path / "a.tar", {f"dir/k.{suffix}": data for suffix, data in files.items()})

    _, dataset = packed(find_source([path]), tmp_path / "set")

    assert dataset.fields == {
        "jpg": "image",
        "cls": "int",
        "txt": "str",
        "json": "json",
        "npy": "ndarray",
        "x": "bytes",
    }
    assert keys(dataset) == ["dir/k"]
    assert [dataset[0][name] for name in ("cls", "txt", "json")] == [7, "é", {"a": [1]}]
    assert dataset[0]["npy"].tolist() == [0, 1, 2]
    assert stored(dataset, "jpg") == [files["jpg"]]


def test_keys_end_at_the_first_dot_after_the_last_slash(tmp_path: Path) -> None:
    """Case T01: dots in folders belong to the key, all of the name behind the first dot to the field."""
    items = iter(find_source([archive(tmp_path, "dots.tar")]).items)

    first = next(items)

    assert (first.key, list(first.raw)) == ("dir.v1/22", ["05.png", "05.json"])
    assert "dir.v1/x has the fields seg.png, png, the first sample has 05.png" in next(items).reason


def test_an_unsorted_archive_is_an_error(tmp_path: Path) -> None:
    """Case T02: files of a key that do not lie side by side are named, and nothing is left."""
    path = archive(tmp_path, "interleaved.tar")

    with pytest.raises(ShardError, match=r"0\.json in .*interleaved\.tar") as caught:
        pack(find_source([path]), tmp_path / "set", recipe=NO_CHECK)

    assert caught.value.shard == path.name
    assert not list(tmp_path.glob("set/*"))


def test_links_in_an_archive_are_read_or_refused(tmp_path: Path) -> None:
    """A hard link has the bytes of its target; a symbolic link is an error that names it and the archive."""
    path = write_tar(tmp_path / "a.tar", {"a.x": b"1"})
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("b.x")
        link.type, link.linkname = tarfile.LNKTYPE, "a.x"
        archive.addfile(link)
        link.name, link.type = "c.x", tarfile.SYMTYPE
        archive.addfile(link)

    items = iter(find_source([path]).items)

    assert [next(items).raw, next(items).raw] == [{"x": b"1"}, {"x": b"1"}]
    bad = next(items)
    assert bad.name == "record 2 (a.tar)"
    assert "c.x is a symbolic link to a.x" in bad.reason


def test_equal_keys_of_two_archives_are_two_records(tmp_path: Path) -> None:
    """Case T04: a key is its own only within its archive."""
    source = find_source([archive(tmp_path, "edge-a.tar"), archive(tmp_path, "edge-b.tar")])

    _, dataset = packed(source, tmp_path / "set", recipe=NO_CHECK)

    splits = [dataset.format.split(memoryview(dataset.read_record(number)))[0] for number in range(4)]
    assert splits == ["a", "k", "k", "b"]
    assert len(set(stored(dataset, "jpg"))) == 4


@pytest.mark.parametrize("name", ["long_pax.tar", "long_gnu.tar"])
def test_long_names_are_whole(tmp_path: Path, name: str) -> None:
    """Case T06: keys of over 200 characters are kept whole, and no header is taken for a sample."""
    first, second = find_source([archive(tmp_path, name)]).items

    assert (len(first.key), first.key[-3:], second.key) == (234, "-é中", "b")


@pytest.mark.parametrize("name", ["cut_in_data.tar", "cut_in_header.tar"])
def test_a_cut_archive_is_an_error(tmp_path: Path, name: str) -> None:
    """Case T09: an archive that ends early is never taken for a whole one; its samples can be had."""
    source = find_source([archive(tmp_path, name)])

    with pytest.raises(
        SampleError, match=rf"the first is record 2 \({name}\): .* from record 2 on: byte 4096"
    ):
        pack(source, tmp_path / "set", recipe=NO_CHECK)
    assert not list(tmp_path.glob("set/*"))

    report = pack(find_source([tmp_path / name]), tmp_path / "some", recipe=NO_CHECK, skip_bad=True)
    assert (report.records, len(report.unreadable)) == (2, 1)
    assert "bytes cannot be read" in report.unreadable[0].reason


@given(st.data())
def test_no_archive_can_be_cut_in_silence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Wherever an archive is cut before its end mark, something of it is unreadable."""
    folder = tmp_path_factory.mktemp("cut")
    whole = (CASES / "tar" / "plain.tar").read_bytes()
    size = data.draw(st.integers(0, 4 * 1024))
    (folder / "cut.tar").write_bytes(whole[:size])

    try:
        items = list(find_source([folder / "cut.tar"]).items)
    except ShardError:
        return

    assert any(isinstance(item, Unreadable) for item in items)


def damaged_archives(folder: Path) -> list[Path]:
    """Write an archive with a damaged header in the middle, one that lacks a field once, and a good one."""
    samples = [(f"{number}.{suffix}", b"%d" % number) for number in range(5) for suffix in ("bin", "cls")]
    data = bytearray(by_tarfile(samples))
    data[data.index(b"2.cls\0") + 104] ^= 1
    (folder / "0.tar").write_bytes(data)
    more = [("x.bin", b""), ("x.cls", b"1"), ("x.e", b"")]
    (folder / "1.tar").write_bytes(by_tarfile([*samples[:3], *samples[4:6], *more]))
    (folder / "2.tar").write_bytes(by_tarfile(samples))
    return [folder / f"{number}.tar" for number in range(3)]


def test_bad_samples_of_archives_are_named_and_the_rest_packed(tmp_path: Path) -> None:
    """A damaged header, a field too few and one too many cost their samples; no archive stops the next."""
    paths = damaged_archives(tmp_path)

    with pytest.raises(
        SampleError, match=r"^3 of the files cannot be packed, the first is record 2 \(0\.tar\)"
    ):
        pack(find_source(paths), tmp_path / "none")
    report, dataset = packed(find_source(paths), tmp_path / "set", skip_bad=True)

    assert keys(dataset) == [*"0134", *"02", *"01234"]
    assert [bad.name for bad in report.unreadable] == [
        f"record {n}" for n in ("2 (0.tar)", "6 (1.tar)", "8 (1.tar)")
    ]
    reasons = [bad.reason for bad in report.unreadable]
    assert "a damaged header" in reasons[0]
    assert reasons[1].startswith("1 has the fields bin, the first sample has bin, cls")
    assert reasons[2].startswith("x has the fields bin, cls, e")


def test_an_archive_without_an_end_mark_is_told(tmp_path: Path) -> None:
    """It may have been cut between two files: only with `skip_bad` is packed what is there."""
    whole = by_tarfile([("a.bin", b"1"), ("b.bin", b"2")])
    (tmp_path / "a.tar").write_bytes(whole.removesuffix(bytes(1024)))

    report, dataset = packed(find_source([tmp_path / "a.tar"]), tmp_path / "set", skip_bad=True)

    assert keys(dataset) == ["a", "b"]
    assert [bad.name for bad in report.unreadable] == ["a.tar"]
    assert "without an end mark" in report.unreadable[0].reason


def test_records_that_fail_their_sum_are_left_out(tmp_path: Path) -> None:
    """Where an index has sums of an archive, a changed byte is found, and costs one record."""
    path, data = tmp_path / "a.tar", bytearray(by_tarfile([("a.bin", b"one"), ("b.bin", b"two")]))
    path.write_bytes(data)
    Dataset(path).make_index(checksums=True)
    status = path.stat()
    data[data.index(b"one")] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    report, dataset = packed(find_source([path]), tmp_path / "set", skip_bad=True)

    assert keys(dataset) == ["b"]
    assert "failed its checksum" in report.unreadable[0].reason


def test_a_packed_set_is_packed_anew(tmp_path: Path) -> None:
    """With its metadata and index fields, into shards of another size; the records are the same."""
    fields = {"n": "int", "x": "float"}
    with Writer(tmp_path / "one", fields, index_fields=["n"], metadata={"a": 1}) as writer:
        for number in range(50):
            writer.write({"n": number, "x": number / 7}, key=f"k{number}")

    report, dataset = packed(find_source([tmp_path / "one"]), tmp_path / "two", shard_bytes=1000)

    assert (report.records, dataset.metadata, list(dataset.index.columns)) == (50, {"a": 1}, ["n"])
    assert report.shards > 1
    assert [dataset[number] for number in range(50)] == [Dataset(tmp_path / "one")[n] for n in range(50)]


def test_packing_hides_no_shards_of_others(tmp_path: Path) -> None:
    """A folder with archives is refused, since with a packed set in it nobody would see them any more."""
    paths = damaged_archives(tmp_path)

    with pytest.raises(ConfigError, match=r"holds shards of others \(0\.tar and 2 more\)"):
        pack(find_source(paths[2:]), tmp_path)

    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["0.tar", "1.tar", "2.tar"]


def test_what_an_earlier_run_has_left_is_told(tmp_path: Path) -> None:
    """Shards without a manifest are of a run that was stopped: they go, and the report says so."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "shard-00000.aio").write_bytes(b"half")

    report, _ = packed(find_source(damaged_archives(tmp_path)[2:]), tmp_path / "set")

    assert report.notes == ("1 file of a run that did not finish lay there and went",)


def test_an_archive_cannot_be_shuffled(tmp_path: Path) -> None:
    """An archive is read from front to back, so a seed is refused."""
    write_tar(tmp_path / "a.tar", {"a.jpg": picture(0)})

    with pytest.raises(ConfigError, match="front to back"):
        find_source([tmp_path], seed=0)


def test_a_folder_of_archives_is_packed_in_order(tmp_path: Path) -> None:
    """Archives in a folder are one source, sorted by name."""
    write_tar(tmp_path / "b.tar", {"2.jpg": picture(2)})
    write_tar(tmp_path / "a.tar", {"1.jpg": picture(1)})

    source = find_source([tmp_path])

    assert [item.key for item in source.items] == ["1", "2"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{008..010}.tar", ["a-008.tar", "a-009.tar", "a-010.tar"]),
        ("a-{9..11}.tar", ["a-9.tar", "a-10.tar", "a-11.tar"]),
        ("{0..1}/{0..1}", ["0/0", "0/1", "1/0", "1/1"]),
        ("{a..b}.tar", ["{a..b}.tar"]),
    ],
)
def test_braces_stand_for_numbers(pattern: str, names: list[str]) -> None:
    """A range in braces stands for each of its numbers, as wide as they are written."""
    assert expand(pattern) == names


# files that cannot be read


def test_all_unreadable_files_are_named(tmp_path: Path) -> None:
    """Case I01: what is cut, empty or no image fails the run, each file named, and nothing is left."""
    source = find_source([CASES / "images"])

    with pytest.raises(SampleError, match="7 of the files cannot be packed") as caught:
        pack(source, tmp_path / "set")

    reasons = {Path(bad.name).name: bad.reason for bad in caught.value.facts["unreadable"]}
    assert sorted(reasons) == ["bomb.jpg", "bomb.png", "empty.jpg", "html.jpg", "trunc.png", "trunc_half.jpg",
                               "trunc_header.jpg"]  # fmt: skip
    assert (reasons["empty.jpg"], reasons["html.jpg"]) == (
        "the file is empty",
        "not an image of a known format",
    )
    assert not list(tmp_path.glob("set/*"))


def test_unreadable_files_can_be_left_out(tmp_path: Path) -> None:
    """With `skip_bad` the good files are packed, in order, and the bad ones are told."""
    files = write(tmp_path / "src", "1.jpg", "2.jpg", "3.jpg", "4.jpg")
    (tmp_path / "src" / "2.jpg").write_bytes(b"<html>")
    (tmp_path / "src" / "4.jpg").unlink()
    (tmp_path / "src" / "4.jpg").symlink_to("nowhere")

    report, dataset = packed(find_source([tmp_path / "src"]), tmp_path / "set", skip_bad=True)

    assert stored(dataset, "image") == [files["1.jpg"], files["3.jpg"]]
    assert [bad.reason for bad in report.unreadable] == [
        "not an image of a known format",
        "No such file or directory",
    ]


def test_only_unreadable_files_make_no_set(tmp_path: Path) -> None:
    """A set without records is not made, not even with `skip_bad`."""
    write_files(tmp_path / "src", {"1.jpg": b""})

    with pytest.raises(SampleError, match="1 of the files"):
        pack(find_source([tmp_path / "src"]), tmp_path / "set", skip_bad=True)

    assert not list(tmp_path.glob("set/*"))


def test_a_value_that_does_not_fit_is_unreadable(tmp_path: Path) -> None:
    """A number or text in an archive that is none is told like a file that cannot be read."""
    files = {"a.cls": b"1", "b.cls": b"one", "c.cls": b"1" * 30, "d.cls": b"2"}
    source = find_source([write_tar(tmp_path / "a.tar", files)])

    report, dataset = packed(source, tmp_path / "set", skip_bad=True)

    assert [dataset[0]["cls"], dataset[1]["cls"]] == [1, 2]
    assert [bad.name for bad in report.unreadable] == ["record 1 (a.tar), b", "record 2 (a.tar), c"]


def test_only_a_full_check_finds_damage_inside(tmp_path: Path) -> None:
    """The header check looks at both ends of a file, the full one decodes it, and none looks at nothing."""
    write_files(tmp_path / "src", {"1.png": case("trunc.png") + b"IEND"})

    pack(find_source([tmp_path / "src"]), tmp_path / "header", recipe=Recipe(check="header"))
    pack(find_source([tmp_path / "src"]), tmp_path / "none", recipe=Recipe(check="none"))
    with pytest.raises(SampleError):
        pack(find_source([tmp_path / "src"]), tmp_path / "full", recipe=Recipe(check="full"))


# re-encoding


def test_larger_images_are_made_smaller(tmp_path: Path) -> None:
    """The shorter side becomes N; what is no larger keeps its bytes; the order is that of the names."""
    sizes = {"1.jpg": (64, 48), "2.jpg": (30, 90), "3.jpg": (20, 60), "4.jpg": (300, 21)}
    files = write_files(tmp_path / "src", {name: picture(1, size) for name, size in sizes.items()})

    _, dataset = packed(
        find_source([tmp_path / "src"]), tmp_path / "set", recipe=Recipe(resize=20), num_workers=2
    )

    shapes = [dataset[number]["image"].shape for number in range(4)]
    assert shapes == [(20, 27, 3), (60, 20, 3), (60, 20, 3), (20, 286, 3)]
    assert stored(dataset, "image")[2] == files["3.jpg"]


def test_a_smaller_image_is_smooth(tmp_path: Path) -> None:
    """Scaling down averages: a fine chequerboard becomes even gray, not stripes."""
    board = np.indices((200, 200)).sum(0).astype(np.uint8) % 2 * 255
    (tmp_path / "src").mkdir()
    Image.fromarray(board).save(tmp_path / "src" / "1.png")

    _, dataset = packed(
        find_source([tmp_path / "src"]), tmp_path / "set", recipe=Recipe(resize=25), num_workers=1
    )

    pixels = dataset[0]["image"].astype(int)
    assert np.abs(pixels - 128).max() < 8


def test_quality_re_encodes_upright(tmp_path: Path) -> None:
    """With a quality every image becomes a JPEG of it, turned as its tags say, gray where it was gray."""
    write_files(tmp_path / "src", {"1.jpg": case("exif_o6.jpg"), "2.png": case("gray16.png")})

    _, dataset = packed(
        find_source([tmp_path / "src"]), tmp_path / "set", recipe=Recipe(quality=95), num_workers=1
    )

    turned, gray = (Image.open(io.BytesIO(data)) for data in stored(dataset, "image"))
    assert (turned.format, turned.size, turned.getpixel((8, 6))[0] > 150) == ("JPEG", (64, 48), True)
    assert (gray.format, gray.mode, abs(np.asarray(gray).mean() - 127.5) < 1) == ("JPEG", "L", True)


def test_re_encoding_finds_what_is_damaged(tmp_path: Path) -> None:
    """A file that a process cannot decode is told like any other; one that is only copied is checked too."""
    write_files(tmp_path / "src", {"1.jpg": case("trunc_half.jpg"), "2.jpg": picture(2)})

    large, small = Recipe(resize=10), Recipe(resize=5000)
    reports = [
        pack(find_source([tmp_path / "src"]), tmp_path / name, recipe=recipe, num_workers=1, skip_bad=True)
        for name, recipe in (("large", large), ("small", small))
    ]

    assert [[Path(bad.name).name for bad in report.unreadable] for report in reports] == [
        ["1.jpg"],
        ["1.jpg"],
    ]


# the packer


def test_the_order_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    """One thread or many, the set is the same, byte for byte."""
    write(tmp_path / "src", *(f"{number:03}.jpg" for number in range(100)))

    for workers in (1, 7):
        pack(
            find_source([tmp_path / "src"]), tmp_path / f"{workers}", num_workers=workers, shard_bytes=20_000
        )

    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(names) > 4
    assert [(tmp_path / "1" / n).read_bytes() for n in names] == [
        (tmp_path / "7" / n).read_bytes() for n in names
    ]


def test_progress_adds_up(tmp_path: Path) -> None:
    """The costs told to `progress` add up to the source's, and the bytes to those packed."""
    files = write(tmp_path / "src", "1.jpg", "2.jpg", "3.jpg")
    (tmp_path / "src" / "2.jpg").write_bytes(b"")
    source, told = find_source([tmp_path / "src"]), []

    pack(
        source,
        tmp_path / "set",
        skip_bad=True,
        progress=lambda cost, num_bytes: told.append((cost, num_bytes)),
    )

    assert told == [(1, len(files["1.jpg"])), (1, 0), (1, len(files["3.jpg"]))]
    assert source.cost == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0}, "num_workers"),
        ({"recipe": Recipe(check="some")}, "check"),
        ({"recipe": Recipe(resize=0)}, "resize"),
        ({"recipe": Recipe(quality=101)}, "quality"),
        ({"index_fields": ["image"]}, "index_fields"),
    ],
)
def test_options_are_checked_first(tmp_path: Path, options: dict[str, object], message: str) -> None:
    """An option that cannot work is an error before a folder is made."""
    write(tmp_path / "src", "1.jpg")

    with pytest.raises(ConfigError, match=message):
        pack(find_source([tmp_path / "src"]), tmp_path / "set", **options)

    assert not (tmp_path / "set").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run ends all processes and takes back what was written."""
    write(tmp_path / "src", *(f"{number}.jpg" for number in range(200)))

    ended = scripts.run(
        KILLED_PACKER, tmp_path / "src", tmp_path / "set", int(signal.SIGINT), folder=tmp_path
    )

    assert ended.out == "five\n"
    assert ended.status in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in ended.err
    assert not list(tmp_path.glob("set/*"))


def test_a_kill_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    """After SIGKILL no process is left, there is no manifest, and the next run succeeds."""
    files = write(tmp_path / "src", *(f"{number:03}.jpg" for number in range(200)))

    ended = scripts.run(
        KILLED_PACKER, tmp_path / "src", tmp_path / "set", int(signal.SIGKILL), folder=tmp_path
    )

    assert ended.status == -signal.SIGKILL
    assert not (tmp_path / "set" / "manifest.json").exists()
    _, dataset = packed(find_source([tmp_path / "src"]), tmp_path / "set")
    assert stored(dataset, "image") == list(files.values())


def test_a_killed_process_is_an_error(tmp_path: Path) -> None:
    """A process that dies while it re-encodes ends the run with an error, and nothing is left."""
    write(tmp_path / "src", *(f"{number:03}.jpg" for number in range(200)))
    source = find_source([tmp_path / "src"])

    with pytest.raises(WorkerError, match="re-encodes images died"):
        pack(
            source,
            tmp_path / "set",
            recipe=Recipe(quality=50),
            num_workers=1,
            progress=lambda cost, num_bytes: [child.kill() for child in multiprocessing.active_children()],
        )

    assert not list(tmp_path.glob("set/*"))


def test_rows_of_a_parquet_table_are_records(tmp_path: Path) -> None:
    """Numbers, texts and lists of numbers keep their kinds, pictures are bytes, all else is JSON."""
    columns = {
        "label": [1, 2], "name": ["a", "b"], "box": [[[1.5]], [[2.5]]], "tags": [["x"], []],
        "image": [{"bytes": picture(number), "path": None} for number in (1, 2)],
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")

    report, dataset = packed(find_source([tmp_path / "rows.parquet"]), tmp_path / "set")

    assert report.records == 2
    assert dataset.fields == {
        "label": "int", "name": "str", "box": "ndarray", "tags": "json", "image": "image"
    }  # fmt: skip
    found = dataset[1]
    assert (found["label"], found["name"], found["box"].tolist(), found["tags"]) == (2, "b", [[2.5]], [])
    assert found["image"].shape == (12, 16, 3)


def test_an_empty_cell_of_a_parquet_table_is_left_out_and_told(tmp_path: Path) -> None:
    """With `skip_bad` the other rows are packed; without, it is an error that names the row."""
    pq.write_table(pa.table({"label": [1, None, 3]}), tmp_path / "rows.parquet")

    report, dataset = packed(find_source([tmp_path / "rows.parquet"]), tmp_path / "set", skip_bad=True)

    assert [dataset[record]["label"] for record in range(2)] == [1, 3]
    assert [bad.name for bad in report.unreadable] == [f"row 1 of {tmp_path / 'rows.parquet'}"]
    with pytest.raises(SampleError, match=r"row 1 of .*'label' is empty"):
        pack(find_source([tmp_path / "rows.parquet"]), tmp_path / "other")


def test_any_number_of_parquet_tables_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are opened one at a time: a process may not have as many files open as there are tables."""
    for number in range(3):
        pq.write_table(pa.table({"label": [number]}), tmp_path / f"{number}.parquet")
    opened: list[pq.ParquetFile] = []
    open_table = pq.ParquetFile

    def open_alone(path: Path) -> pq.ParquetFile:
        assert all(table.closed for table in opened)
        opened.append(open_table(path))
        return opened[-1]

    monkeypatch.setattr(pq, "ParquetFile", open_alone)
    _, dataset = packed(find_source([tmp_path / "{0..2}.parquet"]), tmp_path / "set")

    assert [dataset[record]["label"] for record in range(3)] == [0, 1, 2]
    assert all(table.closed for table in opened)


@pytest.mark.parametrize("way", scripts.WAYS)
def test_re_encoding_needs_no_main_guard(tmp_path: Path, way: str) -> None:
    """`pack` with processes works from a script without a guard, from `python -c` and from standard input."""
    write(tmp_path / "src", "1.jpg", "2.jpg")
    script = """
        import sys
        from aioload.packing import Recipe, find_source, pack
        print(pack(find_source([sys.argv[1]]), sys.argv[2], recipe=Recipe(quality=50), num_workers=1).records)
    """

    ended = scripts.run(script, tmp_path / "src", tmp_path / "set", folder=tmp_path, way=way)

    assert (ended.status, ended.out, ended.err) == (0, "2\n", "")
