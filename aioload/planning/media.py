"""Media: what reads cost on the kinds of storage that data lies on.

A read elsewhere waits for `seek_seconds`, then gives `stream_bytes` a second; `at_once` of them overlap, and
all together give no more than `total_bytes` a second. Figures of the presets, and where they are from:

- hdd: 9 ms and 150 MB/s. Half a turn at 7,200 a minute is 4.2 ms by arithmetic, and the arm's way takes about
  as long again where a queue of requests shortens it (drives' sheets name 8 to 12 ms without one); 3.5 inch
  drives give 100 MB/s on inner tracks and 200 or more on outer ones. One head: nothing overlaps.
- sata: 0.1 ms and 500 MB/s. A link of 6 Gb/s carries 600 MB/s after 8b/10b coding, of which drives name 500
  to 560; sheets name about 10,000 reads of 4 KiB a second one at a time, 75,000 to 100,000 in a queue of 32.
- nvme: 0.08 ms and 3 GB/s. Four lanes of PCIe 3 carry 3.9 GB/s, of which drives name 3 to 3.5; flash answers
  a single read of 4 KiB in 60 to 100 us.
- s3: 30 ms, 85 MB/s a connection, 1.25 GB/s in all. Amazon's paper on best practices for S3 performance
  speaks of tens of milliseconds for small objects and of 85 to 90 MB/s a request, and takes a network of 10
  Gb/s, within the same region.
- http: 50 ms, 40 MB/s a connection, 1.25 GB/s in all: a server in another town, as the network benchmarks of
  this project have it. Measure your own.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

__all__ = ["PRESETS", "Medium", "guess", "read_seconds"]


@dataclass(frozen=True, slots=True)
class Medium:
    """What reads cost on a storage."""

    name: str
    """`hdd`, `sata`, `nvme`, `s3`, `http`, or `measured`."""
    seek_seconds: float
    """Before the first byte of a read that does not go on where another ended."""
    stream_bytes: float
    """Bytes a second of one read."""
    total_bytes: float
    """Bytes a second of all reads together, at most."""
    at_once: int
    """Reads that overlap."""
    is_network: bool = False
    """Whether every request waits, wherever it begins."""


PRESETS = MappingProxyType(
    {
        medium.name: medium
        for medium in (
            Medium("hdd", 9e-3, 150e6, 150e6, 1),
            Medium("sata", 1e-4, 500e6, 500e6, 8),
            Medium("nvme", 8e-5, 1.5e9, 3e9, 16),
            Medium("s3", 30e-3, 85e6, 1.25e9, 64, is_network=True),
            Medium("http", 50e-3, 40e6, 1.25e9, 64, is_network=True),
        )
    }
)
"""Kinds of storage by name."""


def read_seconds(medium: Medium, *, reads: int, seeks: int, requests: int, read_bytes: int) -> float:
    """Return how long reads keep a storage busy.

    Args:
        medium: the storage.
        reads: all of them.
        seeks: those that begin elsewhere.
        requests: those of a network: parts of long reads count each.
        read_bytes: bytes of all.
    """
    waits = max(requests, reads) if medium.is_network else seeks
    overlap = max(min(medium.at_once, waits), 1)
    alone = waits * medium.seek_seconds + read_bytes / medium.stream_bytes
    return max(alone / overlap, read_bytes / medium.total_bytes)


def guess(path: str) -> Medium:
    """Return what a path or an address most likely lies on: told by its scheme, or by what the disk says."""
    scheme, mark, _ = path.partition("://")
    if mark:
        return PRESETS["http" if scheme.startswith("http") else "s3"]
    return PRESETS[_disk(Path(path))]


def _disk(path: Path, devices: Path = Path("/sys/dev/block")) -> str:
    """Return the preset of a local path's disk; sata where the system does not tell."""
    try:
        device = path.stat().st_dev
        folder = (devices / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        name = folder.name
        if not (folder / "queue").is_dir():  # a partition of a disk
            folder = folder.parent
        if (folder / "queue" / "rotational").read_text().strip() == "1":
            return "hdd" if not name.startswith(("vd", "xvd")) else "sata"  # a virtual disk says so of all
    except (OSError, ValueError):
        return "sata"
    return "nvme" if name.startswith("nvme") else "sata"
