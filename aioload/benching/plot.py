"""Plot: what was measured, as a picture to show around; needs the extra `plot`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..target import find_target

if TYPE_CHECKING:
    from .figures import Bench, Sweep

__all__ = ["check_plot", "plot"]

_INK, _BEST, _WIDTH, _HEIGHT, _DPI = "#3b6ea5", "#d1495b", 5.0, 3.6, 120


def check_plot(path: Path) -> Path:
    """Refuse a picture that could not be written, before anything is measured; return where it will be.

    Raises:
        ConfigError: matplotlib is missing, does not know the kind of picture, or there can be no such file.
    """
    try:
        importlib.import_module("matplotlib.figure")
        backends: Any = importlib.import_module("matplotlib.backend_bases")
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib, which is missing: pip install 'torch-aioload[plot]'"
        ) from error
    kinds = backends.FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise ConfigError(f"the plot {path} cannot be drawn: of its kind are {', '.join(kinds)}; name a .png")
    return find_target(path, "the plot")


def plot(bench: Bench, path: Path) -> None:
    """Write a picture: rates of stages and contenders, and the curves of a sweep."""
    path = check_plot(path)
    figure_module: Any = importlib.import_module("matplotlib.figure")  # without a screen or a global state
    columns = 1 + len(bench.sweeps)
    figure = figure_module.Figure(figsize=(_WIDTH * columns, _HEIGHT), layout="constrained", dpi=_DPI)
    panels = figure.subplots(1, columns, squeeze=False)[0]
    _bars(panels[0], bench)
    for panel, sweep in zip(panels[1:], bench.sweeps, strict=True):
        _curve(panel, sweep)
    figure.suptitle(
        f"{bench.source}: {bench.records:,} records, batches of {bench.batch_size}, "
        f"{bench.num_workers} workers",
        fontsize="small",
        parse_math=False,  # dollars in a path
    )
    figure.savefig(path, format=path.suffix[1:].lower() or "png")


def _bars(panel: Any, bench: Bench) -> None:
    found = [one for one in reversed(bench.measured) if one.missing is None]
    rates = [one.samples_per_second for one in found]
    bars = panel.barh(
        [one.name for one in found], rates, color=[_BEST if one.name == "loader" else _INK for one in found]
    )
    panel.bar_label(bars, labels=[f"{rate:,.0f}" for rate in rates], padding=3, fontsize="small")
    # a stage that is a hundred times faster than the others would leave nothing of them
    if rates and min(rates) > 0 and max(rates) > 20 * min(rates):
        panel.set_xscale("log")
    panel.margins(x=0.2)
    panel.set_xlabel("samples/s")


def _curve(panel: Any, sweep: Sweep) -> None:
    points = sorted(sweep.points, key=lambda point: point.value)
    values, rates = [point.value for point in points], [point.rate for point in points]
    panel.errorbar(values, rates, yerr=[point.error for point in points], color=_INK, marker="o", capsize=3)
    panel.plot([sweep.knee.value], [sweep.knee.rate], color=_BEST, marker="o", linestyle="")
    panel.annotate(
        f"{sweep.knee.value} will do",
        (sweep.knee.value, sweep.knee.rate),
        xytext=(0, -18),
        textcoords="offset points",
        ha="center",
        color=_BEST,
    )
    panel.set_xticks(values)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("workers" if sweep.knob == "workers" else "batches ahead")
    panel.set_ylabel("samples/s")
