"""On machines without /dev/shm, memfd, a home, cores or much memory, the batches are the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import scripts
from batches import counted, plain, take_sync

from aioload import ConfigError, Loader
from aioload._workers import arena


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records in several shards."""
    return counted(tmp_path_factory.mktemp("hundred") / "set", shard_bytes=4000)


SUM = """
    import os, sys
    {before}
    import aioload

    total = lambda samples: sum(int(sample["n"]) for sample in samples)
    loader = aioload.Loader(sys.argv[1], batch_size=10, num_workers=2, collate=total)
    with loader.sync() as source:
        print(sum(source), loader.num_workers)
"""


def take_with_kinds(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[object]]:
    """Take an epoch where there is no memfd; tell which kinds of arena were made."""
    made: list[str] = []
    opened = arena._open

    def note(size: int, kinds: tuple[arena.Kind, ...], spare: int) -> tuple[int, arena.Kind]:
        fd, kind = opened(size, kinds, spare)
        made.append(kind)
        return fd, kind

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(arena, "_open", note)
    found = take_sync(Loader(path, batch_size=10, num_workers=2, memory_limit="4MiB"))
    return made, [plain(batch) for batch in found]


def test_without_memfd(hundred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memfd is missing (macOS, old kernels) the arena is an unnamed file; all else is the same."""
    expected = [plain(batch) for batch in take_sync(Loader(hundred, batch_size=10, num_workers=0))]

    made, found = take_with_kinds(hundred, tmp_path, monkeypatch)

    assert made == ["shm"]
    assert found == expected


def test_without_memfd_and_room_in_shm(
    hundred: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A /dev/shm that has no room is passed over for a temporary file."""
    expected = [plain(batch) for batch in take_sync(Loader(hundred, batch_size=10, num_workers=0))]
    monkeypatch.setitem(arena._OPENERS, "shm", lambda size: arena._open_unlinked(size, "/proc"))

    made, found = take_with_kinds(hundred, tmp_path, monkeypatch)

    assert made == ["file"]
    assert found == expected


def test_no_room_anywhere_is_told_before_anything_starts(
    hundred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no place has room for the limit, that is a ConfigError that names the places and what to do."""
    monkeypatch.delattr(os, "memfd_create")
    for kind in ("shm", "file"):
        monkeypatch.setitem(arena._OPENERS, kind, lambda size: arena._open_unlinked(size, "/proc"))

    with pytest.raises(ConfigError, match="lower memory_limit") as caught:
        take_sync(Loader(hundred, batch_size=10, num_workers=2))

    assert "/dev/shm" in str(caught.value)


# In a namespace of mounts of its own, as root: /dev is made anew with what the row says of /dev/shm.
DEVICES = """
    set -e
    old=$1; shift
    mount --bind /dev "$old"
    mount -t tmpfs none /dev
    for name in null zero random urandom; do touch "/dev/$name"; mount --bind "$old/$name" "/dev/$name"; done
    ln -s /proc/self/fd /dev/fd
    {shm}
    exec "$@"
"""


def can_unshare() -> bool:
    """Whether this user may have a namespace of mounts."""
    tool = shutil.which("unshare")
    return (
        bool(tool)
        and not subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        ).returncode
    )


@pytest.mark.skipif(not can_unshare(), reason="needs root, to mount another /dev/shm")
@pytest.mark.parametrize(
    ("shm", "memfd"),
    [
        ("mkdir /dev/shm; mount -t tmpfs -o size=1m none /dev/shm", False),
        ("mkdir /dev/shm; mount -t tmpfs -o ro none /dev/shm", True),
        (":", True),
        (":", False),
    ],
    ids=["1 MiB, no memfd", "read-only", "missing", "missing, no memfd"],
)
def test_little_or_no_shm(hundred: Path, tmp_path: Path, shm: str, memfd: bool) -> None:
    """A /dev/shm of 1 MiB, a read-only one or none at all: workers start and the batches come."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SUM.format(before="" if memfd else "del os.memfd_create")))
    (tmp_path / "old").mkdir()
    shell = textwrap.dedent(DEVICES.format(shm=shm))
    program = [sys.executable, str(script), str(hundred)]

    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", shell, "bash", str(tmp_path / "old"), *program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(scripts.REPOSITORY)},
        timeout=50,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.split() == ["4950", "2"]


def test_a_home_that_cannot_be_written_to(hundred: Path, tmp_path: Path) -> None:
    """Nothing is written beside the data: a home and caches that do not exist are never asked for."""
    before = (
        'os.environ.update(HOME="/proc/1/none", XDG_CACHE_HOME="/proc/1/none", PYTHONDONTWRITEBYTECODE="1")'
    )

    ended = scripts.run(SUM.format(before=before), hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.split() == ["4950", "2"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_one_core(hundred: Path, tmp_path: Path) -> None:
    """On one core "auto" is one worker, and two asked for work there as well."""
    before = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    script = SUM.format(before=before)

    asked = scripts.run(script, hundred, folder=tmp_path)
    auto = scripts.run(script.replace("num_workers=2", 'num_workers="auto"'), hundred, folder=tmp_path)

    assert (asked.err, asked.out.split()) == ("", ["4950", "2"])
    assert (auto.err, auto.out.split()) == ("", ["4950", "1"])


def test_a_machine_with_512_mib(hundred: Path, tmp_path: Path) -> None:
    """Where the group leaves 512 MiB, "auto" takes a quarter of that, and so the arena is no larger."""
    before = "from aioload import cgroup; cgroup.memory_left = lambda: 512 << 20"
    script = SUM.format(before=before) + "    print(loader.stats().memory_limit)\n"

    ended = scripts.run(script, hundred, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.split() == ["4950", "2", str(128 << 20)]


def test_a_real_limit_of_memory(tmp_path: Path) -> None:
    """With 600 MiB of data memory for each process, an epoch runs to its end under a small limit."""
    path = counted(tmp_path / "set", 2000)
    before = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))"
    script = SUM.format(before=before).replace("num_workers=2", 'num_workers=2, memory_limit="64MiB"')

    ended = scripts.run(script, path, folder=tmp_path)

    assert ended.err == ""
    assert ended.out.split() == [str(sum(range(2000))), "2"]


STOPPED = """
    import os, signal, sys, time
    import aioload

    def transform(sample):
        if sample["n"] == 10 and not os.path.exists("told"):  # once: the next epoch begins ahead
            open("told", "x").close()
            print(os.getpid(), flush=True)
            time.sleep(0.3)
        return sample

    options = dict(batch_size=10, num_workers=2, transform=transform, collate=len, worker_timeout=1)
    with aioload.Loader(sys.argv[1], **options).sync() as loader:
        source = iter(loader)
        sys.stdout.write(f"{sum(source)} {loader.stats().restarts}\\n")
"""


def test_a_stopped_worker_is_no_dead_one(hundred: Path, tmp_path: Path) -> None:
    """A worker that is stopped for two seconds and goes on is waited for, with a timeout of one second."""
    with scripts.running(STOPPED, hundred, folder=tmp_path) as running:
        worker = int(running.line())
        running.pause(worker, seconds=2)
        ended = running.end()

    assert ended.err == ""
    assert ended.out.splitlines()[-1] == "100 0"


def test_a_stopped_program_goes_on(hundred: Path, tmp_path: Path) -> None:
    """The whole program stopped and continued, as by Ctrl-Z and `fg`: no worker is taken for dead or hung."""
    with scripts.running(STOPPED, hundred, folder=tmp_path) as running:
        running.line()
        running.pause_all(seconds=2)
        ended = running.end()

    assert ended.err == ""
    assert ended.out.splitlines()[-1] == "100 0"
