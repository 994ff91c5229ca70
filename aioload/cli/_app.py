"""The commands together, and how an error leaves them: one line and an exit status."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .._version import __version__
from ..errors import AioloadError
from ..foreign import for_commands
from .bench import bench
from .cache import cache
from .demo import demo
from .export import export
from .index import index
from .inspect import inspect
from .map import map_
from .pack import pack
from .plan import plan
from .verify import verify

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Runs a command; what is at fault in data or run is one line on stderr and exit status 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (AioloadError, OSError, MemoryError) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            told = for_commands(error) if isinstance(error, AioloadError) else error
            print(f"aioload: {told}", file=sys.stderr)
            raise typer.Exit(1) from error


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (pack, index, inspect, verify, export, plan, bench, demo):
    app.command()(command)
app.command("map")(map_)
app.add_typer(cache, name="cache")


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # a name or a sign that a terminal cannot show is no reason to end without a word of the rest
        if isinstance(stream, TextIOWrapper) and (stream.errors == "strict" or stream.encoding != "utf-8"):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="aioload")


@app.callback()
def options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Pack, look at and check data sets for aioload, the streaming data loader."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"aioload {__version__}")
        raise typer.Exit
