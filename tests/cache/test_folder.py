"""Folder of samples: what was listed is whole, whoever was killed; the limit is that of the folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from aioload.bytelocks import locked_file
from aioload.cache.entries import LISTED, listed, parse_list
from aioload.cache.folder import DATA, LIST, DiskWriter, KeyFolder, SampleFolder
from aioload.cache.packed import Packed

LIMIT = 1 << 20
KEY, OTHER = "a" * 32, "b" * 32


def data_of(record: int, size: int = 4096) -> np.ndarray:
    """Return bytes that tell their record."""
    return np.full(size, record % 251, np.uint8)


def write(writer: DiskWriter, *records: int, size: int = 4096) -> list[bool]:
    """Write bytes of records."""
    found = []
    for record in records:
        data = data_of(record, size)
        found.append(writer.put(record, Packed([data], len(data), google_crc32c.value(data))))
    return found


def read(key: KeyFolder) -> dict[int, bytes]:
    """Return what was listed since the last look, by record."""
    found = {}
    for name, entries in key.fresh():
        data = (key.place / name).read_bytes()
        for record, start, size, sum_, _ in entries.tolist():
            found[record] = data[start : start + size]
            assert google_crc32c.value(found[record]) == sum_
    return found


def test_what_one_writes_another_finds(tmp_path: Path) -> None:
    """Samples of one run are there for the next, and each look finds what is new."""
    folder = SampleFolder(tmp_path, LIMIT)
    reader, own = folder.open(KEY, {}), folder.open(KEY, {})
    writer = DiskWriter(folder, own.place)

    write(writer, 1, 2)
    first = read(reader)
    write(writer, 3)
    second = read(reader)
    writer.close()
    own.close()
    reader.close()

    assert (sorted(first), sorted(second)) == ([1, 2], [3])
    assert second[3] == data_of(3).tobytes()


def test_keys_do_not_meet(tmp_path: Path) -> None:
    """What is kept under one name is not found under another."""
    folder = SampleFolder(tmp_path, LIMIT)
    one, other = folder.open(KEY, {}), folder.open(OTHER, {})
    writer = DiskWriter(folder, one.place)

    write(writer, 1)
    writer.close()

    assert (sorted(read(one)), sorted(read(other))) == ([1], [])
    one.close()
    other.close()


def test_the_limit_is_that_of_the_folder(tmp_path: Path) -> None:
    """Writers share it; what is full keeps what it has."""
    folder = SampleFolder(tmp_path, LIMIT)
    key = folder.open(KEY, {})
    writers = [DiskWriter(folder, key.place) for _ in range(3)]

    taken = [write(writers[record % 3], record)[0] for record in range(400)]
    found = read(key)
    for writer in writers:
        writer.close()
    key.close()

    used = sum(path.stat().st_size for path in key.place.iterdir())
    assert LIMIT * 0.8 <= used <= LIMIT * 1.02
    assert sorted(found) == [record for record, kept in enumerate(taken) if kept]


def test_another_key_makes_room(tmp_path: Path) -> None:
    """What other code has left goes, unless somebody uses it."""
    folder = SampleFolder(tmp_path, LIMIT)
    old = folder.open(OTHER, {})
    writer = DiskWriter(folder, old.place)
    write(writer, *range(300))
    writer.close()
    key = folder.open(KEY, {})
    own = DiskWriter(folder, key.place)

    in_use = write(own, 1)
    old.close()
    own.close()
    again = DiskWriter(folder, key.place)
    unused = write(again, 1)
    again.close()
    key.close()

    assert (in_use, unused, old.place.exists()) == ([False], [True], False)


def test_what_cannot_be_removed_makes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else has left, and only they can remove, still counts against the limit."""
    monkeypatch.setattr("aioload.cache.folder.shutil.rmtree", refuse)
    folder = SampleFolder(tmp_path, LIMIT)
    left = folder.root / "gone-0123"
    left.mkdir(parents=True)
    (left / "x.data").write_bytes(bytes(LIMIT))
    key = folder.open(KEY, {})
    writer = DiskWriter(folder, key.place)

    taken = write(writer, 1)
    writer.close()
    key.close()

    assert (taken, left.exists()) == ([False], True)


def refuse(path: Path, *, ignore_errors: bool = False) -> None:
    """Stand for a folder that is not ours to remove."""
    if not ignore_errors:
        raise PermissionError(path)


def test_a_writer_that_was_killed_leaves_what_is_whole(tmp_path: Path) -> None:
    """Whatever a kill cuts off, each listed sample is right, and room that was not used comes back."""
    code = (
        "import sys, itertools, pathlib, numpy as np, google_crc32c\n"
        "from aioload.cache.folder import SampleFolder, DiskWriter\n"
        "from aioload.cache.packed import Packed\n"
        f"folder = SampleFolder(pathlib.Path(sys.argv[1]), {LIMIT << 6})\n"
        f"writer = DiskWriter(folder, folder.open({KEY!r}, {{}}).place)\n"
        "for record in itertools.count():\n"
        "    data = np.full(4096, record % 251, np.uint8)\n"
        "    writer.put(record % 1000, Packed([data], len(data), google_crc32c.value(data)))\n"
        "    if record == 20: print(flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    key = SampleFolder(tmp_path, LIMIT << 6).open(KEY, {})
    found = read(key)
    key.close()

    assert len(found) > 20
    [data] = key.place.glob(f"*{DATA}")
    [list_] = key.place.glob(f"*{LIST}")
    assert data.stat().st_size == list_.stat().st_size // LISTED.itemsize * 4096


def test_a_key_that_goes_while_it_is_opened_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes room may remove it between the two steps in which another opens it."""
    mkdir, removals = Path.mkdir, iter([True])

    def mkdir_and_lose(path: Path, *mode: int, **options: Any) -> None:
        mkdir(path, *mode, **options)
        if path.name == KEY and next(removals, False):
            shutil.rmtree(path)

    monkeypatch.setattr(Path, "mkdir", mkdir_and_lose)
    key = SampleFolder(tmp_path, LIMIT).open(KEY, {})

    assert (key.place / "about.json").exists()
    key.close()


def test_a_folder_that_goes_while_it_is_used_has_nothing_new(tmp_path: Path) -> None:
    """Somebody may remove all of it by hand; that is no error for whoever reads there."""
    key = SampleFolder(tmp_path, LIMIT).open(KEY, {})
    shutil.rmtree(tmp_path)

    found = read(key)
    key.close()

    assert found == {}


def test_a_key_that_cannot_be_opened_is_not_in_use(tmp_path: Path) -> None:
    """What fails on the way holds no lock, so that others can make room."""
    before = len([*Path("/proc/self/fd").iterdir()])

    with pytest.raises(TypeError):
        SampleFolder(tmp_path, LIMIT).open(KEY, {"no JSON": object()})

    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_disk_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    """Failing is the caller's to handle, and is told as it is."""
    folder = SampleFolder(tmp_path, LIMIT)
    key = folder.open(KEY, {})
    writer = DiskWriter(folder, key.place)
    write(writer, 1)
    os.close(writer._data)
    writer._data = os.open("/dev/full", os.O_RDWR)

    with pytest.raises(OSError, match="No space left"):
        write(writer, 2)
    writer.close()
    key.close()


def test_whoever_has_the_ledger_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample for which there is no room in time is not kept; the next may be."""
    monkeypatch.setattr("aioload.cache.folder._PATIENCE", 0.02)
    folder = SampleFolder(tmp_path, LIMIT)
    key = folder.open(KEY, {})
    writer = DiskWriter(folder, key.place)

    with locked_file(folder.root / "ledger", 1):
        refused = write(writer, 1)
    taken = write(writer, 2)
    writer.close()

    assert (refused, taken, sorted(read(key))) == ([False], [True], [2])
    key.close()


def test_entries_that_are_not_whole_are_passed_over() -> None:
    """Zeros, garbage and a cut end of a list say nothing."""
    good, bad = listed(7, 64, 128, 9), bytearray(listed(8, 64, 128, 9))
    bad[3] ^= 1

    found, looked_at = parse_list(good + bytes(LISTED.itemsize) + bytes(bad) + good[:5])

    assert found["record"].tolist() == [7]
    assert looked_at == 3 * LISTED.itemsize
