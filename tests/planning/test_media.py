"""What reads cost on kinds of storage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.planning import PRESETS, Medium, guess, read_seconds
from aioload.planning.media import _disk

media = st.sampled_from(list(PRESETS.values()))
counts = st.integers(1, 10**7)


@given(media, counts, st.integers(0, 10**13), st.integers(1, 1000))
def test_more_is_never_quicker(medium: Medium, reads: int, read_bytes: int, more: int) -> None:
    """Further seeks, requests or bytes cost time or nothing."""
    base = {"reads": reads, "seeks": reads, "requests": reads, "read_bytes": read_bytes}

    least = read_seconds(medium, **base)

    assert least >= read_bytes / medium.total_bytes
    assert read_seconds(medium, **base | {"read_bytes": read_bytes + more}) >= least
    if reads >= medium.at_once:  # below it, more reads overlap more
        asked = dict.fromkeys(("reads", "seeks", "requests"), reads + more)
        assert read_seconds(medium, **base | asked) >= least * (1 - 1e-9)


def test_a_disk_with_one_head_seeks() -> None:
    """A thousand reads elsewhere cost nine seconds beside their bytes; reads that go on cost bytes alone."""
    hdd = PRESETS["hdd"]

    elsewhere = read_seconds(hdd, reads=1000, seeks=1000, requests=1000, read_bytes=150_000_000)
    on = read_seconds(hdd, reads=1000, seeks=1, requests=1000, read_bytes=150_000_000)

    assert elsewhere == pytest.approx(10.0)
    assert on == pytest.approx(1.009)


def test_a_network_waits_for_each_request() -> None:
    """Requests wait side by side, wherever they begin, and bytes are bound by the line."""
    s3 = PRESETS["s3"]

    waits = read_seconds(s3, reads=6400, seeks=1, requests=6400, read_bytes=0)
    line = read_seconds(s3, reads=100, seeks=1, requests=100, read_bytes=125 * 10**9)

    assert waits == pytest.approx(100 * s3.seek_seconds)
    assert line == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("path", "name"),
    [("s3://bucket/x", "s3"), ("gs://bucket/x", "s3"), ("http://host/x", "http"), ("https://host/x", "http")],
)
def test_an_address_tells_its_kind(path: str, name: str) -> None:
    """Buckets answer like S3, web servers like web servers."""
    assert guess(path).name == name


def test_what_is_not_there_has_figures_too(tmp_path: Path) -> None:
    """Where the system tells nothing of a path, they are those of a usual disk."""
    assert guess(str(tmp_path / "missing")).name == "sata"


@pytest.mark.parametrize(
    ("name", "rotates", "preset"),
    [("sda", "1", "hdd"), ("sda", "0", "sata"), ("vda", "1", "sata"), ("nvme0n1", "0", "nvme")],
    ids=["with a head", "without", "virtual, which all say that they rotate", "on the bus"],
)
@pytest.mark.parametrize("partition", ["", "p1"], ids=["whole", "a part"])
def test_the_system_tells_the_disk_of_a_path(
    tmp_path: Path, name: str, rotates: str, preset: str, partition: str
) -> None:
    """By the disk's name, and by whether it rotates; a part of a disk is as the disk is."""
    queue = tmp_path / "devices" / name / "queue"
    queue.mkdir(parents=True)
    (queue / "rotational").write_text(f"{rotates}\n")
    device = tmp_path.stat().st_dev
    told = queue.parent / f"{name}{partition}" if partition else queue.parent
    told.mkdir(exist_ok=True)
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(told)

    assert _disk(tmp_path, tmp_path / "block") == preset
