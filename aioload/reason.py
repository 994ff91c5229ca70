"""Reason: why a task group ended, out of the groups of errors that it raises."""

from __future__ import annotations

__all__ = ["first_of"]


def first_of(error: BaseException) -> BaseException:
    """Return the first reason of what a task group raised: it is the reason."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
