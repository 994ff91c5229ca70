"""The limits of this very process count, wherever in the tree of groups they were set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aioload import cgroup, machine

MIB = 1 << 20

NEW = "29 23 0:26 {root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
OLD = "35 31 0:32 {root} {place} rw,relatime - cgroup cgroup rw,{controller}\n"


def make(folder: Path, **files: str) -> Path:
    """Write the files of a group."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")
    return folder


def new(tmp_path: Path, *, path: str = "/", root: str = "/") -> Path:
    """What the kernel tells of a process in the new hierarchy; it is mounted at `tmp_path / "new"`."""
    place = str(tmp_path / "new").replace(" ", "\\040")
    return make(tmp_path / "self", cgroup=f"0::{path}", mountinfo=NEW.format(root=root, place=place))


def old(tmp_path: Path, *, path: str = "/", root: str = "/", controller: str = "memory") -> Path:
    """The same in the old hierarchy, mounted at `tmp_path / "old"`, with an empty new one beside it."""
    mounts = NEW.format(root="/", place=tmp_path / "new")
    mounts += OLD.format(root=root, place=tmp_path / "old", controller=controller)
    return make(tmp_path / "self", cgroup=f"4:{controller}:{path}\n0::/", mountinfo=mounts)


def test_new_memory_limit_of_the_process_s_own_group(tmp_path: Path) -> None:
    """A limit of 512 MiB on the group leaves what it has not used."""
    process = new(tmp_path, path="/user/job")
    make(tmp_path / "new/user/job", memory__max=str(512 * MIB), memory__current=str(100 * MIB))

    assert cgroup.memory_left(process) == 412 * MIB


def test_the_tightest_limit_up_the_tree_counts(tmp_path: Path) -> None:
    """A group above with less left decides, and "max" bounds nothing."""
    process = new(tmp_path, path="/user/job")
    make(tmp_path / "new/user/job", memory__max="max", memory__current=str(100 * MIB))
    make(tmp_path / "new/user", memory__max=str(700 * MIB), memory__current=str(650 * MIB))
    make(tmp_path / "new", memory__max=str(800 * MIB), memory__current=str(700 * MIB))

    assert cgroup.memory_left(process) == 50 * MIB


def test_the_limit_of_another_group_does_not_count(tmp_path: Path) -> None:
    """What stands in the root's files or a neighbour's is not this process's, unless it is above it."""
    process = new(tmp_path, path="/user/job")
    make(tmp_path / "new/user/other", memory__max=str(MIB), memory__current="0")
    make(tmp_path / "new/user/job", memory__max="max", memory__current=str(MIB))

    assert cgroup.memory_left(process) is None


def test_throttling_is_a_limit_too(tmp_path: Path) -> None:
    """Beyond `memory.high` a group is slowed down: it counts like a limit."""
    process = new(tmp_path)
    make(tmp_path / "new", memory__max="max", memory__high=str(300 * MIB), memory__current=str(100 * MIB))

    assert cgroup.memory_left(process) == 200 * MIB


def test_page_cache_can_be_had_back(tmp_path: Path) -> None:
    """Cache that the group gives up when asked counts as left; more used than allowed leaves nothing."""
    process = new(tmp_path, path="/job")
    stat = f"anon 5\nfile 6\ninactive_file {80 * MIB}\nactive_file 7"
    make(tmp_path / "new/job", memory__max=str(512 * MIB), memory__current=str(500 * MIB), memory__stat=stat)
    tight = make(tmp_path / "new/job", memory__max=str(512 * MIB))
    with_cache = cgroup.memory_left(process)
    make(tight, memory__current=str(900 * MIB))

    assert with_cache == 92 * MIB
    assert cgroup.memory_left(process) == 0


def test_old_memory_limit(tmp_path: Path) -> None:
    """The old hierarchy is read from its own mount; its huge number is no limit."""
    process = old(tmp_path, path="/docker/abc")
    group = make(
        tmp_path / "old/docker/abc",
        memory__limit_in_bytes=str(512 * MIB),
        memory__usage_in_bytes=str(200 * MIB),
        memory__stat=f"inactive_file 1\ntotal_inactive_file {10 * MIB}",
    )
    make(tmp_path / "old", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="5")
    limited = cgroup.memory_left(process)
    make(group, memory__limit_in_bytes="9223372036854771712")

    assert limited == 322 * MIB
    assert cgroup.memory_left(process) is None


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/docker/abc", "/docker/abc"),
        ("/docker/abc/job", "/docker/abc"),
        ("/../other", "/"),
        ("/elsewhere", "/docker/abc"),
    ],
)
def test_a_container_sees_its_own_part_of_the_tree(tmp_path: Path, path: str, root: str) -> None:
    """Where the group's path leads out of what is mounted, the mount's own folder is the highest there is."""
    process = new(tmp_path, path=path, root=root)
    make(tmp_path / "new", memory__max=str(512 * MIB), memory__current=str(12 * MIB))

    assert cgroup.memory_left(process) == 500 * MIB


def test_mounts_with_blanks_in_their_names(tmp_path: Path) -> None:
    """The kernel's way of writing a blank is understood."""
    process = new(tmp_path / "with blank")
    make(tmp_path / "with blank/new", memory__max=str(7 * MIB), memory__current="0")

    assert cgroup.memory_left(process) == 7 * MIB


def test_cpus_of_both_hierarchies(tmp_path: Path) -> None:
    """A quota above the process's group counts, in the new hierarchy and in the old."""
    process = new(tmp_path / "a", path="/user/job")
    make(tmp_path / "a/new/user/job", cpu__max="max 100000")
    make(tmp_path / "a/new/user", cpu__max="150000 100000")
    older = old(tmp_path / "b", path="/job", controller="cpu,cpuacct")
    make(tmp_path / "b/old/job", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    make(tmp_path / "b/old", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")

    assert cgroup.cpus(process) == 1.5
    assert cgroup.cpus(older) == 0.5


@pytest.mark.parametrize("text", ["", "no such line", "0::/\n::\n:::", "5:memory:/x"])
def test_what_cannot_be_read_bounds_nothing(tmp_path: Path, text: str) -> None:
    """Missing, empty and strange files are no limit and no error: other systems have none of them."""
    process = make(tmp_path / "self", cgroup=text, mountinfo=text)

    assert cgroup.memory_left(process) is None
    assert cgroup.memory_left(tmp_path / "nowhere") is None
    assert cgroup.cpus(process) is None


def test_limits_bound_what_is_said_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's defaults follow the group where it is tighter than the machine."""
    free = machine.available_memory()
    monkeypatch.setattr(cgroup, "memory_left", lambda: 64 * MIB)
    monkeypatch.setattr(cgroup, "cpus", lambda: 0.5)

    assert free > 64 * MIB
    assert machine.available_memory() == 64 * MIB
    assert machine.usable_cpus() == 1


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("1 0 8:1 / / rw - ext4 /dev/sda rw", True),
        ("1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {folder} rw - nfs4 server:/x rw", False),
        ("1 0 0:9 / / rw - nfs4 server:/x rw\n2 1 8:1 / {folder} rw - xfs /dev/sda rw", True),
        ("1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / {folder}-other rw - nfs4 server:/x rw", True),
        ("1 0 8:1 / / rw - fuse.sshfs x rw", False),
        ("", False),
    ],
)
def test_local_disks_are_told_by_their_mounts(tmp_path: Path, mounts: str, expected: bool) -> None:
    """The deepest mount above a file decides; what is not known is not local."""
    folder = (tmp_path / "set").resolve()
    told = tmp_path / "mountinfo"
    told.write_text(mounts.format(folder=folder))

    assert machine.is_local(str(folder / "shard"), told) is expected


def test_where_nothing_is_told_nothing_is_local(tmp_path: Path) -> None:
    """No list of mounts at all."""
    assert not machine.is_local(str(tmp_path), tmp_path / "missing")


def test_all_memory_is_at_most_the_machines() -> None:
    """A limit of the cgroup only makes it less."""
    assert 0 < machine.total_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
