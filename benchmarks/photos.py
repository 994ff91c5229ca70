"""Photos: how many JPEGs a second become random crops of 224 x 224, flipped half of the time, as uint8?

    python benchmarks/photos.py
    python benchmarks/photos.py --scale 0.2 --rounds 3 --only torch,aioload-pillow

Batches of 64, in random order, two workers. Who makes them, and by which calls:

- torch: `DataLoader` over files in class folders, with what torchvision's usual transforms call: Pillow's
  open, convert, crop, resize (bilinear, antialiased), transpose; copied to an array, turned to CHW.
- aioload-pillow: the very same calls as a user's transform.
- aioload: the built-in decoder, antialiased like torch's; aioload-fast: without antialias, as tf.data does.
- bare-...: the limit. The same decode of the same files in two processes that do nothing else.

Others take part where they are installed: see `_peers.py`. Measured as `_cases.py` says.
"""

from __future__ import annotations

import inspect
import io
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _data
import numpy as np
import numpy.typing as npt
import torch
from _bare import Bare
from _cases import Contender, Loops, Unavailable, Workload, main
from _data import Places
from _peers import Job, peers
from _usual import SIZE, transform, usual

import aioload

__all__ = ["BATCH", "SIZE", "WORKLOAD", "Folder", "files", "torch_loader", "usual"]

BATCH = 64


def files(places: Places) -> list[tuple[str, int]]:
    """Return all files with the number of their folder, as torchvision's ImageFolder lists them."""
    folders = sorted(places.plain.iterdir())
    return [(str(file), label) for label, folder in enumerate(folders) for file in sorted(folder.iterdir())]


class Folder(torch.utils.data.Dataset[Any]):
    """A map-style dataset over class folders."""

    def __init__(self, places: Places) -> None:
        self.files = files(places)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.files[number]
        with Path(path).open("rb") as file:
            return torch.from_numpy(usual(file, random.random)), label


def torch_loader(places: Places, workers: int, **options: Any) -> Any:
    """Return torch's loader as most people set it."""
    return torch.utils.data.DataLoader(
        Folder(places),
        BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **options,
    )


def decoder(*, antialias: bool) -> Any:
    """Return the built-in decoder."""
    try:
        return aioload.decode.Image(size=SIZE, crop="random_resized", flip=True, antialias=antialias)
    except TypeError as error:
        raise Unavailable("not available: this version's decode.Image does not crop") from error


def _torch(places: Places, workers: int) -> Contender:
    return Loops(torch_loader(places, workers))


def _user(places: Places, workers: int) -> Contender:
    return _loops(places, workers, decode={"image": "raw"}, transform=transform)


def _built_in(places: Places, workers: int) -> Contender:
    return _loops(places, workers, decode={"image": decoder(antialias=True)})


def _fast(places: Places, workers: int) -> Contender:
    return _loops(places, workers, decode={"image": decoder(antialias=False)})


def _loops(places: Places, workers: int, **options: Any) -> Contender:
    loader = aioload.Loader(places.packed, batch_size=BATCH, shuffle=True, num_workers=workers, **options)
    return Loops(loader.sync(), loader.close)


def _bare_usual(places: Places, workers: int) -> Contender:
    def into(data: bytes, out: npt.NDArray[Any]) -> None:
        out[:] = usual(io.BytesIO(data), random.random)

    return _bare(places, workers, (3, SIZE, SIZE), into)


def _bare_built_in(places: Places, workers: int) -> Contender:
    return _bare(places, workers, (SIZE, SIZE, 3), _straight(decoder(antialias=True)))


def _bare_fast(places: Places, workers: int) -> Contender:
    return _bare(places, workers, (SIZE, SIZE, 3), _straight(decoder(antialias=False)))


def _straight(decode: Any) -> Callable[[bytes, npt.NDArray[Any]], None]:
    """Return the shortest way of a decoder into an array."""
    rng = np.random.default_rng(0)
    with_rng = {"rng": rng} if "rng" in inspect.signature(type(decode).__call__).parameters else {}
    write = getattr(decode, "into", None)

    def into(data: bytes, out: npt.NDArray[Any]) -> None:
        if write is None or not write(data, out, **with_rng):
            out[:] = decode(data, **with_rng)

    return into


def _bare(
    places: Places, workers: int, shape: tuple[int, ...], into: Callable[[bytes, npt.NDArray[Any]], None]
) -> Contender:
    listed = files(places)
    random.Random(1).shuffle(listed)

    def start() -> Callable[[int], int]:
        images = np.zeros((BATCH, *shape), np.uint8)  # reused: fresh memory would cost page faults

        def make(batch: int) -> int:
            part = listed[batch * BATCH : (batch + 1) * BATCH]
            for row, (path, _) in enumerate(part):
                with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - nothing but the work
                    into(file.read(), images[row])
            return len(part)

        return make

    return Bare(start, math.ceil(len(listed) / BATCH), workers)


def finish(data: bytes, label: int) -> tuple[torch.Tensor, int]:
    """Make torch's sample of a stored photo."""
    return torch.from_numpy(usual(io.BytesIO(data), random.random)), label


def raw(places: Places) -> Iterator[tuple[bytes, int]]:
    """Give each photo and its label, in an order drawn once."""
    listed = files(places)
    random.Random(1).shuffle(listed)
    return ((Path(path).read_bytes(), label) for path, label in listed)


def touch(batch: Any) -> int:
    """Sum a line of each picture: from 32,768 values on torch starts threads, and these spin for more."""
    if isinstance(batch, int):
        return batch
    images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
    assert int(images[:, 0, 0].sum()) > 0
    assert images.dtype == torch.uint8
    return len(labels)


WORKLOAD = Workload(
    "photos",
    _data.photos,
    touch,
    {
        "torch": _torch,
        "aioload": _built_in,
        "aioload-fast": _fast,
        "aioload-pillow": _user,
        "bare": _bare_built_in,
        "bare-fast": _bare_fast,
        "bare-pillow": _bare_usual,
        **peers(Job(Folder, raw, finish, BATCH), pictures=True),
    },
)


if __name__ == "__main__":
    main(WORKLOAD, __doc__)
