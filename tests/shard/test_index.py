"""The index finds every record, costs 12 bytes for each, is never copied, and is checked whole."""

from __future__ import annotations

import dataclasses
import itertools
import mmap
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import own_sets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ShardError
from aioload.shard.footer import Footer
from aioload.shard.format import INDEX_NAME, MANIFEST_NAME
from aioload.shard.index import Index, join_footers, make_manifest, parse_index, render_index
from aioload.shard.manifest import Manifest

FIELDS = (("image", "image"), ("label", "int"))
MANY = 1_000_000


@given(shards=st.lists(st.lists(st.integers(12, 5000), max_size=6), min_size=1, max_size=6))
def test_locate_finds_every_record(shards: list[list[int]]) -> None:
    """Shard, start and stop are what walking through the sizes gives, past empty shards too."""
    index = _index(shards)
    expected = [
        (number, 24 + stop - size, 24 + stop)
        for number, sizes in enumerate(shards)
        for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True)
    ]

    found = index.locate(np.arange(len(index)))

    assert list(zip(found.shard.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)) == expected
    assert found.sums is not None
    assert found.sums.tolist() == index.sums.tolist()  # type: ignore[union-attr] - it has sums


@given(shards=st.lists(st.lists(st.integers(12, 5000), max_size=6), min_size=1, max_size=6))
def test_parse_is_the_inverse_of_render(shards: list[list[int]]) -> None:
    """Each array comes back as it was, and the index has the same fingerprint."""
    index = _index(shards)
    data = render_index(index)

    again = parse_index(data, make_manifest(index, data, {}), INDEX_NAME)

    assert render_index(again) == data
    assert again.shards == index.shards
    assert again.fingerprint() == index.fingerprint()
    assert again.columns["label"].tolist() == index.columns["label"].tolist()


@pytest.mark.parametrize("records", [[-1], [5], [0, 7], [-5, 3]])
def test_record_that_is_not_there_is_an_error(records: list[int]) -> None:
    """A negative number does not count from the end in silence."""
    index = _index([[20, 30], [40, 50, 60]])

    with pytest.raises(IndexError, match="0 to 4"):
        index.locate(np.array(records))


def test_no_records_are_located_as_none() -> None:
    """An empty question has an empty answer, also in an empty set."""
    assert len(_index([[]]).locate(np.empty(0, np.int64)).shard) == 0


def test_index_of_many_records_is_small_and_never_copied() -> None:
    """At most 16 bytes a record, all of them views of the buffer, and the checks allocate next to nothing."""
    index = _index([[100] * (MANY // 4)] * 4, columns=False)
    data = render_index(index)
    manifest = make_manifest(index, data, {})

    tracemalloc.start()
    parsed = parse_index(data, manifest, INDEX_NAME)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert parsed.nbytes <= 12.01 * MANY
    assert peak < 4 * MANY
    assert all(np.shares_memory(array, np.frombuffer(data, np.uint8)) for array in _arrays(parsed))


def test_mapped_index_is_used_where_it_lies(tmp_path: Path) -> None:
    """A mapped file is as good as bytes."""
    files = own_sets.fifty(tmp_path / "set")
    manifest = Manifest.parse(files[MANIFEST_NAME], MANIFEST_NAME)

    with (tmp_path / "set" / INDEX_NAME).open("rb") as file:
        index = parse_index(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), manifest, INDEX_NAME)

    assert index.columns["label"].tolist() == list(range(50))


def test_arrays_cannot_be_written_to() -> None:
    """What all parts share, no part can change."""
    index = _index([[20, 30]])
    data = bytearray(render_index(index))

    parsed = parse_index(data, make_manifest(index, bytes(data), {}), INDEX_NAME)  # type: ignore[arg-type] - on purpose

    assert not any(array.flags.writeable for array in _arrays(parsed))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"shard_records": [0, 3, 2]}, "shard_records"),
        ({"shard_records": [1, 1, 2]}, "shard_records"),
        ({"shard_records": [0, 3, 3]}, "shard_records"),
        ({"shard_starts": [0, 21, 50]}, "shard_starts"),
        ({"shard_starts": [0, 20, 51]}, "shard_starts"),
        ({"shard_data": [24, 25]}, "shard_data"),
        ({"shard_bytes": [44, 53]}, "shard_bytes"),
        ({"shard_bytes": [44, 23]}, "shard_data"),
        ({"positions": [0, 20, 19]}, "shard_starts"),
        ({"positions": [0, 20, 2**63]}, "shard_starts"),
    ],
)
def test_part_that_cannot_be_is_named(change: dict[str, list[int]], field: str) -> None:
    """With a right sum, too, no array is believed: the error names file and part."""
    index = _index([[20], [30]])
    data = render_index(_changed(index, change))
    manifest = make_manifest(_changed(index, {}), data, {})

    with pytest.raises(ShardError, match=r"there/index\.aioi") as caught:
        parse_index(data, manifest, "there/index.aioi")

    assert caught.value.field == field


@pytest.mark.parametrize("sizes", [[20, 11, 30], [20, -5, 30], [20, 2**32 + 12, 30]])
def test_record_of_a_size_that_cannot_be_is_named(sizes: list[int]) -> None:
    """A record smaller than its header, of negative size, or beyond the limit is found wherever it is."""
    places = [0, *itertools.accumulate([20] * 70_000 + sizes)]
    index = _changed(
        _index([[20] * 70_003]),
        {"positions": places, "shard_starts": [0, places[-1]], "shard_bytes": [2**40]},
    )
    data = render_index(index)

    with pytest.raises(ShardError, match="record 70001") as caught:
        parse_index(data, make_manifest(index, data, {}), INDEX_NAME)

    assert (caught.value.field, caught.value.record) == ("positions", 70_001)  # type: ignore[attr-defined] - a fact


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"records": 3}, "records"),
        ({"shards": 1}, "shards"),
        ({"fields": {"image": "image"}}, "fields"),
        ({"index_fields": {}}, "columns"),
        ({"data_bytes": 51}, "shard_starts"),
        ({"index_bytes": 3}, "size"),
        ({"index_crc32c": 3}, "crc32c"),
    ],
)
def test_index_of_another_set_is_refused(change: dict[str, Any], field: str) -> None:
    """Manifest and index must agree in each count."""
    index = _index([[20], [30]])
    data = render_index(index)
    manifest = dataclasses.replace(make_manifest(index, data, {}), **change)

    with pytest.raises(ShardError) as caught:
        parse_index(data, manifest, INDEX_NAME)

    assert caught.value.field == field


def test_padding_that_is_not_zero_is_refused() -> None:
    """Not a byte of the file is without meaning."""
    index = _index([[20]])
    data = render_index(index)[:-1] + b"\x01"

    with pytest.raises(ShardError, match="padding"):
        parse_index(data, make_manifest(index, data, {}), INDEX_NAME)


def test_fingerprint_tells_contents_apart() -> None:
    """Another size, sum, cut into shards or field makes another fingerprint; another place does not."""
    index = _index([[20, 30], [40]])
    others = [
        _index([[20, 31], [40]]),
        _index([[20], [30, 40]]),
        _changed(index, {"sums": [1, 2, 4]}),
        dataclasses.replace(index, fields=(("image", "bytes"), ("label", "int"))),
        dataclasses.replace(index, sums=None),
    ]

    fingerprints = {other.fingerprint() for other in [index, *others]}
    moved = dataclasses.replace(index, shards=("a", "b"), shard_data=index.shard_data + np.uint64(100))

    assert len(fingerprints) == 6
    assert moved.fingerprint() == index.fingerprint()


def test_repr_shows_counts_and_no_data() -> None:
    """What a debugger prints is a line."""
    assert repr(_index([[20, 30], [40]])) == "<Index records=3 shards=2 bytes=90>"


def _index(shards: list[list[int]], *, columns: bool = True) -> Index:
    footers = [
        Footer(
            FIELDS,
            np.cumsum(sizes, dtype=np.uint64),
            np.arange(1, len(sizes) + 1, dtype=np.uint32),
            {"label": np.arange(len(sizes), dtype=np.int64)} if columns else {},
        )
        for sizes in shards
    ]
    return join_footers(footers, [24 + footer.data_bytes + 60 for footer in footers])


def _changed(index: Index, change: dict[str, list[int]]) -> Index:
    arrays = {name: np.array(values, getattr(index, name).dtype) for name, values in change.items()}
    return dataclasses.replace(index, **arrays)


def _arrays(index: Index) -> list[np.ndarray]:
    names = ["shard_records", "shard_starts", "shard_data", "shard_bytes", "positions", "sums"]
    return [*(getattr(index, name) for name in names), *index.columns.values()]
