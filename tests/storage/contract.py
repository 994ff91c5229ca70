"""The contract of storages, which is public, under the name that the tests here know it by."""

from __future__ import annotations

from aioload.testing import CONTENT, FILES, StorageContract

__all__ = ["CONTENT", "FILES", "StorageContract"]
