"""Adapt: how many workers, batches ahead and reads at once serve this run, by what was measured; pure.

A loader that keeps its user waiting is short of one thing at a time, and where the time goes tells which. If
workers are busy but their jobs mostly wait (a transform that reads files, asks a server, sleeps), more
workers help, until all CPUs compute. If workers are idle while every read that may be under way is, and each
takes long, more reads at once help. If they are idle while further batches are held back for being too far
ahead, costs vary more than the batches ahead make up for. If none of it holds, nothing here would help.

Every step up is a trial: what the user waits for a batch before and after decides whether it stays. A step
down is made only where nobody has waited for long. Whatever was undone is not tried again for a while, and
each time for longer: so the number of changes grows with the logarithm of time, whatever is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Change", "Controller", "Knob", "Range", "Seen", "depth"]

Knob = Literal["workers", "ahead", "reads"]

_STARVING = 0.05  # of the user's time spent waiting: below it, there is little to win
_CALM = 0.02  # of it: nobody waits, but for the jitter of taking
_FULL = 0.8  # of the workers busy, or of the reads under way: what is missing is the way between two
_HELD = 0.5  # of the time in which batches were held back
_VOTES = 2  # windows in a row that must say the same, so that one odd moment decides nothing
_JUDGED = 2  # windows that decide about a trial, after one in which work under way runs out
_WATCHED = 8  # windows in which nobody may wait after a step down
_GAIN = 0.1  # by which a step up must make waiting less, to stay
_SLOW_READ = 1e-3, 1 << 30  # seconds, and bytes a second: what is faster comes from memory, or nearly
_CALM_SECONDS, _CALM_BATCHES = 5.0, 100  # before a step down
_LONGEST_CALM = 1.0  # seconds that count of one window: a user who went away says nothing about the pace
_STEP = 6  # workers that may be added at once, where twice as many are fewer
_SPARE = 1.5  # workers that stay, for each that is busy
_FIRST_REST, _MORE_REST = 30.0, 4.0  # seconds, and how much longer after each further failure


@dataclass(frozen=True, slots=True)
class Range:
    """What a number may become, and what it is at first."""

    start: int
    least: int
    most: int

    @classmethod
    def only(cls, value: int) -> Range:
        """Return the range of a number that is never changed."""
        return cls(value, value, value)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured in one window of time."""

    seconds: float
    """Its length."""
    batches: int
    """Batches that the user took."""
    wait_seconds: float
    """What the user waited for them."""
    consumer_seconds: float
    """What the user spent between them."""
    busy: float
    """Workers at work, in the mean."""
    blocked: float
    """Share of their work in which jobs neither computed nor waited for a CPU."""
    reads: int
    """Reads that ended."""
    read_bytes: int
    """What they brought."""
    read_seconds: float
    """What they took, summed over all that ran at once."""
    held: float
    """Share of the time in which further batches were held back for being too far ahead."""

    @property
    def waiting(self) -> float:
        """The share of the user's time that went into waiting."""
        whole = self.wait_seconds + self.consumer_seconds
        return self.wait_seconds / whole if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A number to change, and why."""

    knob: Knob
    value: int
    reason: str


@dataclass(slots=True)
class _Sum:
    """Windows, taken together."""

    seconds: float = 0.0
    batches: int = 0
    wait_seconds: float = 0.0
    read_bytes: int = 0

    def add(self, seen: Seen) -> None:
        """Add a window."""
        self.seconds += seen.seconds
        self.batches += seen.batches
        self.wait_seconds += seen.wait_seconds
        self.read_bytes += seen.read_bytes

    def cost(self, knob: Knob) -> float:
        """Return what is to become less: seconds for a byte, or those that the user waited for a batch."""
        if knob == "reads":  # bytes flow evenly where batches come in bursts
            return self.seconds / max(self.read_bytes, 1)
        return self.wait_seconds / max(self.batches, 1)


@dataclass(slots=True)
class _Trial:
    change: Change
    before: int
    cost: float
    rounds: int = 0
    sum: _Sum = field(default_factory=_Sum)


@dataclass(slots=True)
class _Votes:
    knob: Knob | None = None
    count: int = 0
    sum: _Sum = field(default_factory=_Sum)


@dataclass(slots=True)
class _Rest:
    until: float = -math.inf
    seconds: float = _FIRST_REST

    def begin(self, now: float) -> None:
        """Rest, and for longer the next time."""
        self.until = now + self.seconds
        self.seconds *= _MORE_REST


@dataclass(slots=True)
class _Calm:
    seconds: float = 0.0
    batches: int = 0
    busy_seconds: float = 0.0

    def add(self, seen: Seen) -> None:
        """Count a window in which nobody waited."""
        seconds = min(seen.seconds, _LONGEST_CALM)
        self.seconds += seconds
        self.batches += seen.batches
        self.busy_seconds += seen.busy * seconds


class Controller:
    """Decides, window by window, which number to change.

    Args:
        workers: processes.
        ahead: runs beyond those that keep the workers busy.
        reads: reads at once.
        cpus: what this loader may compute with.
    """

    def __init__(self, *, workers: Range, ahead: Range, reads: Range, cpus: int) -> None:
        self._ranges: dict[Knob, Range] = {"workers": workers, "ahead": ahead, "reads": reads}
        self._values: dict[Knob, int] = {knob: range_.start for knob, range_ in self._ranges.items()}
        self._cpus = cpus
        self._trial: _Trial | None = None
        self._votes = _Votes()
        self._calm = _Calm()
        self._went_down = False
        self._rests: dict[tuple[Knob, bool], _Rest] = {}

    def __getitem__(self, knob: Knob) -> int:
        """Return what a number is now."""
        return self._values[knob]

    def observe(self, now: float, seen: Seen) -> Change | None:
        """Take in a window; return what to change, if anything."""
        if self._trial is not None:
            return self._judge(now, seen, self._trial)
        wish = self._wish(now, seen)
        if wish is None:
            self._votes = _Votes()
            return None
        if wish.value < self[wish.knob]:
            return self._try(now, wish, 0.0)

        if self._votes.knob != wish.knob:
            self._votes = _Votes(wish.knob)
        votes = self._votes
        votes.count += 1
        votes.sum.add(seen)
        return self._try(now, wish, votes.sum.cost(wish.knob)) if votes.count >= _VOTES else None

    def refuse(self, knob: Knob, value: int) -> None:
        """Note that a number cannot be more than it is, whatever would help."""
        self._trial = None
        self._votes = _Votes()
        range_ = self._ranges[knob]
        self._values[knob] = value
        self._ranges[knob] = Range(range_.start, min(range_.least, value), value)

    def _wish(self, now: float, seen: Seen) -> Change | None:
        """Return what the window asks for."""
        if seen.waiting > _STARVING:
            self._calm = _Calm()
            return self._more(now, seen)
        if seen.waiting > _CALM:
            self._calm = _Calm()
        else:
            self._calm.add(seen)
        return self._fewer_workers(now)

    def _more(self, now: float, seen: Seen) -> Change | None:
        """Return what would let the user wait less."""
        workers, reads = self["workers"], self["reads"]
        if seen.busy >= _FULL * workers:
            computing = max(1 - seen.blocked, 1e-3)
            count = min(max(2 * workers, workers + _STEP), int(self._cpus / computing))
            why = f"jobs spent {seen.blocked:.0%} of their time waiting, not computing"
            return self._up(now, "workers", count, why) if seen.batches else None

        wish = None
        if self._waits_for_reads(seen):
            why = f"a read took {1000 * seen.read_seconds / seen.reads:.1f} ms, and workers waited for it"
            wish = self._up(now, "reads", 2 * reads, why)
        if wish is None and seen.held >= _HELD and seen.batches:
            why = "workers were idle at times while further batches were held back"
            wish = self._up(now, "ahead", 2 * self["ahead"], why)
        return wish

    def _waits_for_reads(self, seen: Seen) -> bool:
        """Tell whether all reads that may be under way are, and each of them takes long."""
        if seen.read_seconds < _FULL * self["reads"] * seen.seconds or not seen.reads:
            return False
        seconds, rate = _SLOW_READ
        return seen.read_seconds > seen.reads * seconds + seen.read_bytes / rate

    def _fewer_workers(self, now: float) -> Change | None:
        """Return how many workers are enough, once nobody has waited for a while."""
        calm, workers = self._calm, self["workers"]
        if calm.seconds < _CALM_SECONDS or calm.batches < _CALM_BATCHES:
            return None
        busy = calm.busy_seconds / calm.seconds
        enough = max(math.ceil(_SPARE * busy + 0.5), workers // 2, self._ranges["workers"].least)
        self._calm = _Calm()
        if enough >= workers or now < self._rest("workers", up=False).until:
            return None
        return Change("workers", enough, f"{busy:.1f} of {workers} were busy, and nobody waited")

    def _up(self, now: float, knob: Knob, value: int, why: str) -> Change | None:
        """Return a step up, if there is room for it and the last one has not just failed."""
        value = min(value, self._ranges[knob].most)
        if value <= self[knob] or now < self._rest(knob, up=True).until:
            return None
        return Change(knob, value, why)

    def _rest(self, knob: Knob, *, up: bool) -> _Rest:
        return self._rests.setdefault((knob, up), _Rest())

    def _try(self, now: float, change: Change, cost: float) -> Change:
        """Make a change, and begin to watch what comes of it."""
        before = self[change.knob]
        if change.knob == "workers" and change.value < before:
            self._went_down = True
        elif change.knob == "workers" and self._went_down:
            # a step down that must be made up for was a mistake, however late that shows
            self._went_down = False
            self._rest("workers", up=False).begin(now)
        self._trial = _Trial(change, before, cost)
        self._votes = _Votes()
        self._values[change.knob] = change.value
        return change

    def _judge(self, now: float, seen: Seen, trial: _Trial) -> Change | None:
        """Watch a change; undo it if it did harm, or no good."""
        knob, value = trial.change.knob, trial.change.value
        trial.rounds += 1
        if value < trial.before:
            if seen.waiting > _STARVING:
                return self._undo(now, trial, f"the loop had to wait with {value}")
            if trial.rounds >= _WATCHED:
                self._trial = None
            return None
        if trial.rounds == 1:
            return None  # what was under way
        trial.sum.add(seen)
        if trial.rounds <= _JUDGED or not (knob == "reads" or trial.sum.batches):
            return None
        if trial.sum.cost(knob) > trial.cost * (1 - _GAIN):
            return self._undo(now, trial, f"{'more' if knob == 'ahead' else value} brought nothing")
        self._trial = None
        return self.observe(now, seen)  # its last window is the first to ask for more

    def _undo(self, now: float, trial: _Trial, why: str) -> Change:
        knob = trial.change.knob
        self._went_down = False
        self._rest(knob, up=trial.change.value > trial.before).begin(now)
        self._trial = None
        self._values[knob] = trial.before
        return Change(knob, trial.before, why)


def depth(*, workers: int, jobs: int, steps: int, ahead: int, spare: bool) -> int:
    """Return how many batches may be under way or wait for the user.

    Args:
        workers: that are to be kept busy.
        jobs: that one run is cut into.
        steps: batches of a run.
        ahead: runs beyond those that are in work.
        spare: whether a second job should wait for each worker: where batches are small, that costs nothing.
    """
    return steps * (-(-workers * (2 if spare else 1) // jobs) + ahead)
