"""What all tests of foreign sets have: a cache folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes and unpacked files go to a folder of the test's own."""
    folder = tmp_path / "cache-home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
