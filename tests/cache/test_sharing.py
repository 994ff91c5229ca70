"""Sharing: all ranks of a machine have one memory, whoever of them ends, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import aioload
from aioload.cache import sharing
from aioload.cache.memory import MemoryStore
from aioload.cache.packed import Packed
from aioload.cache.sharing import share

DATA = np.arange(4096, dtype=np.uint8)
SAMPLE = Packed([DATA], len(DATA), google_crc32c.value(DATA))


def make() -> MemoryStore:
    """Make a memory for ten records."""
    return MemoryStore.create(10, 1 << 20)


def named(path: Path) -> str:
    """Return a name that no other test has."""
    return path.name + str(os.getpid())


def has(store: MemoryStore, slot: int) -> bool:
    """Tell whether a record's bytes are kept."""
    place, size, _ = store.index[slot].tolist()
    data = np.zeros(size, np.uint8)
    return bool(place) and store.get(place, data) and bool((data == DATA).all())


def test_the_second_gets_what_the_first_has_made(tmp_path: Path) -> None:
    """Both write into one memory, and the second lives on when the first is closed."""
    first, host = share(named(tmp_path), make) or pytest.fail("nothing is shared")
    second, other_host = share(named(tmp_path), make) or pytest.fail("nothing is shared")
    first.put(1, SAMPLE)
    second.put(2, SAMPLE)

    seen = has(first, 2), has(second, 1)
    assert host is not None
    host.close()
    first.close()

    assert (seen, other_host, has(second, 1)) == ((True, True), None, True)
    second.close()


def test_a_closed_memory_is_made_anew(tmp_path: Path) -> None:
    """Its name is free again at once."""
    for _ in range(2):
        store, host = share(named(tmp_path), make) or pytest.fail("nothing is shared")
        assert host is not None
        assert not has(store, 1)
        store.put(1, SAMPLE)
        host.close()
        store.close()


def test_a_memory_that_cannot_be_made_leaves_its_name_free(tmp_path: Path) -> None:
    """The next who asks makes it, instead of waiting for nobody."""

    def fail() -> MemoryStore:
        raise MemoryError

    with pytest.raises(MemoryError) as kept:
        share(named(tmp_path), fail)
    store, host = share(named(tmp_path), make) or pytest.fail("nothing is shared")

    assert kept.value.__traceback__ is not None  # its frames are alive: nothing was freed by chance
    assert host is not None
    host.close()
    store.close()


def test_a_killed_host_harms_nobody(tmp_path: Path) -> None:
    """Who has the memory keeps it, and the next who asks makes one."""
    code = (
        "import sys, time\n"
        "from aioload.cache.memory import MemoryStore\n"
        "from aioload.cache.sharing import share\n"
        "found = share(sys.argv[1], lambda: MemoryStore.create(10, 1 << 20))\n"
        "print(found[1] is not None, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(aioload.__file__).parent.parent)}
    command = [sys.executable, "-c", code, named(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "True\n"
    mine, none = share(named(tmp_path), make) or pytest.fail("nothing is shared")
    mine.put(1, SAMPLE)

    child.send_signal(signal.SIGKILL)
    child.communicate()
    new, host = share(named(tmp_path), make) or pytest.fail("nothing is shared")

    assert (none, has(mine, 1), has(new, 1), host is not None) == (None, True, False, True)
    assert host is not None
    host.close()
    new.close()
    mine.close()


def test_whoever_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that somebody holds and never serves leads to memory of one's own, in bounded time."""
    monkeypatch.setattr(sharing, "_PATIENCE", 0.1)
    monkeypatch.setattr(sharing, "_ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(f"\0aioload-cache-{os.getuid()}-{named(tmp_path)}")
        deaf.listen()

        assert share(named(tmp_path), make) is None


def test_where_there_are_no_such_sockets_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that refuses them leaves each rank its own memory."""

    def refuse(address: str) -> None:
        raise PermissionError(address)

    monkeypatch.setattr(sharing, "_bind", refuse)

    assert share(named(tmp_path), make) is None


def test_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory goes to the same user, and is taken from no other."""
    store, host = share(named(tmp_path), make) or pytest.fail("nothing is shared")
    monkeypatch.setattr(sharing, "_PATIENCE", 0.1)
    monkeypatch.setattr(sharing, "_is_ours", lambda _: False)

    assert share(named(tmp_path), make) is None
    assert host is not None
    host.close()
    store.close()
