"""Convert: what becomes of pictures behind the bus: channels last, another dtype, mean and spread taken out.

Bytes travel as they were decoded, uint8, a quarter of what float32 would be. `plan` is pure: it says which
tensors become what. The work is a few kernels on the copy stream, or the same calls on the host.

A tensor of four dimensions is (N, H, W, C), as pictures are decoded, if its last dimension is 1, 3 or 4, and
else (N, C, H, W). Where both could be meant nothing is guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError, SampleError
from ..tree import Structure, flatten, paths, unflatten
from .pack import ALIGNMENT, Parcel, Place, View, dense, is_plain, stays_whole, view_of

__all__ = ["Convert", "Dtype", "PerChannel", "Work"]

Dtype = Any
"""A torch dtype for all pictures, or dtypes by field."""
PerChannel = float | Sequence[float] | None
"""A number, or one for each channel."""

_CHANNELS = (1, 3, 4)  # that a picture may have


@dataclass(frozen=True, slots=True)
class Work:
    """One tensor that is made of another."""

    leaf: int
    source: View
    target: View
    cast: bool
    """Whether it gets another dtype, and mean and std are taken out."""
    axis: int
    """Of the channels."""
    needed: bool
    """Whether the target is not simply the source's memory."""


class Convert:
    """What users ask for, checked.

    Args:
        channels_last: give tensors of four dimensions as (N, C, H, W) in torch's channels_last memory format.
        dtype: of uint8 tensors of four dimensions; or dtypes by field, for these fields alone.
        mean: taken from the values, in their own units (0 to 255).
        std: what they are then divided by.

    Raises:
        ConfigError: an option cannot work.
    """

    def __init__(
        self,
        *,
        channels_last: bool = False,
        dtype: Dtype | Mapping[str, Dtype] | None = None,
        mean: PerChannel = None,
        std: PerChannel = None,
    ) -> None:
        self.channels_last = bool(channels_last)
        self._dtypes = dict(dtype) if isinstance(dtype, Mapping) else dtype
        for one in dtype.values() if isinstance(dtype, Mapping) else (dtype,):
            if one is not None and getattr(one, "is_floating_point", None) is not True:
                raise ConfigError(f"dtype must be a floating-point dtype of torch, got {one!r}")
        self._mean, self._std = _numbers("mean", mean), _numbers("std", std)
        if dtype is None and (mean is not None or std is not None):
            raise ConfigError("mean and std need dtype=, the floating-point dtype of what comes out")
        if self._std is not None and not all(self._std):
            raise ConfigError(f"std must not be 0, got {std!r}")
        self._constants: dict[tuple[str, int, int, Any], Any] = {}

    @property
    def active(self) -> bool:
        """Whether anything is asked for."""
        return self.channels_last or self._dtypes is not None

    def plan(self, views: Mapping[int, View], structure: Structure) -> list[Work]:
        """Say what becomes of tensors.

        Args:
            views: by the number of the leaf.
            structure: of the batch, whose paths name fields.

        Raises:
            SampleError: it cannot be told which dimension holds the channels.
            ConfigError: there are not as many channels as numbers in `mean` or `std`.
        """
        names = paths(structure)
        return [self._work(leaf, view, names[leaf]) for leaf, view in views.items()]

    def on_host(self, batch: Any) -> Any:
        """Convert a batch where it is."""
        if not self.active:
            return batch
        torch: Any = sys.modules.get("torch")
        if torch is None:
            return batch  # no tensor can be in it
        leaves, structure = flatten(batch, is_leaf=stays_whole)
        plain = [
            number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and is_plain(leaf)
        ]
        views = {number: view_of(leaves[number]) for number in plain}
        works = self.plan(views, structure)
        changed = {work.leaf: dense(leaves[work.leaf]) for work in works if work.needed}
        if any(leaves[leaf] is not tensor for leaf, tensor in changed.items()):  # as what travels is
            leaves = [changed.get(number, leaf) for number, leaf in enumerate(leaves)]
            works = self.plan({number: view_of(leaves[number]) for number in plain}, structure)
        for work in works:
            source = leaves[work.leaf].as_strided(work.source.shape, work.source.strides)
            if work.needed:
                shape, strides, dtype = work.target.shape, work.target.strides, work.target.dtype
                target = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
                self.fill([work], [target], [source])
                source = target
            leaves[work.leaf] = source
        return unflatten(structure, leaves)

    def fill(self, works: Sequence[Work], outs: Sequence[Any], ins: Sequence[Any]) -> None:
        """Do the work; on a device, under the stream that should do it."""
        for work, target, source in zip(works, outs, ins, strict=True):
            if not work.cast or (self._mean is None and self._std is None):
                target.copy_(source)
                continue
            torch: Any = sys.modules["torch"]
            # half precision is too little for the way there
            exact = source.to(torch.promote_types(torch.float32, target.dtype))
            if self._mean is not None:
                exact = exact - self._constant("mean", self._mean, work, exact)
            if self._std is not None:
                exact = exact / self._constant("std", self._std, work, exact)
            target.copy_(exact)

    def _constant(self, name: str, numbers: tuple[float, ...], work: Work, like: Any) -> Any:
        """Return numbers as a tensor that goes with a picture; copied to a device once."""
        if len(numbers) == 1:
            return numbers[0]
        dims = len(work.target.shape)
        key = (name, work.axis, dims, like.dtype)
        if key not in self._constants:
            shape = [len(numbers) if axis == work.axis else 1 for axis in range(dims)]
            constant = like.new_empty(len(numbers))
            for place, number in enumerate(numbers):
                # on the device: a copy from here would wait for all of its stream
                constant[place].fill_(number)
            self._constants[key] = constant.reshape(shape)
        return self._constants[key]

    def _work(self, leaf: int, view: View, name: str) -> Work:
        dtype = self._dtype(view, name)
        cast, axis, source = dtype is not None, -1, view
        if self.channels_last and len(view.shape) == 4:
            axis = 1
            if _channels(view, name) == 3:
                source = _permuted(view, (0, 3, 1, 2))
        elif cast and self._per_channel:
            axis = _channels(view, name) if len(view.shape) == 4 else len(view.shape) - 1
        if cast:
            self._check_channels(source, axis, name)
        target = replace(source, dtype=dtype) if cast else source
        if self.channels_last and len(view.shape) == 4:
            target = _with_channels_last(target)
        centred = cast and (self._mean is not None or self._std is not None)
        return Work(leaf, source, target, cast, axis, needed=centred or source != target)

    def _dtype(self, view: View, name: str) -> Dtype | None:
        """Return the dtype that is asked for, or None."""
        if isinstance(self._dtypes, dict):
            return self._dtypes.get(name)
        is_picture = len(view.shape) == 4 and str(view.dtype) == "torch.uint8"
        return self._dtypes if is_picture else None

    @property
    def _per_channel(self) -> bool:
        return any(numbers is not None and len(numbers) > 1 for numbers in (self._mean, self._std))

    def _check_channels(self, view: View, axis: int, name: str) -> None:
        for word, numbers in (("mean", self._mean), ("std", self._std)):
            if numbers is not None and len(numbers) > 1 and view.shape[axis] != len(numbers):
                raise ConfigError(
                    f"{word} has {len(numbers)} numbers, but {name or 'the batch'} of shape {view.shape} has "
                    f"{view.shape[axis]} channels; name the fields that are meant: dtype={{field: dtype}}"
                )


def laid_out(works: Sequence[Work]) -> tuple[list[Place], int]:
    """Return places for what comes out, one behind the other, and the bytes of all."""
    places, start = [], 0
    for work in works:
        places.append(Place(work.leaf, work.target, start))
        start += -(-work.target.size // ALIGNMENT) * ALIGNMENT
    return places, start


def planned(parcel: Parcel, convert: Convert) -> list[Work]:
    """Say what becomes of the tensors of a parcel, in the order of its places."""
    return convert.plan({place.leaf: place.view for place in parcel.places}, parcel.structure)


def _channels(view: View, name: str) -> int:
    """Return the dimension that holds the channels of four."""
    last, second = view.shape[3] in _CHANNELS, view.shape[1] in _CHANNELS
    if last and second:
        raise SampleError(
            f"{name or 'the batch'} of shape {view.shape} may be (N, H, W, C) or (N, C, H, W); "
            "convert it in the training step"
        )
    return 3 if last else 1


def _permuted(view: View, order: tuple[int, ...]) -> View:
    shape = tuple(view.shape[axis] for axis in order)
    return replace(view, shape=shape, strides=tuple(view.strides[axis] for axis in order))


def _with_channels_last(view: View) -> View:
    """Return a view of (N, C, H, W) whose channels lie side by side."""
    _, channels, height, width = view.shape
    return replace(view, strides=(channels * height * width, 1, width * channels, channels))


def _numbers(name: str, value: PerChannel) -> tuple[float, ...] | None:
    """Return one number, or one for each channel, as a tuple."""
    if value is None:
        return None
    try:
        found = tuple(map(float, value)) if hasattr(value, "__iter__") else (float(value),)
    except (TypeError, ValueError):
        found = ()
    if not found or any(number != number for number in found):
        raise ConfigError(f"{name} must be a number, or one for each channel, got {value!r}")
    return found
