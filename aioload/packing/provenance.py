"""Provenance: what a set was made of, as its metadata says it (FORMAT.md, section 5.1)."""

from __future__ import annotations

from typing import Any

__all__ = ["MEMBERS", "PROVENANCE", "with_provenance"]

PROVENANCE = "provenance"
"""The member of the metadata."""

MEMBERS = ("source", "fingerprint", "function", "identity", "certain", "aioload")
"""What it says."""


def with_provenance(metadata: Any, **members: Any) -> dict[str, Any]:
    """Return the metadata of a source with what was made of it; an earlier provenance stays, within the new.

    Args:
        metadata: of the source.
        members: see `MEMBERS`.
    """
    kept = dict(metadata) if isinstance(metadata, dict) else {} if metadata is None else {"source": metadata}
    before = kept.pop(PROVENANCE, None)
    told = {name: members[name] for name in MEMBERS}
    return {**kept, PROVENANCE: told if before is None else {**told, "before": before}}
