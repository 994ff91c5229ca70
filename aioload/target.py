"""Target: a file that will be written at the end of a run; whether it can be is found out before."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from .errors import ConfigError

__all__ = ["find_target"]


def find_target(path: Any, what: str) -> Path:
    """Return where a file will be put, with links followed, so that it takes the place of no link.

    Args:
        path: of the file, as the user gave it.
        what: it is, in words.

    Raises:
        ConfigError: there can be no such file: it is no path, a folder or a device is there, or its folder is
            missing or cannot be written to.
    """
    try:
        found = Path(os.path.realpath(os.fsdecode(path)))
        mode = _mode(found)
        with tempfile.TemporaryFile(dir=found.parent):
            pass
    except TypeError:
        raise ConfigError(f"{what} needs the path of a file to be written, got {path!r}") from None
    except (OSError, ValueError) as error:  # a ValueError of a path with a zero byte in it
        told = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{what} {path!s} cannot be written: {told}; name a file in a folder that can be"
        ) from error
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{what} {found} would take the place of a folder; name a file")
    if mode and not stat.S_ISREG(mode):  # /dev/null, say, which root would replace for all of the machine
        raise ConfigError(f"{what} {found} would take the place of something that is no file; name a file")
    return found


def _mode(path: Path) -> int:
    """Return what is there; 0 if nothing is."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0
