"""DevicePrefetcher: batches of any iterable, brought to a device while the model works on those before."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from ._device.choose import choose
from ._device.convert import Convert, PerChannel
from ._device.copier import DEPTH, MAX_BYTES, Copier
from ._device.sources import FromIterable
from .errors import ClosedError, ConfigError
from .iterate import Steps, in_thread
from .options import count
from .stats import Counters, LoaderStats
from .sync import SyncLoader
from .tracing import traced

if TYPE_CHECKING:
    from ._device.landing import Landing

__all__ = ["DevicePrefetcher"]


class DevicePrefetcher:
    """Copies the batches of an iterable to a device, on a thread and a stream of its own.

    Iterate over it with `for` or `async for`; each iteration goes through the iterable once, in the copy
    thread, a little ahead. Tensors in dicts, lists, tuples and dataclasses are copied, in few copies; what
    has a method `to` is asked for `to(device, non_blocking=True)`; all else is passed on. A batch is ready
    for the stream that is current when it is taken, and yours to keep; its tensors share one block, so of a
    small one that you keep for long, keep a clone. A `Loader` takes the device itself.

    Args:
        iterable: gives batches, such as a torch `DataLoader`. Pinned memory helps: what is not pinned is
            copied once more.
        device: as `torch.device` takes it, such as "cuda" (the one that is current when this is made) or
            "cuda:1". With None or "cpu" batches stay where they are, and there is no thread: each step asks
            the iterable itself.
        depth: batches that may wait on the device.
        max_bytes: that these may take, unless it is a single one.
        channels_last: give tensors of four dimensions as (N, C, H, W) in torch's channels_last memory format;
            those of decoded pictures, (N, H, W, C), are that already.
        dtype: floating-point dtype that pictures (uint8, four dimensions) get on the device; or a dict of
            dtypes by field, for these fields alone.
        mean: taken from them before, in their own units (0 to 255); a number, or one for each channel.
        std: what they are then divided by.

    Raises:
        ConfigError: an option cannot work, or there is no such device.
    """

    def __init__(
        self,
        iterable: Iterable[Any],
        device: Any,
        *,
        depth: int = DEPTH,
        max_bytes: int = MAX_BYTES,
        channels_last: bool = False,
        dtype: Any | Mapping[str, Any] | None = None,
        mean: PerChannel = None,
        std: PerChannel = None,
    ) -> None:
        _check(iterable)
        depth = count("depth", depth, least=1)
        max_bytes = count("max_bytes", max_bytes, least=1)
        self._convert = Convert(channels_last=channels_last, dtype=dtype, mean=mean, std=std)
        self._iterable = iterable
        self._counters = Counters()
        self._closed = False
        self._copier: Copier | None = None
        found = choose(device)
        self.device: str = "cpu" if found is None else found.name
        if found is not None:
            traced(self._counters, f"prefetcher to {self.device}")
            self._copier = Copier(found, self._counters, self._convert, depth=depth, max_bytes=max_bytes)
            weakref.finalize(self, self._copier.begin_close).atexit = False  # the exit hook is earlier

    # iterating

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __aiter__(self) -> _Copied | _Direct:
        return self._begin()

    def __len__(self) -> int:
        """Return the length of the iterable, if it has one."""
        return len(self._iterable)  # type: ignore[arg-type]  # its TypeError is the user's to see

    # copies

    def pause(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is done to the device, as for the capture of a CUDA graph.

        All copies are complete when it is entered. Batches that are ready by then can be taken inside, though
        not into a graph.
        """
        return nullcontext() if self._copier is None else self._copier.pause()

    def stats(self) -> LoaderStats:
        """Return what was counted so far: batches, waits, and all that begins with `device_`."""
        return self._counters.snapshot()

    # closing

    def close(self) -> None:
        """End the thread, and give back what it has, within 5 s; twice is free."""
        self._closed = True
        if self._copier is not None:
            self._copier.close()

    async def aclose(self) -> None:
        """End the thread, and give back what it has, within 5 s; twice is free."""
        with anyio.CancelScope(shield=True):
            await in_thread(self.close)

    def __enter__(self) -> DevicePrefetcher:
        self._check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    async def __aenter__(self) -> DevicePrefetcher:
        self._check_open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<DevicePrefetcher to {self.device}{' closed' if self._closed else ''}>"

    # inside

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the prefetcher was closed; make a new one to go on")

    def _begin(self) -> _Copied | _Direct:
        self._check_open()
        if self._copier is None:
            return _Direct(self, iter(self._iterable), self._convert, self._counters)
        self._copier.leave()  # what is iterated anew may be the very object that the thread is in
        landing = self._copier.begin(FromIterable(self._iterable))
        return _Copied(self, landing, self._copier, self._counters)


class _Copied(Steps):
    """The batches of one iteration on the device."""

    def __init__(self, owner: DevicePrefetcher, landing: Landing, copier: Copier, counters: Counters) -> None:
        super().__init__(landing, copier, counters)
        self._owner = owner  # which would end the thread if nobody had it
        self._landing = landing
        self._copier = copier
        self._over = False

    def _take(self, arrived: float) -> Any:
        """Return the next batch if it is ready, or raise what came up in its place, once."""
        if self._over:
            raise anyio.EndOfStream
        self._copier.check_process()
        try:
            batch = self._landing.take_nowait()
        except anyio.WouldBlock:
            raise
        except (ClosedError, ConfigError):
            self._counters.pause()  # it cannot be now; an iteration that has ended says so by its end
            raise
        except BaseException:
            self._over = True
            self._counters.pause()
            raise
        self._counters.leave(arrived, 0, 0)
        if (trace := self._counters.trace) is not None:
            trace.taken(arrived, None, (id(self), self._landing.due - 1), 0)
        return batch


class _Direct:
    """The batches of one iteration where they are."""

    def __init__(
        self, owner: DevicePrefetcher, batches: Iterator[Any], convert: Convert, counters: Counters
    ) -> None:
        self._owner = owner
        self._batches = batches
        self._convert = convert
        self._counters = counters

    def __iter__(self) -> _Direct:
        return self

    def __aiter__(self) -> _Direct:
        return self

    def __next__(self) -> Any:
        self._owner._check_open()
        arrived = self._counters.arrive()
        try:
            batch = self._convert.on_host(next(self._batches))
        except Exception:
            self._counters.pause()
            raise
        self._counters.leave(arrived, 0, 0)
        return batch

    async def __anext__(self) -> Any:
        await anyio.lowlevel.checkpoint()
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None


def _check(iterable: Any) -> None:
    """Refuse what is no iterable of batches, or needs something else."""
    if isinstance(iterable, SyncLoader):
        raise ConfigError("a Loader brings its batches to a device by itself: Loader(..., device=...)")
    if not hasattr(iterable, "__iter__"):
        kind = "an asynchronous one" if hasattr(iterable, "__aiter__") else f"a {type(iterable).__name__}"
        raise ConfigError(
            f"a DevicePrefetcher goes through a plain iterable in a thread of its own, got {kind}; "
            "a Loader takes device= itself"
        )
