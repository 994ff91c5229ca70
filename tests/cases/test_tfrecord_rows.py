"""Case rows F01, F03 and F05 where shards are scanned and records split, with the manifest's exact values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protos import decoded, samples, scanned, spans

from aioload.errors import SampleError, ShardError
from aioload.shard.absent import ABSENT
from aioload.shard.tfrecord import TFRecordFormat

FILES = Path(__file__).parent / "files"
EXPECTED = {
    entry["path"]: entry["expect"]
    for entry in json.loads((FILES / "manifest.json").read_text())["files"]
    if entry["kind"] == "tfrecord"
}


def brief(data: bytes) -> str:
    """Return the beginning of a sum, as the manifest writes it."""
    return hashlib.sha256(data).hexdigest()[:16]


def shown(value: Any) -> list[Any]:
    """Return a value as the manifest writes it."""
    if isinstance(value, np.ndarray):
        return [{"int64": "int64", "float32": "float"}[str(value.dtype)], value.tolist()]
    return ["bytes", brief(value)] if isinstance(value, bytes) else ["bytes_list", [*map(brief, value)]]


def pieces(path: str, payload: str | None = None) -> tuple[TFRecordFormat, list[memoryview], list[int]]:
    """Return the format of a file, its records, and the byte where each begins."""
    data = (FILES / path).read_bytes()
    found = scanned(data, payload=payload)
    return TFRecordFormat(found.fields, **found.facts), spans(data, found), [0, *found.ends.tolist()]


@pytest.mark.parametrize("path", ["tfrecord/plain.tfrecord", "tfrecord/features.tfrecord"])
def test_f05_features_have_the_manifests_values(path: str) -> None:
    """F05: empty lists keep their type, int64 is exact, unpacked is packed, bytes are bytes, last wins."""
    expected = [dict(features) for features in EXPECTED[path]["features"]]
    for features in expected:
        features.pop("no_kind", None)  # what has no kind is no field, see the next test
        if "name" in features:
            features["name"] = ["bytes", brief(features["name"][1].encode())]

    found = [{name: shown(value) for name, value in sample.items()} for sample in samples_of(path)]

    assert found == expected


def test_f05_an_absent_field_is_named_unless_it_may_be_absent() -> None:
    """F05: asking for what a record has not is an error that lists what it has, unless there is a default."""
    form, (record,), _ = pieces("tfrecord/features.tfrecord")
    asked = form.with_kinds({"no_kind": "example:int64", "nowhere": "str"})
    optional = frozenset({"no_kind", "nowhere"})

    with pytest.raises(SampleError, match=r"'no_kind'.*empty_float.*on_error") as caught:
        asked.split(record)
    values = TFRecordFormat(asked.fields, asked.encodings, optional=optional).split(record)[1]

    assert (caught.value.field, caught.value.category) == ("no_kind", "missing")  # type: ignore[attr-defined] - facts
    assert "twice" in caught.value.features  # type: ignore[attr-defined] - facts
    assert {name for name, value in values.items() if value is ABSENT} == optional


@pytest.mark.parametrize(
    "path", ["tfrecord/data_crc.tfrecord", "tfrecord/cut_data.tfrecord", "tfrecord/cut_len.tfrecord"]
)
def test_f01_f03_whole_records_come_first_and_then_a_typed_error(path: str) -> None:
    """F01, F03: the records before the damage are the manifest's; the damage is an error with its place."""
    expected = EXPECTED[path]
    form, records, starts = pieces(path, "bytes")
    bad = expected["record"]

    whole = [form.split(record)[1]["data"] for record in records[:bad]]
    with pytest.raises(ShardError) as caught:
        form.split(records[bad])

    assert [{"len": len(data), "sha256": brief(data)} for data in whole] == expected["records"]
    assert starts[bad] == expected["offset"]
    assert caught.value.category == expected["category"]  # type: ignore[attr-defined] - a fact


def test_f01_the_records_around_a_damaged_one_are_read() -> None:
    """F01: what the skip policy leaves is records 0 and 2; without the data's sums nobody would know."""
    form, records, _ = pieces("tfrecord/data_crc.tfrecord")
    unchecked = TFRecordFormat(form.fields, form.encodings, check_data=False)

    labels = [decoded(form, records[number])["label"].tolist() for number in (0, 2)]
    damaged = unchecked.split(records[1])[1]

    assert labels == [[0], [2]]
    assert set(damaged) == {"image", "label", "name"}


@pytest.mark.parametrize(("path", "wholes"), [("cut_data", 2), ("cut_len", 1), ("data_crc", 3)])
def test_f03_the_scan_tells_how_many_records_are_whole(path: str, wholes: int) -> None:
    """F03: `verify` can give the number of whole records, and where the file was cut."""
    found = scanned((FILES / f"tfrecord/{path}.tfrecord").read_bytes())

    assert found.wholes == wholes
    assert (found.damage is not None) == path.startswith("cut")
    assert found.damage is None or f"in its record {wholes}" in found.damage


def test_f02_what_is_no_tfrecord_is_refused_at_once() -> None:
    """F02: a text under such a name is an error before any record."""
    expected = EXPECTED["tfrecord/not_tfrecord.tfrecord"]

    with pytest.raises(ShardError, match=r"x\.tfrecord is no TFRecord") as caught:
        scanned((FILES / "tfrecord/not_tfrecord.tfrecord").read_bytes())

    assert (caught.value.record, caught.value.offset) == (expected["record"], expected["offset"])
    assert caught.value.category == expected["category"]  # type: ignore[attr-defined] - a fact


def samples_of(path: str) -> list[dict[str, Any]]:
    """Read a file."""
    return samples((FILES / path).read_bytes())
