"""Scripts of a user, run in an interpreter of their own: from a file, by `python -c`, from standard input."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FORKING", "WAYS", "Ended", "Running", "on_terminal", "run", "running"]

REPOSITORY = Path(__file__).parent.parent
WAYS = ["file", "-c", "stdin"]

FORKING = """
import contextlib, os, sys, threading

def fork_while_held(child, *locks):
    # return the exit status of a copy of the process, made while another thread holds locks; it runs `child`
    held, go = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if not pid:
        sys.exit(child())
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    go.set()
    thread.join()
    return status
"""
"""Goes before a script that forks."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended."""

    status: int
    """Its exit status."""

    out: str
    """What it printed."""

    err: str
    """What stood on stderr; a clean end leaves nothing there."""

    after_last_line: float
    """Seconds from the script's last line to its end, if it prints `time.time()` there."""


def run(script: str, *arguments: object, folder: Path, way: str = "file") -> Ended:
    """Run a script and wait for its end.

    Args:
        script: its text; may be indented.
        arguments: what it finds in `sys.argv[1:]`.
        folder: where it runs, outside of the repository.
        way: one of `WAYS`.
    """
    text = textwrap.dedent(script)
    file = folder / "user_script.py"
    file.write_text(text)
    program = {"file": [str(file)], "-c": ["-c", text], "stdin": ["-"]}[way]
    done = subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        input=text if way == "stdin" else "",
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=50,
        check=False,
    )
    ended = time.time()
    last = done.stdout.split()[-1:] or [""]
    after = ended - float(last[0]) if last[0].replace(".", "").isdecimal() and "." in last[0] else 0.0
    return Ended(done.returncode, done.stdout, done.stderr, after)


def on_terminal(script: str, *arguments: object, folder: Path, columns: int = 100) -> Ended:
    """Run a script on a terminal of its own and wait for its end; `out` is all that came to the terminal.

    Args:
        script: its text; may be indented.
        arguments: what it finds in `sys.argv[1:]`.
        folder: where it runs, outside of the repository.
        columns: of the terminal.
    """
    file = folder / "terminal_script.py"
    file.write_text(textwrap.dedent(script))
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(file), *map(str, arguments)],
        stdin=its,
        stdout=its,
        stderr=its,
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")},
            "PYTHONPATH": str(REPOSITORY),
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": "40",
        },
        start_new_session=True,
    )
    os.close(its)
    came = b""
    with process:
        try:
            while piece := _piece(ours):
                came += piece
        finally:
            process.kill()
            os.close(ours)
    return Ended(process.returncode, came.decode().replace("\r\n", "\n"), "", 0.0)


def _piece(terminal: int) -> bytes:
    """Return what came to a terminal; nothing after the last of those who write there has ended."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux says EIO there
        return b""


class Running:
    """A script that runs, with its processes in a group of their own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def line(self) -> str:
        """Return the next line that it prints, and take nothing behind it: `end` returns the rest."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def interrupt(self) -> None:
        """Press Ctrl-C: a terminal tells every process of the group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to the script alone."""
        self._process.send_signal(number)

    def pause(self, pid: int, *, seconds: float) -> None:
        """Stop one of its processes for some time."""
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # it is this long that is tested
        os.kill(pid, signal.SIGCONT)

    def pause_all(self, *, seconds: float) -> None:
        """Stop all of its processes for some time, as Ctrl-Z does."""
        os.killpg(self.pid, signal.SIGSTOP)
        time.sleep(seconds)  # it is this long that is tested
        os.killpg(self.pid, signal.SIGCONT)

    def say(self) -> None:
        """Send it a line, for which it may wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go on\n")
        self._process.stdin.flush()

    def end(self) -> Ended:
        """Wait for its end; `after_last_line` is how long that took from now."""
        began = time.perf_counter()
        out, err = self._process.communicate(timeout=50)
        return Ended(self._process.returncode, out.decode(), err.decode(), time.perf_counter() - began)


@contextlib.contextmanager
def running(script: str, *arguments: object, folder: Path) -> Iterator[Running]:
    """Start a script; what is left of it at the end of the block is killed.

    Args:
        script: its text; may be indented.
        arguments: what it finds in `sys.argv[1:]`.
        folder: where it runs, outside of the repository.
    """
    file = folder / "running_script.py"
    file.write_text(textwrap.dedent(script))
    process = subprocess.Popen(
        [sys.executable, str(file), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # a buffer here would keep what stands behind a line from `end`
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )
    with process:
        try:
            yield Running(process)
        finally:
            process.kill()
