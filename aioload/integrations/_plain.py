"""Plain: the face of a loader that a trainer iterates over, and the error where a package is missing."""

from __future__ import annotations

from ..errors import ConfigError
from ..loader import Loader
from ..sync import SyncLoader

__all__ = ["missing", "plain"]


def plain(loader: Loader | SyncLoader) -> SyncLoader:
    """Return the face for a plain `for` of a loader, or of what is one already.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(loader, SyncLoader):
        return loader
    if not isinstance(loader, Loader):
        raise ConfigError(
            f"what is wanted is an aioload.Loader, or its sync(); got a {type(loader).__name__}"
        )
    return loader.sync()


def missing(package: str) -> ConfigError:
    """Return the error of a trainer that is not installed."""
    return ConfigError(
        f"{package} is not installed; get it, or all trainers that are tested, with: "
        "pip install 'torch-aioload[integrations]'"
    )
