"""Screens: where a line can be shown that changes: a terminal, or the output of a notebook's cell."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

__all__ = ["Line", "Notebook", "Screen", "Terminal", "find_screen", "is_terminal"]

_BAR = 24  # characters, at most
_LEAST_BAR = 6
_LOW, _HIGH = 0.05, 0.30  # shares of the time in waits: from here on it matters, and is bad


@dataclass(frozen=True, slots=True)
class Line:
    """What is shown."""

    head: str
    """Stands before the bar."""
    share: float
    """Of the work that is done."""
    tail: str
    """Stands behind the bar."""
    stall: float
    """Share of the time in waits, for the colour."""

    def __str__(self) -> str:
        return f"{self.head}  {self.share:.0%}  {self.tail}"


class Screen(Protocol):
    """Shows a line in place of the one before."""

    def show(self, line: Line) -> None:
        """Show a line."""

    def close(self) -> None:
        """Leave the last line as it is, and give back what was taken; twice is free."""


def find_screen(console: Console | None = None) -> Screen | None:
    """Return where a line can be shown; None where nobody would see it change, as in a log.

    Args:
        console: a terminal of the user's; without it, standard error is what counts.
    """
    if console is not None:
        return Terminal(console) if console.is_terminal else None
    if _notebook() is not None:
        return Notebook()
    if not is_terminal(sys.stderr):
        return None
    from rich.console import Console  # late: not loaded where nothing is shown

    own = Console(stderr=True)
    return Terminal(own) if own.is_terminal else None


def is_terminal(file: Any) -> bool:
    """Tell whether what is written into a file is seen as it comes; not so of a closed one, or of None."""
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):  # it is something else, or closed
        return False


class Terminal:
    """A line at the foot of a terminal; what the program prints meanwhile scrolls above it.

    Nothing is drawn but by `show`, so there is no thread; and the cursor stays visible all the time, so there
    is nothing that a killed program would leave behind.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, line: Line) -> None:
        """Show a line."""
        if self._live is None:
            self._live = self._start()
        self._live.update(_draw(line, self._console), refresh=True)

    def close(self) -> None:
        """Leave the last line as it is, and let prints go where they went; twice is free."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _start(self) -> Live:
        from rich.control import Control  # late, as above
        from rich.file_proxy import FileProxy
        from rich.live import Live
        from rich.segment import ControlType

        if isinstance(sys.stderr, FileProxy):  # another line stands here, and will be drawn again below
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        live = Live(
            console=self._console,
            auto_refresh=False,
            # what goes to a file must go on doing so
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        live.start()
        self._console.show_cursor(True)
        return live


class Notebook:
    """An output of the cell that runs; needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: Line) -> None:
        """Show a line."""
        data = {"text/plain": str(line)}
        if self._handle is None:
            display = import_module("IPython.display").display  # it is there, or this is no notebook
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def close(self) -> None:
        """Leave the last line as it is; twice is free."""
        self._handle = None


def _draw(line: Line, console: Console) -> Text:
    """Return a line as a terminal shows it, with a bar where there is room."""
    from rich.text import Text  # late, as above

    text = Text(no_wrap=True, overflow="crop", end="")
    text.append(line.head)
    room = console.width - 1 - len(line.head) - len(line.tail) - 4
    if room >= _LEAST_BAR:
        width = min(room, _BAR)
        done = min(int(line.share * width), width)
        full, empty = ("━", "─") if console.encoding.startswith("utf") else ("#", "-")
        text.append("  ")
        text.append(full * done, "green")
        text.append(empty * (width - done), "bright_black")
    text.append("  ")
    text.append(line.tail, "" if line.stall < _LOW else "yellow" if line.stall < _HIGH else "red")
    return text


def _notebook() -> Any:
    """Return the shell of the notebook that this runs in, or None."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
