"""Afar: shards that workers read where they are, so that no record comes to this machine first."""

from __future__ import annotations

from .mapped import Mapped

__all__ = ["Afar"]


class Afar(Mapped):
    """All shards, but those that a worker could not read: these are read here, which names what is wrong."""

    def __init__(self) -> None:
        super().__init__((), (), ())

    @property
    def cold(self) -> bool:
        """Whether somebody should be told what will be read: nobody here reads it."""
        return False
