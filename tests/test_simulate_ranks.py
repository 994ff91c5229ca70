"""The simulation of many ranks: its computed index is a real one's, and what would be wrong is seen."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aioload.order import BlockOrder, Blocks, Shuffle
from aioload.part import Part

ROOT = Path(__file__).parent.parent


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("simulate_ranks")
    sys.modules.pop("simulate_ranks")


def job(simulation: Any, records: int = 60_000, lanes: int = 12) -> Any:
    """Return a small job."""
    table = simulation.ArithmeticTable(records, 40, shard_bytes=100_000)
    return simulation.Job(table, Shuffle("block", 3, lanes, 4000), 8, 1000.0, 2 << 30)


@pytest.mark.parametrize("records", [1, 37, 5000])
@pytest.mark.parametrize("record_bytes", [2, 40, 333])
@pytest.mark.parametrize("block_bytes", [10, 1000, 1 << 20])
def test_blocks_are_those_of_an_index(
    simulation: Any, records: int, record_bytes: int, block_bytes: int
) -> None:
    """What the formula cuts is what `Blocks.cut` finds in the same places, written down."""
    table = simulation.ArithmeticTable(records, record_bytes, shard_bytes=record_bytes * 700)
    positions = table.bytes_before(np.arange(records + 1))

    computed = table.blocks(block_bytes)

    cut = Blocks.cut(positions.astype(np.uint64), table.shard_records, block_bytes)
    assert computed.firsts.tolist() == cut.firsts.tolist()


def test_computed_records_lie_end_to_end(simulation: Any) -> None:
    """Each record has some bytes, sizes differ, none is lost between two, and each shard begins anew."""
    table = simulation.ArithmeticTable(3000, 40, shard_bytes=40_000)

    places = table.places(np.arange(3000))

    sizes = places.stop - places.start
    assert (int(sizes.min()) >= 1, len(np.unique(sizes)) > 10) == (True, True)
    assert int(sizes.sum()) == table.data_bytes == 3000 * 40
    assert places.start[places.shard != np.roll(places.shard, 1)].tolist() == [24, 24, 24]
    assert np.array_equal(places.start[1:1000], places.stop[:999])


@pytest.mark.parametrize("lanes", [12, 8])
@pytest.mark.parametrize("world_size", [1, 2, 5, 8, 24])
def test_ranks_get_what_they_should(simulation: Any, world_size: int, lanes: int) -> None:
    """No fault is found where there is none, and a piece is needed by as many ranks as the formula says."""
    row = simulation.simulate(job(simulation, lanes=lanes), world_size)

    assert row.faults == ()
    assert row.steps == math.ceil(60_000 / (8 * world_size))
    assert row.readers == world_size // math.gcd(world_size, lanes)
    assert row.planned == pytest.approx(row.readers, rel=0.2)


def test_lanes_that_fit(simulation: Any) -> None:
    """They are a multiple of the world size, and the usual ones where those are one."""
    found = [simulation.fitting_lanes(world_size, 192) for world_size in (1, 64, 100, 192, 256, 4096)]

    assert found == [192, 192, 200, 192, 256, 4096]


class OneTwice(Part):
    """Gives a position of another rank's in place of one."""

    def positions(self, first_step: int, stop_step: int) -> Any:
        found = super().positions(first_step, stop_step)
        return np.where(found % 1001 == 7, found + 1, found)


class OneMore(Part):
    """Has a batch more on rank 1."""

    @property
    def steps(self) -> int:
        return super().steps + (self.rank == 1)


class Shared(BlockOrder):
    """Gives two positions the same record."""

    def records(self, positions: Any) -> Any:
        return super().records(positions) // 2 * 2


@pytest.mark.parametrize(
    ("broken", "told"), [(OneTwice, "is not the global batch"), (OneMore, "ranks differ in steps")]
)
def test_parts_that_are_wrong_are_seen(
    simulation: Any, monkeypatch: pytest.MonkeyPatch, broken: type[Part], told: str
) -> None:
    """A position that comes twice, or a rank with a batch more, is told."""
    monkeypatch.setattr(simulation, "Part", broken)

    row = simulation.simulate(job(simulation), 4)

    assert any(told in fault for fault in row.faults)


def test_an_order_that_is_wrong_is_seen(simulation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record at two positions is told."""
    monkeypatch.setattr("aioload.table.BlockOrder", Shared)
    monkeypatch.setattr(simulation, "BlockOrder", Shared)

    row = simulation.simulate(job(simulation), 4)

    assert any("has a record twice" in fault for fault in row.faults)


def test_a_limit_without_room_for_pieces_is_told(simulation: Any) -> None:
    """Where the pieces of all lanes do not fit, each record is a request, and nothing is read twice."""
    whole, single = (
        simulation.simulate(dataclasses.replace(job(simulation), memory_limit=limit), 5)
        for limit in (2 << 30, 200_000)
    )

    assert (whole.whole, single.whole) == (True, False)
    assert (single.epoch_requests, single.epoch_bytes) == (60_000 // 5, 60_000 * 40 // 5)
    assert whole.epoch_bytes == 5 * single.epoch_bytes


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_script_prints_its_table(options: tuple[str, ...]) -> None:
    """A row for each world size, and another where the lanes do not fit; status 0, as nothing is wrong."""
    small = ["--records", "200000", "--record-bytes", "100", "--worlds", "1,5,16"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "simulate_ranks.py"), *small, *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=50,
        check=False,
    )

    expected = [(1, 192), (5, 192), (5, 195), (16, 192)]
    assert done.returncode == 0
    if options:
        told = json.loads(done.stdout)
        assert [(row["world_size"], row["lanes"]) for row in told["rows"]] == expected
    else:
        rows = [line.split("|")[1:3] for line in done.stdout.splitlines()[2:6]]
        assert [tuple(map(int, row)) for row in rows] == expected
