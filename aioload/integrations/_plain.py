"""Plain: the face of a loader that a trainer iterates over, and the error where a package is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..sync import SyncLoader

if TYPE_CHECKING:
    from ..loader import Loader

__all__ = ["missing", "plain"]


def plain(loader: Loader | SyncLoader) -> SyncLoader:
    """Return the face for a plain `for` of a loader, or of what is one already."""
    return loader if isinstance(loader, SyncLoader) else loader.sync()


def missing(package: str) -> ConfigError:
    """Return the error of a trainer that is not installed."""
    return ConfigError(
        f"{package} is not installed; get it, or all trainers that are tested, with: "
        "pip install 'torch-aioload[integrations]'"
    )
