"""Other loaders over the same records, where they are installed; each as its own documentation shows it.

- webdataset: tar shards, shuffled by shard and in a buffer of 1,000, decoded and batched in torch's workers.
- mosaicml-streaming: MDS shards in a local folder, read in place, shuffled by its default.
- litdata: its own chunks in a local folder, shuffled.
- spdl: threads of its pipeline over the plain files, a batch a task; spdl-processes: in a process pool. (Its
  threads help where the work leaves Python's lock alone.)
- tf.data: photos alone, by its fused decode-and-crop and a resize without antialias, as its users do.

What a format needs is written beside the benchmark's data once. A sample is finished by the same function
everywhere, but for tf.data's.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from _cases import Contender, Loops, Unavailable
from _data import Places
from torch.utils.data import DataLoader, Dataset, default_collate

__all__ = ["Job", "peers"]

SHARDS = 16  # so that workers have an equal share of them


@dataclass(frozen=True, slots=True)
class Job:
    """One workload, as these loaders see it. All is picklable."""

    dataset: Callable[[Places], Dataset[Any]]
    """Makes the map-style dataset that torch reads."""
    raw: Callable[[Places], Iterator[tuple[bytes, int]]]
    """Gives each record's stored bytes and label, for other formats."""
    finish: Callable[[bytes, int], Any]
    """Makes a sample of those."""
    batch: int
    """Samples in a batch."""


def peers(job: Job, *, pictures: bool = False) -> dict[str, Callable[[Places, int], Contender]]:
    """Return makers of contenders by name."""
    makers = {"webdataset": _webdataset, "mosaicml-streaming": _streaming, "litdata": _litdata, "spdl": _spdl}
    cases: dict[str, Callable[[Places, int], Contender]]
    cases = {name: partial(make, job) for name, make in makers.items()}
    cases["spdl-processes"] = partial(_spdl, job, processes=True)
    if pictures:
        cases["tf.data"] = partial(_tf_data, job)
    return cases


def _installed(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = "" if (error.name or "").partition(".")[0] == module else f" ({error})"
        raise Unavailable(f"not installed: {package}{missing}") from error


def _torch_loader(dataset: Any, workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, **options)


# webdataset


def _webdataset(job: Job, places: Places, workers: int) -> Contender:
    wds = _installed("webdataset", "webdataset")

    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        maxcount = -(-places.records // SHARDS)
        with wds.ShardWriter(str(folder / "%05d.tar"), maxcount=maxcount, maxsize=1 << 40, verbose=0) as sink:
            for number, (content, label) in enumerate(job.raw(places)):
                sink.write({"__key__": f"{number:07}", "bin": content, "cls": label})

    shards = [str(file) for file in sorted(places.kept("webdataset", write).glob("*.tar"))]
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000)
    dataset = dataset.map(lambda sample: job.finish(sample["bin"], int(sample["cls"])))
    dataset = dataset.batched(job.batch, collation_fn=default_collate)
    return Loops(wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True))


# mosaicml-streaming


def _streaming(job: Job, places: Places, workers: int) -> Contender:
    streaming = _installed("streaming", "mosaicml-streaming")

    def write(folder: Path) -> None:
        with streaming.MDSWriter(out=str(folder), columns={"x": "bytes", "y": "int"}) as writer:
            for content, label in job.raw(places):
                writer.write({"x": content, "y": label})

    class Finished(streaming.StreamingDataset):
        def __getitem__(self, at: int) -> Any:
            sample = super().__getitem__(at)
            return job.finish(sample["x"], sample["y"])

    dataset = Finished(local=str(places.kept("mds", write)), shuffle=True, batch_size=job.batch)
    return Loops(_torch_loader(dataset, workers, batch_size=job.batch))


# litdata


def _litdata(job: Job, places: Places, workers: int) -> Contender:
    litdata = _installed("litdata", "litdata")

    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        writer = importlib.import_module("litdata.streaming.writer").BinaryWriter(
            str(folder), chunk_bytes=64 << 20
        )
        for number, (content, label) in enumerate(job.raw(places)):
            writer[number] = {"x": content, "y": label}
        writer.done()
        writer.merge()

    class Finished(litdata.StreamingDataset):
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return job.finish(sample["x"], sample["y"])

    dataset = Finished(str(places.kept("litdata", write)), shuffle=True, drop_last=False)
    return Loops(
        litdata.StreamingDataLoader(
            dataset, batch_size=job.batch, num_workers=workers, persistent_workers=workers > 0
        )
    )


# spdl


class _Batches:
    """The numbers of each batch, in a new random order each time."""

    def __init__(self, records: int, batch: int) -> None:
        self._records = records
        self._batch = batch

    def __iter__(self) -> Iterator[list[int]]:
        numbers = random.sample(range(self._records), self._records)
        for start in range(0, self._records, self._batch):
            yield numbers[start : start + self._batch]


class _Together:
    """Makes whole batches; in other processes it opens the data when it is first used."""

    def __init__(self, job: Job, places: Places) -> None:
        self._job = job
        self._places = places
        self._dataset: Any = None

    def __call__(self, numbers: list[int]) -> Any:
        if self._dataset is None:
            self._dataset = self._job.dataset(self._places)
        together = getattr(self._dataset, "__getitems__", None)
        samples = together(numbers) if together else [self._dataset[number] for number in numbers]
        return default_collate(samples)

    def __getstate__(self) -> Any:
        return self.__dict__ | {"_dataset": None}


_together: _Together | None = (
    None  # of a process of the pool: its state would travel with each task otherwise
)


def _begin(together: _Together) -> None:
    global _together
    _together = together


def _in_pool(numbers: list[int]) -> Any:
    assert _together is not None
    return _together(numbers)


def _spdl(job: Job, places: Places, workers: int, *, processes: bool = False) -> Contender:
    pipeline = _installed("spdl.pipeline", "spdl")
    source, together = _Batches(places.records, job.batch), _Together(job, places)
    pool = None
    if processes:
        pool = ProcessPoolExecutor(
            workers, mp_context=get_context("forkserver"), initializer=_begin, initargs=(together,)
        )

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            builder = pipeline.PipelineBuilder().add_source(source)
            if pool is None:
                builder.pipe(together, concurrency=workers)
            else:
                builder.pipe(_in_pool, concurrency=workers, executor=pool)
            built = builder.add_sink(3).build(num_threads=workers, max_failures=0)
            with built.auto_stop():
                yield from built.get_iterator()

    return Loops(Epochs(), pool.shutdown if pool else lambda: None)


# tf.data


def _tf_data(job: Job, places: Places, workers: int) -> Contender:
    tf = _installed("tensorflow", "tensorflow")
    tf.config.set_visible_devices([], "GPU")
    photos: Any = job.dataset(places)
    listed = photos.files
    paths, labels = (list(column) for column in zip(*listed, strict=True))

    def finish(path: Any, label: Any) -> Any:
        content = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(content),
            tf.zeros((1, 0, 4)),
            area_range=(0.08, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], axis=0)
        picture = tf.image.decode_and_crop_jpeg(content, window, channels=3)
        picture = tf.image.random_flip_left_right(tf.image.resize(picture, (224, 224)))
        return tf.cast(picture, tf.uint8), label

    dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
    dataset = dataset.shuffle(len(paths)).map(finish, num_parallel_calls=workers).batch(job.batch)
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = workers
    dataset = dataset.with_options(options)

    class Epochs:
        def __iter__(self) -> Iterator[Any]:
            for images, labels in dataset.as_numpy_iterator():
                yield torch.from_numpy(images), torch.from_numpy(labels)

    return Loops(Epochs())
