"""Verdict: what to do with a set before it is trained on, by what each way costs over all epochs; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..words import share, size, time_text
from .costs import Demand, Epochs, Subject, Work

__all__ = ["Choice", "Verdict", "judge"]

_WORTH = 0.05  # of the whole time: what saves less is not worth a change
_SAVED = 1.0  # seconds, likewise
_SPARE = 0.5  # of the model's time, in which a loader of half the speed would do as well

Action = Literal["nothing", "leave", "pack", "cache", "keep"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to train on a set."""

    action: Action
    """`leave`: as it is; `pack` it; `cache` what comes over the network on a disk; `keep` decoded samples."""
    once_seconds: float
    """What it costs before the first epoch."""
    epochs: Epochs
    """What epochs then take."""

    def total(self, epochs: int) -> float:
        """Return what it and so many epochs take."""
        return self.once_seconds + self.epochs.total(epochs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why."""

    action: Action
    """The best way; `nothing` where any loader will do."""
    because: str
    """In a sentence."""
    gain_seconds: float
    """What the best other way saves over all epochs, its own cost taken off; below 0 it costs more."""
    pays_after_epochs: int | None
    """Epochs from which on that other way has saved what it costs; None: never, or there is none."""
    is_worth_it: bool
    """Whether that is enough to do it."""
    advice: tuple[str, ...] = ()
    """What else would help."""


def judge(
    subject: Subject, choices: Sequence[Choice], work: Work, demand: Demand, *, memory_bytes: int
) -> Verdict:
    """Return what to do.

    Args:
        subject: what is loaded.
        choices: the ways, that of leaving it as it is first.
        work: what records cost.
        demand: what the training asks for.
        memory_bytes: that this machine can spare.
    """
    leave, others = choices[0], choices[1:]
    before = leave.total(demand.epochs)
    best = min(others, key=lambda choice: choice.total(demand.epochs), default=None)
    gain = 0.0 if best is None else before - best.total(demand.epochs)
    pays = None if best is None else _pays_after(leave, best)
    worth = best is not None and gain > max(_WORTH * before, _SAVED)
    advice = tuple(_advice(leave.epochs, subject, work, demand))
    idle = _why_nothing(leave.epochs, subject, work, demand, memory_bytes)
    # samples that are kept are no more than tensors, which nobody needs a loader for
    if idle is not None and (not worth or (best is not None and best.action == "keep")):
        return Verdict("nothing", idle, gain, pays, False)
    if best is not None and worth:
        return Verdict(best.action, _why(best, leave, demand, gain, pays), gain, pays, True, advice)
    return Verdict("leave", _why_leave(leave, best, demand, gain), gain, pays, False, advice)


def _pays_after(leave: Choice, other: Choice) -> int | None:
    """Return the number of epochs from which on another way is ahead."""
    behind = other.once_seconds + other.epochs.first_seconds - leave.epochs.first_seconds
    if behind <= 0:
        return 1
    saved = leave.epochs.later_seconds - other.epochs.later_seconds
    return None if saved <= 0 else 1 + math.ceil(behind / saved)


def _why(best: Choice, leave: Choice, demand: Demand, gain: float, pays: int | None) -> str:
    what = {
        "pack": "packed (`aioload pack`), the set is read in large pieces instead of file by file",
        "cache": "what came over the network once is then on a disk here (`Dataset(…, cache_dir=True)`)",
        "keep": "decoded samples fit into memory (`Loader(…, cache=…)`), so later epochs need not decode",
    }[best.action]
    costs = f", which costs {time_text(best.once_seconds)} once" if best.once_seconds else ""
    first, later = best.epochs.first_seconds, best.epochs.later_seconds
    return (
        f"{what}{costs}; epochs of {time_text(first)} and then {time_text(later)} instead of "
        f"{time_text(leave.epochs.first_seconds)} and {time_text(leave.epochs.later_seconds)}: "
        f"{time_text(gain)} saved over {demand.epochs} epochs" + (f", ahead after {pays}" if pays else "")
    )


def _why_nothing(
    epochs: Epochs, subject: Subject, work: Work, demand: Demand, memory_bytes: int
) -> str | None:
    """Say why any loader will do; None where it would not."""
    if not subject.fits_in_memory or subject.is_network:
        return None
    decoded = subject.records * work.batch_bytes
    if decoded <= memory_bytes / 4 and not work.is_random:
        return (
            f"this set fits in memory, also decoded ({size(decoded)}): keep it there as tensors and index "
            "these, or let a DataLoader read it"
        )
    shares = [stage.share_of_step for stage in epochs.later if stage.name != "model"]
    busy = max((share for share in shares if share is not None), default=None)
    if busy is not None and busy <= _SPARE:
        return (
            f"this set fits in memory, and its stages take at most {share(busy)} of the model's time: a "
            "DataLoader will do"
        )
    return None


def _why_leave(leave: Choice, best: Choice | None, demand: Demand, gain: float) -> str:
    limit = leave.epochs.limit
    said = {
        "storage": "storage limits",
        "decode": "decoding limits",
        "copy": "copies to the device limit",
        "model": "the model limits",
    }[limit.name] + f", with {time_text(limit.seconds)} an epoch"
    if best is None:
        return said
    word = {"pack": "packing", "cache": "a cache", "keep": "keeping decoded samples"}[best.action]
    if gain <= 0:
        return f"{said}; {word} would cost {time_text(-gain)} more over {demand.epochs} epochs"
    return f"{said}; {word} would save no more than {time_text(gain)} over {demand.epochs} epochs"


def _advice(epochs: Epochs, subject: Subject, work: Work, demand: Demand) -> list[str]:
    """Say what would move the limit, where neither packing nor a cache does."""
    limit = epochs.limit
    if limit.name == "storage":
        return ["the storage itself is the limit: a faster disk, or a network nearer by"]
    if limit.name != "decode":
        return []
    found = []
    if demand.step_seconds is not None:
        rate = demand.batch_size * demand.gpus / demand.step_seconds
        found.append(_cores(math.ceil(rate * work.core_seconds), work.num_workers))
    elif work.num_workers < work.cpus:
        found.append(f"more workers: {work.num_workers} of {work.cpus} CPUs decode")
    found.append("cheaper records: smaller pictures (`aioload pack --resize`), a simpler transform")
    return found


def _cores(needed: int, num_workers: int) -> str:
    """Say how many cores the model asks for; where there are as many workers, what they lack is the cores."""
    told = f"{needed:,} core{'s' * (needed != 1)} would keep up with the model"
    return told if needed > num_workers else f"{told}, if they were not shared with anything else"
