"""Scripts of a user, run in an interpreter of their own: from a file, by `python -c`, from standard input."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["WAYS", "Ended", "run"]

REPOSITORY = Path(__file__).parent.parent
WAYS = ["file", "-c", "stdin"]


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
