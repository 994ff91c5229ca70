"""Needs: nothing becomes larger in the arena than was foreseen, however the work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioload
from aioload._pipeline.needs import Need, foresee
from aioload._workers.jobs import TABLE
from aioload._workers.layout import RowWriter, learn
from aioload._workers.packed import pack
from aioload._workers.space import align
from aioload.collate import default
from aioload.shard.format import NativeFormat
from aioload.shard.kinds import encode

from .runs import make_recipe

PLACE = np.zeros(1 << 22, np.uint8)
VALUES = {
    "bytes": st.binary(max_size=3000),
    "str": st.text(max_size=500),
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False),
    "ndarray": st.builds(np.zeros, st.integers(0, 400), st.sampled_from(["u1", "f4", "c16"])),
}


@st.composite
def sets(draw: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Draw fields and some samples of them; arrays of a field are all alike, so that they stack."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    fields = {f"field {number}": kind for number, kind in enumerate(kinds)}
    rows = draw(st.sampled_from([1, 2, 7, 40]))
    arrays = {name: draw(VALUES[kind]) for name, kind in fields.items() if kind == "ndarray"}
    samples = [
        {name: arrays[name] if name in arrays else draw(VALUES[kind]) for name, kind in fields.items()}
        for _ in range(rows)
    ]
    return fields, samples


@given(sets(), st.sampled_from([0, 1, 8]))
def test_nothing_grows_beyond_what_was_foreseen(
    data: tuple[dict[str, str], list[dict[str, Any]]], num_workers: int
) -> None:
    """A batch as rows and texts, and where rows are not known beforehand its samples packed in parts."""
    fields, samples = data
    recipe = make_recipe(fields)
    growth = foresee(recipe, num_workers, 4)
    assert growth is not None
    raw = [_raw_bytes(recipe.formats[0], sample) for sample in samples]

    layout = learn(samples)
    assert layout is not None
    writer = RowWriter(layout, PLACE, len(samples))
    assert all(writer.write(row, sample) for row, sample in enumerate(samples))
    texts = writer.pack_texts(PLACE[: growth.part_texts(len(samples), sum(raw))])
    rows = layout.starts(len(samples))[-1] + align(texts[-1].stop if texts else 0)
    assert rows <= growth.made(len(samples), sum(raw))
    if "ndarray" in fields.values():
        whole = pack(default(samples), PLACE)[1]
        assert whole <= growth.part(len(samples), sum(raw))
        cuts = np.array_split(np.arange(len(samples)), min(growth.parts, len(samples)))
        parts = [_packed(samples, cut, growth, raw) for cut in cuts]
        assert sum(map(align, parts)) <= growth.made(len(samples), sum(raw))


def _raw_bytes(format_: NativeFormat, sample: dict[str, Any]) -> int:
    values = {name: encode(kind, sample[name]) for name, kind in format_.fields}
    return sum(len(bytes(chunk)) for chunk in format_.join("a key", values))


def _packed(samples: list[dict[str, Any]], rows: Any, growth: Any, raw: list[int]) -> int:
    """Pack some rows as they wait for the rest of theirs, in no more room than was foreseen."""
    some = [samples[row] for row in rows]
    room = growth.part(len(some), sum(raw[row] for row in rows))
    return pack((some, ["a key"] * len(some), rows), PLACE[:room])[1]


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"x": "int"}, {"transform": dict}),
        ({"x": "int"}, {"collate": list}),
        ({"x": "json", "n": "int"}, {}),
        ({"x": "audio"}, {}),
        ({"x": "image"}, {}),
        ({"x": "bytes"}, {"decoders": {"x": len}}),
    ],
)
def test_what_only_trying_tells_is_not_foreseen(fields: dict[str, str], options: dict[str, Any]) -> None:
    """Code of the user's, and values whose size is not that of what is stored."""
    assert foresee(make_recipe(fields, **options), 2, 4) is None


def test_pictures_of_one_size_are_foreseen() -> None:
    """What they take is what their size says, not what is stored."""
    decoders = {"x": aioload.decode.Image(size=(20, 10), crop="center")}

    growth = foresee(make_recipe({"x": "image", "n": "int"}, decoders=decoders), 2, 4)

    assert growth is not None
    assert growth.made(100, 1 << 30) - growth.made(0, 0) == 100 * (20 * 10 * 3 + 8)


def test_records_may_lie_apart() -> None:
    """The raw side of a need has room for each record at a place of its own, and for the table."""
    need = Need.of(10, 1000, None)

    assert need.raw >= 10 * align(100) + 10 * TABLE.itemsize
    assert (need.made, need.run) == (None, need.raw)
