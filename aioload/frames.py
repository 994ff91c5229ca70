"""Frames: what an error keeps alive, and how it lets go of that."""

from __future__ import annotations

import traceback

__all__ = ["let_go"]


def let_go(error: BaseException) -> None:
    """Let the frames that an error came through go of memory: else whoever keeps the error keeps that too."""
    part: BaseException | None = error
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        traceback.clear_frames(part.__traceback__)
        part = part.__cause__ or part.__context__
