"""Real input: thousands of photo-like JPEGs and real photos come as Pillow decodes them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from batches import FACES, pack
from PIL import Image, ImageFilter
from sklearn import datasets

from aioload import Loader, collate

SHOTS = 2000
SIDE = 64


@dataclass(frozen=True, slots=True)
class Photos:
    """A packed set of photos, and what it must decode to."""

    path: Path
    """The set."""

    files: list[bytes]
    """The JPEG files that were packed, in order."""

    def pixels(self, record: int) -> np.ndarray:
        """Decode a record with Pillow."""
        return np.asarray(Image.open(io.BytesIO(self.files[record])).convert("RGB"))


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """2,000 JPEGs of one size, cut out of blurred noise and of real photos, at several qualities."""
    files = list(_shots())
    samples = [{"image": file, "label": record} for record, file in enumerate(files)]
    path = tmp_path_factory.mktemp("shots") / "set"
    return Photos(pack(path, {"image": "image", "label": "int"}, samples, shard_bytes=1 << 20), files)


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    """The photos that scikit-learn ships, file by file as they are."""
    folder = Path(datasets.__file__).parent / "images"
    files = [file.read_bytes() for file in sorted(folder.glob("*.jpg"))]
    records = [{"image": file, "label": record} for record, file in enumerate(files)]
    path = tmp_path_factory.mktemp("samples") / "set"
    return Photos(pack(path, {"image": "image", "label": "int"}, records), files)


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_thousands_of_photos(shots: Photos, num_workers: int, take: Callable[[Loader], list[Any]]) -> None:
    """Every record comes once, in order, its pixels equal to Pillow's."""
    found = take(Loader(shots.path, batch_size=64, num_workers=num_workers, memory_limit="256MiB"))

    assert torch.cat([batch["label"] for batch in found]).tolist() == list(range(SHOTS))
    images = torch.cat([batch["image"] for batch in found]).numpy()
    expected = np.stack([shots.pixels(record) for record in range(SHOTS)])
    assert np.array_equal(images, expected)


@pytest.mark.parametrize("take", FACES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_photos_of_scikit_learn(
    samples: Photos, num_workers: int, take: Callable[[Loader], list[Any]]
) -> None:
    """Real photos, of a camera's size, come as Pillow and as scikit-learn itself decode them."""
    expected = [samples.pixels(record) for record in range(len(samples.files))]

    found = take(Loader(samples.path, batch_size=2, num_workers=num_workers, collate=collate.as_list))

    images = [sample["image"].numpy() for batch in found for sample in batch]
    assert len(images) >= 2
    assert [np.array_equal(*pair) for pair in zip(images, expected, strict=True)] == [True] * len(images)
    assert np.array_equal(images[0], datasets.load_sample_image("china.jpg"))


def _shots() -> Iterator[bytes]:
    """Make photo-like JPEGs quickly: crops of a few large pictures, at qualities from 60 to 95."""
    random = np.random.default_rng(11)
    noise = random.integers(0, 256, (24, 32, 3), np.uint8)
    scenes = [
        Image.fromarray(noise)
        .resize((640, 480), Image.Resampling.BICUBIC)
        .filter(ImageFilter.GaussianBlur(2)),
        *(Image.fromarray(picture) for picture in datasets.load_sample_images().images),
    ]
    for shot in range(SHOTS):
        scene = scenes[shot % len(scenes)]
        left, top = random.integers(0, (scene.width - SIDE, scene.height - SIDE)).tolist()
        file = io.BytesIO()
        scene.crop((left, top, left + SIDE, top + SIDE)).save(file, "jpeg", quality=60 + shot % 36)
        yield file.getvalue()
