"""Names: what the name of a file says of it, and nothing else does; pure.

It decides which files of a folder are taken for shards, and whether an address is that of a file or of a
folder. What a shard really is, its bytes tell (`detect`); its name counts where there are none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable

from ..shard.format import MANIFEST_NAME
from ..shard.kinds import kind_of

__all__ = ["MDS_INDEX", "format_of", "in_short", "is_file", "shards_among", "unpacked_name", "way_out"]

MDS_INDEX = "index.json"
"""What describes the shards of an MDS folder, or names those of WebDataset's `wids`."""

_NUMBER = r"(?:[-._]\d+(?:-of-\d+)?)?"
_PACKED = r"(?:\.(?:gz|gzip|zst|zstd|zlib|z|bz2|xz|lz4))*"
_SUFFIXES = {
    "tar": re.compile(rf"\.(?:tar{_NUMBER}{_PACKED}{_NUMBER}|tgz|tzst|tbz2?|txz)$", re.IGNORECASE),
    "tfrecord": re.compile(rf"\.(?:tfrecords?|tfrec)(?:-[^/]*)?{_PACKED}{_NUMBER}$", re.IGNORECASE),
}
_PACKED_END = re.compile(rf"{_PACKED}$", re.IGNORECASE)
_ONE_OF_MANY = re.compile(rf"-\d+-of-\d+{_PACKED}$", re.IGNORECASE)  # so TensorFlow numbers what it writes
_OTHER_FILE = re.compile(
    rf"\.(?:json|mds|aio|parquet|arrow|feather|csv|tsv|jsonl|ndjson|zip|npz|npy|h5|hdf5|beton|rec){_PACKED}$",
    re.IGNORECASE,
)
_MDS_SHARD = re.compile(r"\.mds(?:\.[a-z0-9]+)?$", re.IGNORECASE)
_TABLE = re.compile(rf"\.(?:parquet|csv|tsv|jsonl|ndjson){_PACKED}$", re.IGNORECASE)
_SHOWN = 3


def format_of(name: str) -> str | None:
    """Return `tar` or `tfrecord`; None: the name does not say."""
    return next((kind for kind, suffix in _SUFFIXES.items() if suffix.search(name)), None)


def unpacked_name(name: str) -> str:
    """Return a name without the suffixes of files that are compressed as a whole."""
    return _PACKED_END.sub("", name)


def shards_among(names: Iterable[str]) -> list[str]:
    """Return which files of a folder are shards.

    Files that are but numbered, as in `train-00000-of-00128`, count where no other's name says more.
    """
    there = list(names)
    sure = [name for name in there if format_of(name) is not None]
    return sure or [name for name in there if _ONE_OF_MANY.search(name)]


def is_file(path: str) -> bool:
    """Tell whether a path names a file rather than a folder, as far as a name can tell."""
    return any(
        found is not None for found in (format_of(path), _ONE_OF_MANY.search(path), _OTHER_FILE.search(path))
    )


def way_out(names: Iterable[str]) -> str | None:
    """Return what to do with files of which none is a shard that can be read where it lies; None: no idea."""
    there = list(names)
    if any(name.endswith(".aio") for name in there):
        return (
            f"they are shards of a packed set without its {MANIFEST_NAME}: its writer did not finish; pack "
            "it again, or give the folder that has it"
        )
    if any(map(_MDS_SHARD.search, there)):
        return f"shards of an MDS folder are described by its {MDS_INDEX}; give the folder that has it"
    if any(map(_TABLE.search, there)):
        return "pack tables with `aioload pack` (of Parquet with the extra torch-aioload[parquet])"
    if any(kind_of(posixpath.basename(name)) in ("image", "audio") for name in there):
        return "pack single files with `aioload pack`"
    return None


def in_short(names: Iterable[str], noun: str = "file") -> str:
    """Return how many there are, and what the first of them are called."""
    there = sorted(names)
    if not there:
        return f"no {noun}"
    some = ", ".join(there[:_SHOWN]) + (", …" if len(there) > _SHOWN else "")
    return f"{len(there):,} {noun}{'s' if len(there) > 1 else ''} ({some})"
