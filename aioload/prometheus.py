"""Prometheus: what loaders count, for a server that asks now and then; needs `prometheus_client`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING
from weakref import ref

from .errors import ConfigError
from .stats import LoaderStats
from .sync import Face, SyncLoader

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError(
        "figures for Prometheus need prometheus-client; install it with: "
        "pip install 'torch-aioload[prometheus]'",
        cause=repr(error),
    ) from error

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["LoaderCollector"]

_NUMBERS = ("int", "float", "bool")
_LABELS = ("loader", "rank")


class LoaderCollector(Collector):
    """All of `LoaderStats` as metrics, with the labels `loader` and `rank`.

    `REGISTRY.register(LoaderCollector(train=loader))`. Nothing is done until Prometheus asks. What grows is a
    counter, as `aioload_samples_total`; what is as it is, a gauge, as `aioload_num_workers`. Loaders are not
    kept alive; one that was closed stays as it was.

    Args:
        loaders: each under its name. All loaders of a process go into one collector, as a registry takes each
            metric from one place only.
    """

    def __init__(self, **loaders: Face | SyncLoader) -> None:
        self._loaders = {
            name: ref(loader.loader if isinstance(loader, SyncLoader) else loader)
            for name, loader in loaders.items()
        }

    def collect(self) -> Iterator[Metric]:
        """Return the metrics as they are now."""
        alive = {name: loader for name, found in self._loaders.items() if (loader := found()) is not None}
        counted = {(name, str(loader.rank)): loader.stats() for name, loader in alive.items()}
        for field in fields(LoaderStats):
            if field.type not in _NUMBERS:
                continue
            kind = GaugeMetricFamily if field.metadata.get("level") else CounterMetricFamily
            told = f"LoaderStats.{field.name} of aioload"
            family = kind(f"aioload_{field.name}", told, labels=_LABELS)
            for labels, stats in counted.items():
                family.add_metric(labels, float(getattr(stats, field.name)))
            yield family
