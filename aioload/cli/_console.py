"""What commands take and print: options, shortened values, tables, JSON, a bar with rate and time left."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import fields
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from ..errors import ConfigError
from ..machine import parse_bytes
from ..storage.options import NetworkOptions
from ..words import byte_rate, count, size

__all__ = [
    "AsJson",
    "FieldKinds",
    "Quiet",
    "SetOrShards",
    "StorageOptions",
    "bytes_bar",
    "count",
    "one_or_all",
    "parse_fields",
    "parse_function",
    "parse_size",
    "parse_storage_options",
    "parse_workers",
    "print_json",
    "print_table",
    "progress_bar",
    "seconds_bar",
    "short",
    "size",
    "stdout_kept",
    "told_once",
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, and no words when all is well.")]

SetOrShards = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA...",
        show_default=False,
        help="A set: its folder or address; or shards of others: files, a folder, name-{000..009}.tar.",
    ),
]

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Of a bucket: endpoint, region, anonymous, … Keys come from the environment or an AWS profile.",
    ),
]

FieldKinds = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME=KIND",
        help="Of shards of others and tables of Parquet: a field that is wanted, and its kind, such as "
        "jpg=image, cls=int or, of TFRecord, w=example:int64; given again for each. Without it, those of the "
        "first record.",
    ),
]

_REFRESH_SECONDS = 0.1
_OPTIONS = tuple(field.name for field in fields(NetworkOptions))
_TEXTS = ("endpoint", "region", "access_key_id", "max_in_flight")


def one_or_all(sources: list[str]) -> str | list[str]:
    """Return what names a set: one source as it is, since a folder may not stand in a list."""
    return sources[0] if len(sources) == 1 else sources


def parse_size(value: str | int) -> int:
    """Return the bytes that a text like 256MiB stands for."""
    try:
        return parse_bytes(value, name="the size")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def parse_fields(given: list[str] | None) -> dict[str, str] | None:
    """Return the fields that texts like jpg=image stand for; whether there is such a kind, the set tells."""
    fields: dict[str, str] = {}
    for text in given or ():
        name, mark, kind = text.rpartition("=")
        if not mark or not name or not kind:
            raise typer.BadParameter(f"a field is NAME=KIND, such as jpg=image, got {text!r}")
        if name in fields:
            raise typer.BadParameter(f"the field {name!r} is given twice")
        fields[name] = kind
    return fields or None


def parse_function(named: str) -> Callable[..., Any]:
    """Return the function that a text like `mels:prepare` names."""
    module_name, mark, path = named.partition(":")
    if not mark or not module_name or not path:
        raise typer.BadParameter(f"--with is MODULE:FUNCTION, such as mels:prepare, got {named!r}")
    here = os.getcwd()  # noqa: PTH109 - a text, as other places on the path
    if here not in sys.path:
        sys.path.insert(0, here)  # processes that are started get it, too
    try:
        with stdout_kept():
            found: Any = import_module(module_name)
    except Exception as error:  # whatever the user's module does
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        told = f"the module {module_name} cannot be imported: {kind}{error}"
        raise typer.BadParameter(told) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise typer.BadParameter(f"the module {module_name} has no {path}")
        found = getattr(found, name)
    if not callable(found):
        raise typer.BadParameter(f"{named} is no function but {type(found).__qualname__}")
    return found  # type: ignore[no-any-return]  # whatever the user's is


def parse_workers(value: str | int) -> int | None:
    """Return a number of workers, or None for `auto`."""
    if str(value) == "auto":
        return None

    if not str(value).isdecimal():
        raise typer.BadParameter(f"{value!r} is neither a number nor 'auto'")

    return int(value)


def parse_storage_options(given: list[str] | None) -> dict[str, Any] | None:
    """Return the options that texts like region=eu-west-1 stand for."""
    options: dict[str, Any] = {}
    for text in given or ():
        name, mark, value = text.partition("=")
        if not mark:
            raise typer.BadParameter(f"a storage option is NAME=VALUE, got {name!r}")
        if name in ("headers", "secret_access_key"):
            raise typer.BadParameter(
                f"{name} may not stand on a command line, which everybody on the machine can read"
            )
        if name not in _OPTIONS:
            raise typer.BadParameter(f"there is no storage option {name!r}; known are {', '.join(_OPTIONS)}")
        try:
            options[name] = value if name in _TEXTS else json.loads(value)
        except ValueError as error:
            raise typer.BadParameter(f"{name} is a number, true or false, got {value!r}") from error
    return options or None


def short(value: object, width: int = 60) -> str:
    """Return a value in one line that no terminal takes for a command, shortened."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: width + 1])
    return text if len(text) <= width else text[: width - 1] + "…"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    try:
        text.encode("utf-8")  # names of files may be no texts, and a terminal's way to show them is no JSON
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, default=str)
    print(text)


@contextmanager
def stdout_kept(*, wanted: bool = True) -> Iterator[None]:
    """Have all that is printed meanwhile, also by processes that are started, go to standard error.

    Args:
        wanted: else all goes where it goes.
    """
    kept = None
    if wanted and sys.stdout is not None:
        sys.stdout.flush()
        with suppress(OSError):  # one of them is closed
            kept = os.dup(1)
            os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr) if wanted else nullcontext():
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def print_table(rows: Iterable[Iterable[object]], indent: str = "  ") -> None:
    """Print rows whose columns stand below each other."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [
        max(len(line[place]) for line in lines if place < len(line))
        for place in range(max(map(len, lines), default=0))
    ]
    for line in lines:
        print((indent + "  ".join(map(str.ljust, line, widths))).rstrip())


@contextmanager
def told_once(*loggers: str) -> Iterator[None]:
    """Keep lines out of the log that a command prints by itself."""
    silent = [logger for logger in map(logging.getLogger, loggers) if not logger.disabled]
    for logger in silent:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in silent:
            logger.disabled = False


@contextmanager
def progress_bar(
    what: str, total: int, *, quiet: bool = False, counts_cost: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr, where that is a terminal.

    Args:
        what: is being done.
        total: the sum of all costs.
        quiet: show nothing.
        counts_cost: whether the rate is that of costs, where many things are told of at once.

    Yields:
        Takes the cost and the bytes of a thing done.
    """
    with _bar(TextColumn("{task.fields[rate]}"), quiet=quiet) as bar:
        meter = _Meter(bar, bar.add_task(what, total=total, rate=""), counts_cost=counts_cost)
        yield meter.advance


@contextmanager
def bytes_bar(what: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar of work that costs what its bytes are.

    Args:
        what: is being done.
        total: bytes of it.
        quiet: show nothing.

    Yields:
        Takes the bytes of a thing done.
    """
    with progress_bar(what, total, quiet=quiet) as advance:
        yield lambda num_bytes: advance(num_bytes, num_bytes)


@contextmanager
def seconds_bar(what: str, seconds: float, *, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """Show a bar of work whose length is known beforehand.

    Args:
        what: is being done.
        seconds: it takes.
        quiet: show nothing.

    Yields:
        Takes the seconds that went by.
    """
    with _bar(quiet=quiet) as bar:
        task = bar.add_task(what, total=seconds)
        yield lambda spent: bar.advance(task, spent)


def _bar(*columns: ProgressColumn, quiet: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


class _Meter:
    """Counts what is done, and tells the bar now and then: it costs more than a small record."""

    def __init__(self, bar: Progress, task: TaskID, *, counts_cost: bool) -> None:
        self._counts_cost = counts_cost
        self._bar = bar
        self._task = task
        self._started = self._told = time.monotonic()
        self._cost = self._things = self._bytes = 0

    def advance(self, cost: int, num_bytes: int) -> None:
        """Count one thing."""
        self._cost += cost
        self._things += cost if self._counts_cost else 1
        self._bytes += num_bytes
        now = time.monotonic()
        if now - self._told >= _REFRESH_SECONDS:
            self._told = now
            seconds = now - self._started
            rate = f"{self._things / seconds:,.0f}/s  {byte_rate(self._bytes / seconds)}"
            self._bar.update(self._task, completed=self._cost, rate=rate)
