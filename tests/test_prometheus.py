"""Figures for Prometheus: all that a loader counts, read when they are asked for."""

from __future__ import annotations

import gc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from batches import counted
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aioload import Loader, LoaderStats
from aioload.prometheus import LoaderCollector


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 records."""
    return counted(tmp_path_factory.mktemp("hundred") / "set")


@pytest.fixture
def registry() -> CollectorRegistry:
    """As the one that `prometheus_client` has for everybody."""
    return CollectorRegistry(auto_describe=True)


def test_all_counts_can_be_scraped(hundred: Path, registry: CollectorRegistry) -> None:
    """Each count is a metric in the text that a server reads; what grows is a counter, the rest is not."""
    loader = Loader(hundred, batch_size=20, num_workers=0)
    registry.register(LoaderCollector(train=loader))

    with loader.sync() as batches:
        list(batches)
    text = generate_latest(registry).decode()

    families = {family.name: family for family in text_string_to_metric_families(text)}
    numbers = {field.name for field in fields(LoaderStats) if field.type in ("int", "float", "bool")}
    assert set(families) == {f"aioload_{name}" for name in numbers}
    assert (families["aioload_samples"].type, families["aioload_memory_peak"].type) == ("counter", "gauge")
    labels = {"loader": "train", "rank": "0"}
    assert registry.get_sample_value("aioload_samples_total", labels) == 100
    assert registry.get_sample_value("aioload_memory_limit", labels) == loader.stats().memory_limit


def test_several_loaders(hundred: Path, registry: CollectorRegistry) -> None:
    """Loaders are told apart by name and rank; a face stands for its loader."""
    train = Loader(hundred, batch_size=20, num_workers=0)
    val = Loader(hundred, batch_size=50, num_workers=0, rank=1, world_size=2)
    registry.register(LoaderCollector(train=train.sync(), val=val))

    for loader in (train, val):
        with loader.sync() as batches:
            list(batches)

    value = registry.get_sample_value
    assert value("aioload_batches_total", {"loader": "train", "rank": "0"}) == 5
    assert value("aioload_batches_total", {"loader": "val", "rank": "1"}) == 1


def test_a_forgotten_loader_is_not_kept(hundred: Path, registry: CollectorRegistry) -> None:
    """A collector keeps no loader alive, and what is gone is told no more."""
    loader = Loader(hundred, batch_size=20, num_workers=0)
    registry.register(LoaderCollector(train=loader))

    del loader
    gc.collect()

    assert registry.get_sample_value("aioload_batches_total", {"loader": "train", "rank": "0"}) is None


def test_what_is_missing_is_named() -> None:
    """Without `prometheus_client` the error names the extra."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "try:\n    import aioload.prometheus\n"
        "except ValueError as error:\n    sys.exit('torch-aioload[prometheus]' not in str(error))"
    )

    status = subprocess.run([sys.executable, "-c", code], check=False).returncode

    assert status == 0
