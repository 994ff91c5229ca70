"""The command line; `main` is what the console script calls."""

from __future__ import annotations

from ._app import main

__all__ = ["main"]
