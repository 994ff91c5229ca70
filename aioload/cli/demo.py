"""`aioload demo`: the main job on a set of its own making - files, a packed set, a model that learns."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .. import digits
from .._workers.processes import processes
from ..errors import AioloadError, ConfigError
from ..loader import Loader
from ..machine import usable_cpus
from ..packing import Source, find_source, pack
from ._console import count, parse_workers, progress_bar, size

if TYPE_CHECKING:
    import torch

__all__ = ["demo"]

GOAL = 0.95
# from here on the model reaches it: 2,000 digits in 5 epochs, or 6,000 in 2, give 95 to 96%, fewer much less
_ENOUGH_DIGITS, _ENOUGH_SEEN = 3000, 15_000
_BATCH_SIZE = 64
_HELD_OUT = 10  # one record in so many is not trained on
_PHOTO_SIDE = 64
_TOP_RATE = 1e-2  # of a one-cycle schedule: over 98% on held-out digits after 5 epochs, whatever the seed
_MAX_THREADS = 4  # the model is too small for more; half of the CPUs are left to the loader


def demo(
    *,
    data: Annotated[Path | None, typer.Option(metavar="FOLDER",
        help="Images of your own, a sub-folder a class; without, digits are drawn.")] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Passes over the training records.")] = 5,
    samples: Annotated[int, typer.Option(min=100, metavar="N", help="Digits to draw.")] = 6000,
    workers: Annotated[Any, typer.Option(parser=parse_workers, metavar="N|auto",
        help="Worker processes of the loader; 0: none.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep files and sets here.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the digits, the held-out records and the model.")] = 0,
) -> None:  # fmt: skip
    """Draw digits, pack them, train a small model on them, and tell where the time went."""
    started = time.monotonic()
    with _workplace(out) as folder:
        source = data or _draw(folder / "digits", samples, seed)
        sets = _pack(source, folder, seed, squared=data is None)
        loader_workers = "auto" if workers is None else workers
        accuracy = _train(sets, epochs=epochs, num_workers=loader_workers, seed=seed)

    print(f"done in {time.monotonic() - started:.0f} s")
    if data is None and accuracy <= GOAL:
        if samples < _ENOUGH_DIGITS or samples * epochs < _ENOUGH_SEEN:
            print(f"so few digits or epochs are not enough to learn more than {GOAL:.0%}; the defaults are")
            return
        raise AioloadError(
            f"the model should get more than {GOAL:.0%} of the held-out digits right, got {accuracy:.1%}"
        )


@dataclass(frozen=True, slots=True)
class _Sets:
    """Two packed sets of images of the same classes."""

    train: Path
    held_out: Path
    classes: int
    side: int
    """Pixels on each side, as the model takes them."""
    transform: Callable[[dict[str, Any]], dict[str, Any]] | None
    """What makes images that size; none where they have it."""


@contextmanager
def _workplace(out: Path | None) -> Iterator[Path]:
    """Give a folder to work in, which goes away unless the user named it."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out
        return

    with tempfile.TemporaryDirectory(prefix="aioload-demo-") as folder:
        yield Path(folder)


def _draw(folder: Path, samples: int, seed: int) -> Path:
    """Draw digits into a folder, a sub-folder a class."""
    if folder.exists():
        raise ConfigError(
            f"{folder} is there from an earlier run; remove it, or name another folder with --out"
        )

    started = time.monotonic()
    for digit in range(digits.CLASSES):
        (folder / str(digit)).mkdir(parents=True)

    starts = range(0, samples, 100)
    with processes(usable_cpus()) as executor, progress_bar("drawing digits", samples) as advance:
        stops = [min(start + 100, samples) for start in starts]
        for drawn in executor.map(
            digits.draw_files, [folder] * len(stops), starts, stops, [seed] * len(stops)
        ):
            advance(drawn, 0)

    print(f"drew    {count(samples, 'digit')} in {time.monotonic() - started:.1f} s")
    return folder


def _pack(folder: Path, out: Path, seed: int, *, squared: bool) -> _Sets:
    """Pack a folder of images into two sets, in a drawn order: not class after class."""
    source = find_source([folder], kind="folder", seed=seed)
    classes = len(source.metadata["classes"])
    if classes < 2 or source.cost < 2 * _HELD_OUT:
        raise ConfigError(
            f"{folder} has {count(classes, 'sub-folder')} and {count(source.cost, 'image')}: "
            "too few to learn from"
        )

    items = list(source.items)
    held_out = items[::_HELD_OUT]
    train = [item for place, item in enumerate(items) if place % _HELD_OUT]
    for name, part in (("train", train), ("held-out", held_out)):
        _pack_part(replace(source, items=part, cost=len(part)), out / name)

    side = digits.SIDE if squared else _PHOTO_SIDE
    return _Sets(out / "train", out / "held-out", classes, side, None if squared else _fitting(side))


def _pack_part(source: Source, destination: Path) -> None:
    with progress_bar("packing", source.cost) as advance:
        report = pack(source, destination, skip_bad=True, progress=advance)

    left_out = f", {count(len(report.unreadable), 'unreadable file')} left out" if report.unreadable else ""
    print(
        f"packed  {count(report.records, 'record')} into {destination.name}: {size(report.data_bytes)} in "
        f"{report.seconds:.1f} s{left_out}"
    )


def _fitting(side: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a transform that crops and scales to a square."""

    # nested, so that it travels by value: workers need not import the command line
    def fit(sample: dict[str, Any]) -> dict[str, Any]:
        image = PIL.Image.fromarray(sample["image"])
        return {**sample, "image": np.array(PIL.ImageOps.fit(image, (side, side)))}

    return fit


def _train(sets: _Sets, *, epochs: int, num_workers: int | str, seed: int) -> float:
    """Train a model, tell how it goes and where the time went; return its share of right answers."""
    import torch

    torch.set_num_threads(min(max(usable_cpus() // 2, 1), _MAX_THREADS))
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "batch_size": _BATCH_SIZE,
        "transform": sets.transform,
        "num_workers": num_workers,
    }
    loader = Loader(sets.train, **options)
    learner = _Learner(sets, steps=epochs * len(loader))

    with loader.sync() as batches:
        for epoch in range(epochs):
            _run_epoch(f"epoch {epoch + 1}/{epochs}", loader, batches, learner.learn)

    with Loader(sets.held_out, **options).sync() as batches:
        right, seen = learner.judge(batches)

    print(f"held out: {right / seen:.1%} of {count(seen, 'record')} right\n")
    print(loader.report())
    return right / seen


class _Learner:
    """A small convolutional network and what trains it."""

    def __init__(self, sets: _Sets, *, steps: int) -> None:
        from torch import optim

        self._model = _make_model(sets.classes, sets.side)
        self._optimizer = optim.AdamW(self._model.parameters(), weight_decay=1e-2)
        self._schedule = optim.lr_scheduler.OneCycleLR(self._optimizer, _TOP_RATE, total_steps=steps)

    def learn(self, batch: dict[str, torch.Tensor]) -> int:
        """Take one step; return how many the model got right before it."""
        from torch.nn.functional import cross_entropy

        self._model.train()
        scores = self._model(_normalised(batch["image"]))
        loss = cross_entropy(scores, batch["label"])
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._optimizer.step()
        self._schedule.step()
        return _right(scores, batch["label"])

    def judge(self, batches: Any) -> tuple[int, int]:
        """Return how many of the records the model gets right, and how many there are."""
        import torch

        right = seen = 0
        self._model.eval()
        with torch.inference_mode():
            for batch in batches:
                right += _right(self._model(_normalised(batch["image"])), batch["label"])
                seen += len(batch["label"])
        return right, seen


def _make_model(classes: int, side: int) -> torch.nn.Sequential:
    from torch import nn

    def block(channels: int, features: int, stride: int = 1) -> tuple[nn.Module, ...]:
        convolution = nn.Conv2d(channels, features, 3, stride=stride, padding=1, bias=False)
        return convolution, nn.BatchNorm2d(features), nn.ReLU(inplace=True)

    return nn.Sequential(
        *block(3, 16, stride=2),
        *block(16, 32, stride=2),
        *block(32, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (side // 8) ** 2, classes),
    )


def _normalised(images: torch.Tensor) -> torch.Tensor:
    """Return bytes as the model takes them: channels first, each around 0, all of one contrast."""
    values = images.float()
    values -= values.mean((1, 2), keepdim=True)
    values /= values.square().mean((1, 2, 3), keepdim=True).sqrt() + 1
    return values.permute(0, 3, 1, 2)


def _right(scores: torch.Tensor, labels: torch.Tensor) -> int:
    return int((scores.argmax(1) == labels).sum())


def _run_epoch(
    name: str, loader: Loader, batches: Any, learn: Callable[[dict[str, torch.Tensor]], int]
) -> None:
    """Go once through the batches, with a line that lives on a terminal and stays when the epoch is over."""
    right = seen = 0
    clock = _Clock(loader)
    state = TextColumn("{task.fields[state]}")
    console = Console(stderr=True)
    with Progress(
        TextColumn(name), BarColumn(), state, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(name, total=len(loader), state="")
        for batch in batches:
            right += learn(batch)
            seen += len(batch["label"])
            bar.update(task, advance=1, state=clock.describe(right, seen))

    print(f"{name}: {clock.describe(right, seen)}")


class _Clock:
    """Times an epoch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._started = time.monotonic()
        self._waited = loader.stats().wait_seconds

    def describe(self, right: int, seen: int) -> str:
        """Tell how fast it goes, how much of the time was waiting, and how well the model does."""
        seconds = time.monotonic() - self._started
        waited = self._loader.stats().wait_seconds - self._waited
        return (
            f"{seen / seconds:,.0f} samples/s, {waited / seconds:.0%} of the time waiting for data, "
            f"accuracy {right / seen:.1%}"
        )
