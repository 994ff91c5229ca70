"""Advice: what an error says to somebody at the command line, where options have other names."""

from __future__ import annotations

from ..errors import AioloadError

__all__ = ["for_commands"]


def for_commands(error: AioloadError) -> str:
    """Return an error's message; where it is about fields, with the command line's way out."""
    what = error.facts.get("what")
    return str(error) if what is None else f"{what}; choose fields and their kinds with --field NAME=KIND"
