"""Failures: what user code or the data did in a worker, as texts that any process can read."""

from __future__ import annotations

import traceback
from typing import Any

from numpy.typing import NDArray

from ..cache.stock import Lost
from ..errors import AioloadError, ShardError
from .files import Unmapped
from .jobs import Failure, Undecoded

__all__ = ["describe", "failure_of_batch", "message_of", "shortened"]

_MOST_TEXT = 1 << 14  # characters of a message or traceback that are told: some print whole arrays


def describe(
    error: BaseException,
    row: int | None,
    shard: int | None,
    record: int | None,
    key: str | int | None,
    field: Undecoded | None = None,
    stage: str | None = None,
) -> Failure:
    """Return an error as texts; `field` is the one whose decoder raised it, `stage` what else ran."""
    kinds = (ShardError, Unmapped, Lost)
    kind = next((cls.__name__ for cls in kinds if isinstance(error, cls)), "SampleError")
    trace = shortened("".join(traceback.format_exception(error)))
    known = error.facts if isinstance(error, AioloadError) else {}
    facts = {name: value for name, value in known.items() if _is_plain(value)}
    if field is not None:
        facts["field"] = field.name
    if stage is not None:
        facts["stage"] = stage
    named = key if isinstance(key, str) else None
    return Failure(
        kind, type(error).__name__, message_of(error), trace, row, shard, record, named, facts, field
    )


def message_of(error: BaseException) -> str:
    """Return what an error says, as plain text whatever its class makes of it."""
    try:
        return shortened(str.__str__(str(error)))
    except BaseException:  # user code too
        return "<its message cannot be shown>"


def shortened(text: str) -> str:
    """Return the beginning and end of a text that is too long for a message between processes."""
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def failure_of_batch(error: BaseException, doing: str, rows: NDArray[Any]) -> Failure:
    """Return an error of a whole batch; the records it may come from are named by their range."""
    failure = describe(error, None, None, None, None)
    records = rows["record"].tolist()
    where = f"{doing} (records {_short(records)})"
    facts = {"records": tuple(records[:1000]), **failure.facts}
    told = failure.message if isinstance(error, AioloadError) else f"{failure.name}: {failure.message}"
    message = f"{where}: {told}"
    return Failure(failure.kind, failure.name, message, failure.trace, None, None, None, None, facts)


def _is_plain(value: Any) -> bool:
    """Tell what may cross the process border beside the message: numbers, texts, and rows of them."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float))


def _short(records: list[int]) -> str:
    shown = ", ".join(map(str, records[:4]))
    return shown if len(records) <= 4 else f"{shown}, … {records[-1]}"
