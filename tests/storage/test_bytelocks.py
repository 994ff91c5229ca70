"""Bytes are locked between open files, of one process or several, and free when their holder ends."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioload.bytelocks import Busy, ByteLock, locked_file

pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="this system has no locks of files")


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[list[ByteLock]]:
    """Three readers of one file."""
    made = [ByteLock(tmp_path / "locks") for _ in range(3)]
    yield made
    for lock in made:
        lock.close()


def test_sharers_keep_others_from_taking(locks: list[ByteLock]) -> None:
    """Many may share a byte, one may have it alone, and bytes beside it are free."""
    assert locks[0].share(7)
    assert locks[1].share(7)
    assert not locks[2].take(7)
    assert not locks[2].is_free(7)
    assert locks[2].take(8)

    locks[0].release(7)
    locks[1].close()

    assert locks[2].is_free(7)
    assert locks[2].take(5, 3)
    assert not locks[0].share(6)


def test_looking_disturbs_nobody(locks: list[ByteLock]) -> None:
    """After a look a byte is as free as before."""
    assert locks[0].is_free(1)
    assert locks[1].take(1)


def test_a_process_that_dies_lets_go(tmp_path: Path, locks: list[ByteLock]) -> None:
    """Whatever it held, and however it ends."""
    code = (
        "import os, pathlib, signal, sys; from aioload.bytelocks import ByteLock; "
        "lock = ByteLock(pathlib.Path(sys.argv[1])); "
        "print(lock.take(3), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "locks")]
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        told = process.stdout.readline().strip()
        held = not locks[0].is_free(3)
        process.kill()

    assert (told, held) == ("True", True)
    assert locks[0].take(3)


def test_waiting_for_a_file_has_an_end(tmp_path: Path) -> None:
    """Somebody who never lets go is an error after a while."""
    with locked_file(tmp_path / "ledger", 1), pytest.raises(Busy), locked_file(tmp_path / "ledger", 0.01):
        pass

    with locked_file(tmp_path / "ledger", 0):
        pass
