"""What reads cost on kinds of storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.planning import PRESETS, Medium, guess, read_seconds

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


def test_a_path_is_on_some_disk(tmp_path: Path) -> None:
    """Whatever the system tells, or does not, there are figures."""
    assert guess(str(tmp_path)).name in ("hdd", "sata", "nvme")
    assert guess(str(tmp_path / "missing")).name == "sata"
