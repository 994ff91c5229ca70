"""The manifest is read back as it was written, and no bit of it can change unseen."""

from __future__ import annotations

import json
from typing import Any

import own_sets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioload.errors import ConfigError, ShardError
from aioload.shard.format import crc32c
from aioload.shard.kinds import KINDS
from aioload.shard.manifest import Manifest

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda name: name != "__key__"
)
counts = st.integers(0, 2**63 - 1)
manifests = st.builds(
    Manifest,
    fields=st.dictionaries(names, st.sampled_from(KINDS), min_size=1, max_size=5),
    records=counts,
    shards=counts,
    data_bytes=counts,
    index_bytes=counts,
    index_crc32c=st.integers(0, 2**32 - 1),
    metadata=own_sets.json_values,
)

SMALL = Manifest(
    {"image": "image", "label": "int"}, 50, 2, 1234, 700, 0xABCDEF01, {"label": "int"}, {"classes": ["ä"]}
)


@given(manifest=manifests)
def test_parse_is_the_inverse_of_render(manifest: Manifest) -> None:
    """There is one rendering, whatever names and metadata are."""
    data = manifest.render()

    again = Manifest.parse(data, "manifest.json")

    assert again == manifest
    assert again.render() == data


@given(manifest=manifests, data=st.data())
def test_any_flipped_bit_of_any_manifest_is_an_error(manifest: Manifest, data: st.DataObject) -> None:
    """Not one bit of any manifest can change."""
    rendered = manifest.render()
    damaged = own_sets.flip(rendered, data.draw(st.integers(0, 8 * len(rendered) - 1)))

    with pytest.raises(ShardError, match=r"manifest\.json"):
        Manifest.parse(damaged, "manifest.json")


def test_every_flipped_bit_and_every_cut_is_an_error() -> None:
    """The same for each bit and each length of one manifest."""
    data = SMALL.render()
    damaged = [own_sets.flip(data, bit) for bit in range(8 * len(data))] + [
        data[:stop] for stop in range(len(data))
    ]

    readable = [each for each in damaged if _is_readable(each)]

    assert readable == []


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("version", 2, "format version 2, this aioload reads version 1; upgrade"),
        ("version", "1", "no manifest of aioload"),
        ("version", True, "no manifest of aioload"),
        ("format", "webdataset", "no manifest of aioload"),
        ("fields", [["a", "video"]], "unknown kind 'video'"),
        ("fields", [], "1 to 1024 fields"),
        ("fields", "image", "fields map names to kinds"),
        ("index_fields", ["image"], "index_fields"),
        ("records", -1, "records is -1"),
        ("records", 1.0, "records is 1.0"),
        ("shards", None, "shards is None"),
        ("data_bytes", 2**63, "data_bytes is"),
        ("index", {"name": "../secret", "bytes": 1, "crc32c": "00"}, "not 'index.aioi'"),
        ("index", {"name": "index.aioi"}, "members are"),
        ("index", [], "members are"),
        ("colour", "red", "members are"),
    ],
)
def test_member_that_cannot_be_is_named(member: str, value: Any, message: str) -> None:
    """With a right sum, too, each member is checked, and a newer version is refused in words."""
    data = _signed({**json.loads(SMALL.render()), member: value, "crc32c": "00000000"})

    with pytest.raises(ShardError, match=message) as caught:
        Manifest.parse(data, "somewhere/manifest.json")

    assert caught.value.shard == "somewhere/manifest.json"


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000, '"\ud800"'])
def test_text_that_is_no_object_is_refused(text: str) -> None:
    """A right sum makes no manifest of what is none."""
    data = _sign(text.encode(errors="surrogatepass") + b'  "crc32c": "00000000"\n}\n')

    with pytest.raises(ShardError):
        Manifest.parse(data, "manifest.json")


@pytest.mark.parametrize("metadata", [{"a": float("nan")}, {"a": {1}}, b"bytes", {("a",): 1}])
def test_metadata_beyond_json_is_refused(metadata: Any) -> None:
    """What cannot be written as JSON is a mistake in the call."""
    manifest = Manifest({"a": "int"}, 0, 1, 0, 0, 0, metadata=metadata)

    with pytest.raises(ConfigError, match="metadata"):
        manifest.render()


def test_manifest_stays_small() -> None:
    """It does not grow with shards and records."""
    manifest = Manifest({"image": "image", "label": "int"}, 10**12, 10**6, 10**17, 10**13, 2**32 - 1)

    assert len(manifest.render()) < 400


def _signed(members: dict[str, Any]) -> bytes:
    sum_ = members.pop("crc32c")
    return _sign((json.dumps(members)[:-1] + f',\n  "crc32c": "{sum_}"\n}}\n').encode())


def _sign(data: bytes) -> bytes:
    return data.replace(b'"00000000"\n}\n', b'"%08x"\n}\n' % crc32c(data))


def _is_readable(data: bytes) -> bool:
    try:
        Manifest.parse(data, "manifest.json")
    except ShardError:
        return False
    return True
