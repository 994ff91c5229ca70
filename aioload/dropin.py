"""Drop-in: a torch data set in a loader, as it is, before anything is packed."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from .errors import ConfigError
from .loader import Loader
from .machine import available_memory
from .mapstyle import MapStyle
from .options import count
from .travel import check_travels
from .words import size

if TYPE_CHECKING:
    from ._device.convert import PerChannel
    from .options import Collate, Transform
    from .policy import OnError

__all__ = ["from_dataset"]

P = ParamSpec("P")

# What `DataLoader` calls otherwise, or has and nobody needs here.
_THEIRS = {
    "sampler": "ranks and shuffle= are the loader's own; for a choice of samples give a Subset",
    "batch_sampler": "ranks and shuffle= are the loader's own; for a choice of samples give a Subset",
    "collate_fn": "it is collate=",
    "pin_memory": 'leave it out; device="cuda" has batches arrive there',
    "pin_memory_device": 'leave it out; device="cuda" has batches arrive there',
    "timeout": "it is worker_timeout=, with None for no limit",
    "worker_init_fn": "open what each process needs on first use, in __getitem__",
    "multiprocessing_context": "leave it out; workers are no forks of your process",
    "generator": "leave it out; seed= decides",
    "prefetch_factor": "it is prefetch=, in batches of all workers together",
    "persistent_workers": "leave it out; workers always stay",
    "in_order": "leave it out; batches always come in order",
}


def _swapped(make: Callable[P, Loader]) -> Callable[P, Loader]:
    """Have options of a `DataLoader` answered with what takes their place."""

    @functools.wraps(make)
    def checked(*args: P.args, **options: P.kwargs) -> Loader:
        for name in options:
            if name in _THEIRS:
                raise ConfigError(f"{name}= is an option of DataLoader: {_THEIRS[name]}")
        return make(*args, **options)

    return checked


@_swapped
def from_dataset(
    dataset: Any,
    *,
    batch_size: int,
    transform: Transform | None = None,
    collate: Collate | None = None,
    shuffle: bool | Literal["full"] = False,
    seed: int = 0,
    drop_last: bool = False,
    pad: bool = True,
    num_workers: int | Literal["auto"] = "auto",
    prefetch: int | Literal["auto"] = "auto",
    memory_limit: int | str = "auto",
    rank: int | None = None,
    world_size: int | None = None,
    output: Literal["torch", "numpy"] = "torch",
    device: Any = None,
    channels_last: bool = False,
    dtype: Any | Mapping[str, Any] | None = None,
    mean: PerChannel = None,
    std: PerChannel = None,
    on_error: OnError = "raise",
    worker_timeout: float | None = None,
    max_jobs_per_worker: int | None = None,
    seed_globals: bool = True,
    trace: str | os.PathLike[str] | None = None,
    batched: bool = False,
    version: int | str | None = None,
) -> Loader:
    """Return a loader over a map-style data set, such as one takes to torch's `DataLoader`.

    `dataset[number]` runs in the workers, which get the data set once, when they start: what is changed in it
    later they do not see. What needs a process of its own (a handle of an HDF5 file, a connection) is opened
    there on first use; there is no `worker_init_fn`, and `torch.utils.data.get_worker_info()` is None.

    Args:
        dataset: has `__getitem__` and `__len__`. Samples are what `DataLoader` takes: tensors, arrays,
            numbers, texts, bytes, and tuples, lists and dicts of them.
        batch_size: samples in a batch, on each rank.
        transform: `transform(sample)` or `transform(sample, rng)`: runs on each sample, as it came.
        collate: makes a batch of a list of samples; what `DataLoader` takes as `collate_fn` will do. By
            default samples are stacked by the rules of `default_collate`.
        shuffle: True, or "full", draws each sample by itself; anew in each epoch. With False they come in the
            order of their numbers.
        seed: as in `Loader`, like all options that are not told of here.
        drop_last: likewise.
        pad: likewise.
        num_workers: likewise.
        prefetch: likewise.
        memory_limit: likewise.
        rank: likewise. Ranks share the samples; there is no `DistributedSampler`.
        world_size: likewise.
        output: likewise.
        device: likewise. It takes the place of `pin_memory` and of moving batches.
        channels_last: likewise.
        dtype: likewise.
        mean: likewise.
        std: likewise.
        on_error: likewise. What `__getitem__` raises is a `SampleError` whose `.record` is the number.
        worker_timeout: likewise; also for one call of `__getitems__`.
        max_jobs_per_worker: likewise.
        seed_globals: `random`, `numpy.random` and torch are seeded before each sample, so what it draws
            depends on seed, epoch and number alone, with any number of workers.
        trace: likewise.
        batched: ask `dataset.__getitems__(numbers)` for the samples of a batch, or of a part of it, at once.
            What is drawn there at random then depends on how batches were cut.
        version: of the content, a number or a text. A state is refused where another was given; beside it,
            the number of samples, the names of classes and the picks of a `Subset` are compared.

    Returns:
        A loader like any other: order, resuming, ranks and errors are the same. Its `dataset.dataset` is the
        data set.

    Raises:
        ConfigError: it is iterable only, or cannot be sent to workers; or an option cannot work.
    """
    if shuffle not in (False, True, "full", None):
        raise ConfigError(
            f'shuffle must be False, True or "full", got {shuffle!r}: samples that are made one by one have '
            "no blocks of neighbours"
        )
    size = count("batch_size", batch_size, least=1)
    wrapped = MapStyle(dataset, batched=batched, version=version)
    weight = 0 if num_workers == 0 else check_travels(dataset, type(dataset).__qualname__)
    loader = Loader(
        wrapped,
        batch_size=size,
        transform=transform,
        collate=collate,
        shuffle="full" if shuffle else False,
        seed=seed,
        drop_last=drop_last,
        pad=pad,
        num_workers=num_workers,
        prefetch=prefetch,
        memory_limit=memory_limit,
        rank=rank,
        world_size=world_size,
        output=output,
        device=device,
        channels_last=channels_last,
        dtype=dtype,
        mean=mean,
        std=std,
        on_error=on_error,
        worker_timeout=worker_timeout,
        max_jobs_per_worker=max_jobs_per_worker,
        seed_globals=seed_globals,
        trace=trace,
    )
    _warn_if_heavy(wrapped.source, weight, loader.num_workers)
    return loader


def _warn_if_heavy(name: str, weight: int, workers: int) -> None:
    """Tell of data that a fork would share, and that here each worker copies."""
    if weight * (workers + 1) > available_memory() // 2:  # it is there once more as it travels
        warnings.warn(
            f"{name} holds {size(weight)}, which each of {workers} workers copies; keep what is "
            'large in files that are mapped, as np.load(..., mmap_mode="r") does, or use fewer workers',
            stacklevel=4,  # whoever calls from_dataset
        )
