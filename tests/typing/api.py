"""The public face as a user's type checker sees it: never run, only checked, by mypy and by pyright."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch

import aioload
from aioload.diagnosis import Diagnosis


def pack(folder: Path) -> None:
    with aioload.Writer(
        folder,
        fields={"image": "image", "label": "int"},
        shard_bytes=1 << 20,
        index_fields=["label"],
        metadata={"classes": ["cat", "dog"]},
    ) as writer:
        assert_type(writer, aioload.Writer)
        writer.write({"image": b"...", "label": 1}, key="cat/0001")
        assert_type(writer.records, int)


def look(folder: Path) -> str:
    dataset = aioload.Dataset(folder, fields={"jpg": "image"}, defaults={"cls": -1})
    sample = dataset[len(dataset) - 1]
    assert_type(sample, dict[str, Any])
    kinds: dict[str, str] = dict(dataset.fields)
    return kinds["label"]


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"noise": rng.random()}


async def train(folder: Path) -> aioload.LoaderStats:
    loader = aioload.Loader(
        folder,
        batch_size=32,
        decode={"image": aioload.decode.Image(mode="L"), "label": "raw"},
        transform=augment,
        collate=aioload.collate.as_list,
        seed=1,
        drop_last=True,
        num_workers=2,
        prefetch=4,
        memory_limit="1GiB",
        reads="file",
        output="numpy",
        seed_globals=False,
        trace=folder / "run.json.gz",
        executor=ThreadPoolExecutor(2),
        remote_reads=False,
    )
    async with loader as entered:
        assert_type(entered, aioload.Loader)
        with aioload.trace("run.json", max_events=1000) as nothing:
            assert_type(nothing, None)
        async for batch in loader:
            keep(batch["image"])

    await loader.aclose()
    loader.close()
    assert_type(len(loader), int)
    assert_type(loader.report(), str)
    return loader.stats()


def keep(images: object) -> None: ...


def train_plainly(dataset: aioload.Dataset) -> int:
    samples = 0
    with aioload.Loader(dataset, batch_size=32).sync() as batches:
        assert_type(batches, aioload.SyncLoader)
        assert_type(len(batches), int)
        for batch in batches:
            samples += len(batch)
    return samples


async def train_and_see(loader: aioload.Loader) -> int:
    def tell(stats: aioload.LoaderStats, diagnosis: Diagnosis) -> None:
        keep((stats.batches, diagnosis.stage))

    samples = 0
    with loader.sync(progress=True) as batches:
        assert_type(batches, aioload.SyncLoader)
        for batch in batches:
            samples += len(batch)
    async with aioload.progress(aioload.metrics(loader, tell, every=30)) as shown:
        assert_type(len(shown), int)
        async for batch in shown:
            samples += len(batch)
    for batch in aioload.progress(aioload.metrics(loader.sync()), all_ranks=True):
        samples += len(batch)
    return samples


def train_on_a_device(dataset: aioload.Dataset) -> float:
    loader = aioload.Loader(
        dataset,
        batch_size=32,
        device="cuda",
        channels_last=True,
        dtype={"image": torch.float16},
        mean=(123.7, 116.3, 103.5),
        std=58,
    )
    with loader.pause(), loader.sync() as batches:
        for batch in batches:
            keep(batch)
        with batches.pause():
            pass
    return loader.stats().device_overlap


async def prefetch(batches: list[torch.Tensor]) -> int:
    async with aioload.DevicePrefetcher(batches, torch.device("cuda:1"), depth=3, max_bytes=1 << 20) as found:
        assert_type(found, aioload.DevicePrefetcher)
        async for batch in found:
            keep(batch)
        with found.pause():
            keep(list(found))
    found.close()
    return found.stats().device_batches + len(found)


def drop_in(dataset: torch.utils.data.Dataset[torch.Tensor]) -> aioload.Loader:
    loader = aioload.from_dataset(
        dataset,
        batch_size=32,
        shuffle=True,
        collate=aioload.collate.as_list,
        num_workers=2,
        on_error="skip",
        version="2026-11",
        batched=False,
    )
    assert_type(loader, aioload.Loader)
    keep(loader.sync().state_dict())
    return loader


def resume(dataset: aioload.Dataset, state: dict[str, Any]) -> dict[str, Any]:
    loader = aioload.Loader(
        dataset, batch_size=32, shuffle="full", lanes=12, block_bytes=4096, pad=False, rank=0, world_size=2
    )
    loader.load_state_dict(state, adopt=True)
    loader.set_epoch(loader.epoch)
    batches = loader.sync()
    batches.load_state_dict(batches.state_dict())
    assert_type(
        (loader.remaining, loader.padded, batches.remaining, batches.padded), tuple[int, int, int, int]
    )
    return loader.state_dict()


def catch(error: aioload.AioloadError) -> tuple[str | None, int | None, str | None, int | None]:
    return error.shard, error.record, error.key, error.offset
