"""Setup: how a set is to be loaded, for everything that is measured of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..collate import as_list, by_field
from ..errors import SampleError
from ..loader import Loader

if TYPE_CHECKING:
    from ..collection import Collection

__all__ = ["TO_STACK", "Setup", "fitted"]

TO_STACK = "give --size and --crop, or --with, as your training has them"
"""What to do where values differ in shape."""

_RAGGED = ("image", "audio", "ndarray")  # kinds whose values may differ in shape


@dataclass(frozen=True, slots=True)
class Setup:
    """Options of a loader; those that are not here are its defaults."""

    batch_size: int = 64
    """Samples in a batch."""
    num_workers: int | Literal["auto"] = "auto"
    """Processes that decode."""
    prefetch: int | Literal["auto"] = "auto"
    """Batches ready ahead."""
    shuffle: bool | Literal["full"] = True
    """As the loader takes it."""
    decode: Mapping[str, Any] = field(default_factory=dict)
    """Decoders by field, in place of the default ones."""
    transform: Callable[..., Any] | None = None
    """The user's."""
    collate: Callable[[list[Any]], Any] | None = None
    """By default samples are stacked."""

    def loader(self, dataset: Collection, **options: Any) -> Loader:
        """Return a loader over a set.

        Args:
            dataset: whose records are loaded.
            options: of the loader, beside those here.
        """
        chosen: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_workers": self.num_workers,
            "prefetch": self.prefetch,
            "shuffle": self.shuffle,
            "decode": self.decode,
            "transform": self.transform,
            "collate": self.collate,
        }
        return Loader(dataset, **(chosen | options))


def fitted(setup: Setup, dataset: Collection) -> tuple[Setup, tuple[str, ...]]:
    """Return a setup under which samples of a set become batches, and the fields that are lists for it.

    Pictures of differing sizes cannot be stacked. A training would crop them; where nothing was said of
    that, the fields that are not numbers stay lists, which costs the least beside decoding.

    Args:
        setup: as it was asked for.
        dataset: a few records.
    """
    ragged = tuple(name for name, kind in dataset.fields.items() if kind in _RAGGED)
    if not ragged or setup.collate is not None or setup.transform is not None:
        return setup, ()
    with setup.loader(dataset, num_workers=0, shuffle=False).sync() as batches:
        try:
            next(iter(batches), None)
        except SampleError as error:
            if error.key is not None:  # a sample of its own is bad, not the batch
                raise
        else:
            return setup, ()
    return replace(setup, collate=by_field(dict.fromkeys(ragged, as_list))), ragged
