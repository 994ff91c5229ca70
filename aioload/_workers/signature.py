"""Signature: what a user's function takes beside the sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError

__all__ = ["refuse_rng", "wants_rng"]


def wants_rng(transform: Callable[..., Any]) -> bool:
    """Tell whether a transform names a parameter `rng`.

    Raises:
        ConfigError: it requires another parameter beside the sample, which nobody would pass.
    """
    return _parameters(transform, "transform")


def _parameters(function: Callable[..., Any], name: str) -> bool:
    """Tell whether a function that takes a sample names a parameter `rng`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False  # written in C: it takes the sample alone

    named = [p for p in parameters if p.name == "rng" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    places = [
        p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p not in named
    ]
    # the first place is the sample's; whatever else must be given, nobody would give
    if not places or places[0] in named or required not in ([], places[:1]):
        names = ", ".join(p.name for p in parameters)
        raise ConfigError(
            f"{name} must take a sample, and besides it at most a parameter named rng; it takes ({names})"
        )
    return bool(named)


def refuse_rng(prepare: Callable[..., Any]) -> None:
    """Refuse a `prepare` that asks for random numbers, or for anything but the sample.

    Raises:
        ConfigError: it does.
    """
    if _parameters(prepare, "prepare"):
        raise ConfigError(
            "prepare must always give the same for a record and gets no rng; draw random numbers in transform"
        )
