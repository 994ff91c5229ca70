"""Live: how far an epoch is, how fast, and what it waits for, shown or told while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .diagnosis import diagnose
from .errors import ConfigError
from .options import seconds
from .pace import Recent, pace
from .screens import Line, find_screen
from .watched import Moment, Watchable, WatchedLoader
from .words import clock

if TYPE_CHECKING:
    from rich.console import Console

    from .diagnosis import Diagnosis
    from .pace import Pace
    from .screens import Screen
    from .stats import LoaderStats
    from .sync import SyncLoader

__all__ = ["metrics", "progress"]

_REFRESH = 0.25  # seconds between two lines: each costs the training about a millisecond
_RECENT = 8.0  # seconds over which rates are taken
_log = logging.getLogger("aioload.live")


def progress(
    loader: Watchable | SyncLoader, *, all_ranks: bool = False, console: Console | None = None
) -> WatchedLoader:
    """Return the loader with a line that shows how far the epoch is, how fast, and what it waits for.

    `for batch in aioload.progress(loader.sync())`, or `async for batch in aioload.progress(loader)`. What is
    returned is a `SyncLoader` over the same loader, for `async for` and `async with` too: its epochs,
    `state_dict`, `stats` and closing are the loader's own. Batches are the same, and nothing is taken ahead.

    The line is drawn on a terminal, or in the cell of a notebook; where standard error is neither, as in
    logs, nothing is shown. Rates are of the last 8 seconds, bytes those of the batches; at the end of the
    epoch, all are of the whole.

    Args:
        loader: a `Loader`, or what its `sync()` gave.
        all_ranks: show the line on every rank, not on rank 0 alone.
        console: a `rich.console.Console` to draw on; by default standard error.

    Raises:
        ConfigError: it is no loader of aioload.
    """

    def make(found: Watchable) -> _Progress | None:
        if found.rank and not all_ranks:
            return None
        screen = find_screen(console)
        return None if screen is None else _Progress(screen)

    return WatchedLoader.of(loader, make)


def metrics(
    loader: Watchable | SyncLoader,
    to: Callable[[LoaderStats, Diagnosis], object] | logging.Logger | None = None,
    *,
    every: float = 10.0,
) -> WatchedLoader:
    """Return the loader, whose figures are told now and then while it is iterated, and after each epoch.

    They are told by the thread that iterates, when it asks for a batch and while it waits for one, so not in
    the middle of a step; on every rank. An iteration that is left early tells no more. What is returned can
    be used as the loader can: see `progress`, with which it goes together.

    Args:
        loader: a `Loader`, or what its `sync()` gave.
        to: called with the loader's stats, which are of all its time, and the diagnosis of the time since
            the last call; an exception of it is raised in the loop. Or a logger, which gets a line at level
            INFO; by default the logger "aioload.metrics".
        every: seconds between two calls, at least.

    Raises:
        ConfigError: an option cannot work.
    """
    every = seconds("every", every)
    told = logging.getLogger("aioload.metrics") if to is None else to
    if not isinstance(told, logging.Logger) and not callable(told):
        raise ConfigError(f"to must be a function of stats and diagnosis, or a logger, got {to!r}")
    return WatchedLoader.of(loader, lambda found: _Metrics(told, every, found))


class _Progress:
    """Shows an iteration on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen: Screen | None = screen
        self._first: Moment | None = None
        self._recent = Recent(_RECENT)

    def look(self, moment: Moment) -> float:
        """Show a line; the next in a quarter of a second."""
        self._first = self._first or moment
        # the first batch takes what starting takes, which says nothing of the others
        recent = self._recent.add(moment) if moment.taken else None
        self._show(_line(moment, recent, None))
        return moment.now + _REFRESH

    def end(self, moment: Moment, *, complete: bool) -> None:
        """Show the whole iteration, and leave it there."""
        if self._first is not None:
            self._show(_line(moment, pace(self._first, moment), moment.now - self._first.now))
        self._act(lambda screen: screen.close())
        self._screen = None

    def _show(self, line: Line) -> None:
        self._act(lambda screen: screen.show(line))

    def _act(self, action: Callable[[Screen], None]) -> None:
        """Do something on the screen; one that has gone away, as a terminal may, is done without."""
        if self._screen is None:
            return
        try:
            action(self._screen)
        except (OSError, ValueError) as error:
            _log.debug("the progress cannot be shown any more: %r", error)
            screen, self._screen = self._screen, None
            with suppress(OSError, ValueError):
                screen.close()


class _Metrics:
    """Tells figures of an iteration."""

    def __init__(self, to: Any, every: float, loader: Watchable) -> None:
        self._to = to
        self._every = every
        self._loader = loader
        self._last: Moment | None = None

    def look(self, moment: Moment) -> float:
        """Tell, if it is time; the first time begins now, and nothing is told of a start."""
        if self._last is None:
            self._last = moment
        elif moment.taken and moment.now - self._last.now >= self._every:
            self._tell(moment)
        return max(self._last.now + self._every, moment.now)

    def end(self, moment: Moment, *, complete: bool) -> None:
        """Tell, after the last batch: at other ends the program is on its way elsewhere."""
        if complete and moment.taken:
            self._tell(moment)

    def _tell(self, moment: Moment) -> None:
        last, self._last = self._last or moment, moment
        if isinstance(self._to, logging.Logger):
            self._log_line(last, moment)
        else:
            self._to(moment.stats, diagnose(moment.stats.since(last.stats)))

    def _log_line(self, last: Moment, moment: Moment) -> None:
        found = pace(last, moment)
        rank = f" on rank {self._loader.rank}" if self._loader.world_size > 1 else ""
        line = _line(moment, found, None)
        self._to.info("%s%s  %s", line.head, rank, line.tail)


def _line(moment: Moment, found: Pace | None, took: float | None) -> Line:
    """Return what is shown of a moment.

    Args:
        moment: the one.
        found: how fast it goes.
        took: seconds of the whole iteration, after its end.
    """
    head, share = f"epoch {moment.epoch}", 0.0
    if moment.total:
        head, share = f"{head}  {moment.done:,}/{moment.total:,}", moment.done / moment.total
    tail = str(found or "")
    if not moment.taken and took is None:
        tail = "starting"
    elif took is not None:
        tail += f"  in {clock(took)}"
    elif found is not None and found.batches:
        tail += f"  {clock((moment.total - moment.done) / found.batches)} left"
    return Line(head, share, tail.strip(), 0.0 if found is None else found.stall)
