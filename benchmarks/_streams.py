"""What `network.py` measures, one function a case: loaders and bare readers over the server of `_server.py`.

A case finds its data in a folder, and the same files behind the server. It sets the weather itself, which
starts the server's counts anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _data
import numpy as np
import photos
from _data import Places
from _measure import MIB, tree_cpu, tree_memory, watching
from _reading import Range, cut, read_by_aiohttp, read_by_obstore, read_by_storage, run
from _server import Serving

import aioload
from aioload.storage import close
from aioload.storage.remote import Remote

__all__ = ["CASES", "Setting"]

LATENCY, BANDWIDTH = 0.05, 40e6
FAR = 0.2  # seconds to the first byte, where many reads should be in flight
RAW, RAW_BYTES, RAW_BATCH = 3000, (100_000, 600_000), 32
ARRAYS, ARRAY_BYTES, ARRAY_BATCH = 1200, 256 << 10, 8
ARRAYS_AHEAD = 24  # batches, so that it is the limit that ends what is under way
LIMIT = 64 << 20
CPU_ROUNDS = 10
CPUS = len(os.sched_getaffinity(0))

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a case gets."""

    data: Path
    """Where the data is made; the server serves it."""
    server: Serving
    """Over the same folder."""
    scale: float
    """Share of the records to take."""
    seconds: float
    """Epochs are measured until so long."""
    seed: int
    """Of a bad day."""

    def url(self, path: Path, scheme: str = "http") -> str:
        """Return the address of a folder; its first part is the bucket, if there are buckets."""
        place = path.relative_to(self.data)
        return f"s3://{place}" if scheme == "s3" else f"{self.server.url}/{place}"

    def good_day(self) -> None:
        """Answer as a network does that is far away and in order."""
        self.server.set(latency=LATENCY, bandwidth=BANDWIDTH)


def raw(folder: Path, scale: float = 1.0) -> Places:
    """Make records of random bytes, 100 to 600 KB, or find them."""
    records = max(int(RAW * scale), 64)

    def make(fresh: Path) -> None:
        rng = np.random.default_rng(1)
        with aioload.Writer(fresh / "packed", fields={"data": "bytes"}) as writer:
            for size in rng.integers(*RAW_BYTES, records).tolist():
                writer.write({"data": rng.bytes(size)})

    return Places(Places(folder, records).kept(f"raw-{records}-1", make), records)


def arrays(folder: Path, scale: float = 1.0) -> Places:
    """Make arrays of one size, whose batches are stacked in the arena, or find them."""
    records = max(int(ARRAYS * scale), 128)

    def make(fresh: Path) -> None:
        rng = np.random.default_rng(2)
        with aioload.Writer(fresh / "packed", fields={"x": "ndarray"}) as writer:
            for _ in range(records):
                writer.write({"x": rng.integers(256, size=ARRAY_BYTES, dtype=np.uint8)})

    return Places(Places(folder, records).kept(f"arrays-{records}-2", make), records)


# photos, and the disk cache


def photos_local(setting: Setting) -> Figures:
    """Decode photos of the local disk."""
    return _photos(setting, lambda places: aioload.Dataset(places.packed))


def photos_network(setting: Setting) -> Figures:
    """Decode photos that come over the network."""
    return _photos(setting, lambda places: aioload.Dataset(setting.url(places.packed)))


def photos_cached(setting: Setting) -> Figures:
    """Decode photos that came over the network in the first epoch, and then from the disk."""
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=setting.data) as folder:
        return _photos(setting, lambda places: aioload.Dataset(setting.url(places.packed), cache_dir=folder))


def spare_local(setting: Setting) -> Figures:
    """Decode photos of the local disk by one worker, so that a CPU is left for all else."""
    return _photos(setting, lambda places: aioload.Dataset(places.packed), workers=1)


def spare_network(setting: Setting) -> Figures:
    """The same over the network."""
    return _photos(setting, lambda places: aioload.Dataset(setting.url(places.packed)), workers=1)


def spare_cached(setting: Setting) -> Figures:
    """The same from the disk cache."""
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=setting.data) as folder:
        return _photos(
            setting,
            lambda places: aioload.Dataset(setting.url(places.packed), cache_dir=folder),
            workers=1,
        )


def _photos(setting: Setting, dataset: Callable[[Places], aioload.Dataset], *, workers: int = 2) -> Figures:
    places = _data.photos(setting.data, setting.scale)
    setting.good_day()
    began = time.perf_counter()
    loader = _photo_loader(dataset(places), workers)
    batches = iter(loader.sync())
    samples = photos.touch(next(batches))
    first = time.perf_counter() - began
    samples += sum(map(photos.touch, batches))
    assert samples == places.records
    return {"first_batch_seconds": first} | _steady(setting, loader, photos.touch)


def _photo_loader(dataset: aioload.Dataset, workers: int = 2) -> aioload.Loader:
    decode = {"image": photos.decoder(antialias=True)}
    return aioload.Loader(dataset, batch_size=photos.BATCH, shuffle=True, num_workers=workers, decode=decode)


# no transform


def raw_bare(setting: Setting) -> Figures:
    """Read the files in order by a bare reader, in the way that turns out fastest."""
    places = raw(setting.data, setting.scale)
    best: Figures = {}
    for part_bytes, at_once in ((1 << 20, 64), (4 << 20, 32), (4 << 20, 64)):
        figures = _bare(setting, places, cut(_sizes(places), part_bytes), at_once)
        if not best or figures["samples_per_second"] > best["samples_per_second"]:
            best = figures
    return best


def raw_bare_shuffled(setting: Setting) -> Figures:
    """Read the records one by one, in random order, by a bare reader."""
    places = raw(setting.data, setting.scale)
    dataset = aioload.Dataset(places.packed)
    index, order = dataset.index, np.random.default_rng(3).permutation(places.records)
    found = index.locate(order.astype(np.int64))
    columns = zip(found.shard.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)
    ranges = [Range(index.shards[shard], start, stop) for shard, start, stop in columns]
    return _bare(setting, places, ranges, 64)


def raw_in_order(setting: Setting) -> Figures:
    """Stream the records in order."""
    return _raw(setting, shuffle=False)


def raw_shuffled(setting: Setting) -> Figures:
    """Stream the records in random order."""
    return _raw(setting, shuffle=True)


def _raw(setting: Setting, *, shuffle: bool) -> Figures:
    places = raw(setting.data, setting.scale)
    setting.good_day()
    loader = aioload.Loader(setting.url(places.packed), batch_size=RAW_BATCH, shuffle=shuffle, num_workers=2)
    assert sum(map(_count, loader.sync())) == places.records
    return _steady(setting, loader, _count)


def _bare(setting: Setting, places: Places, ranges: list[Range], at_once: int) -> Figures:
    setting.good_day()
    cpu, began = time.process_time(), time.perf_counter()
    came = run(read_by_aiohttp(setting.url(places.packed), ranges, at_once))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return _rates(setting, places.records, came, seconds, cpu)


def _sizes(places: Places) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(places.packed.glob("*.aio"))}


def _count(batch: Any) -> int:
    values = next(iter(batch.values()))
    assert values[0][0] is not None
    return len(values)


# a bad day


def day_local(setting: Setting) -> Figures:
    """Two epochs of photos from the local disk, for their sums."""
    return _day(setting, lambda places: aioload.Dataset(places.packed))


def day_good(setting: Setting) -> Figures:
    """Two epochs over the network."""
    return _day(setting, lambda places: aioload.Dataset(setting.url(places.packed)))


def day_bad(setting: Setting) -> Figures:
    """Two epochs over a network on which much goes wrong."""
    return _day(setting, lambda places: aioload.Dataset(setting.url(places.packed)), seed=setting.seed)


def day_bad_unhedged(setting: Setting) -> Figures:
    """The same without asking late reads again."""
    options = {"hedge": False}
    return _day(
        setting,
        lambda places: aioload.Dataset(setting.url(places.packed), storage_options=options),
        seed=setting.seed,
    )


def _day(
    setting: Setting, dataset: Callable[[Places], aioload.Dataset], *, seed: int | None = None
) -> Figures:
    places = _data.photos(setting.data, setting.scale)
    setting.server.set(latency=LATENCY, bandwidth=BANDWIDTH, seed=seed)
    loader, total, waits = _photo_loader(dataset(places)), hashlib.sha1(usedforsecurity=False), [0.0]
    for epoch in range(2):
        began = now = time.perf_counter()
        for batch in loader.sync():
            if epoch:
                waits.append(time.perf_counter() - now)
            total.update(batch["image"].numpy())
            total.update(batch["label"].numpy())
            now = time.perf_counter()
    seconds = time.perf_counter() - began
    loader.close()
    stats, counts = loader.stats(), setting.server.counts()
    needed = stats.requests - stats.retries - stats.hedges
    return {
        "samples_per_second": places.records / seconds,
        "longest_wait_seconds": max(waits),
        "digest": total.hexdigest(),
        "requests": counts.requests,
        "needed": needed,
        "requests_over_needed": counts.requests / needed if needed else 0.0,
        "retries": stats.retries,
        "hedges": stats.hedges,
        "hedges_won": stats.hedges_won,
        "throttles": stats.throttles,
    }


# memory


def memory_least(setting: Setting) -> Figures:
    """Hold as little as works: what there is beside the limit."""
    places = arrays(setting.data, setting.scale)
    loader = _array_loader(setting, places, 1)
    try:
        next(iter(loader.sync()))
    except aioload.ConfigError as error:
        return _held(setting, places, int(getattr(error, "needed", 0)))
    finally:
        loader.close()
    raise AssertionError("a limit of one byte was not refused")


def memory_many(setting: Setting) -> Figures:
    """Have as many reads in flight as the limit allows."""
    return _held(setting, arrays(setting.data, setting.scale), LIMIT)


def _array_loader(setting: Setting, places: Places, limit: int) -> aioload.Loader:
    return aioload.Loader(
        setting.url(places.packed),
        batch_size=ARRAY_BATCH,
        shuffle="full",
        num_workers=2,
        memory_limit=limit,
        prefetch=ARRAYS_AHEAD,
    )


def _held(setting: Setting, places: Places, limit: int) -> Figures:
    """Stream under a limit and watch the tree."""
    setting.server.set(latency=FAR, bandwidth=BANDWIDTH)
    loader = _array_loader(setting, places, limit)
    before = tree_memory(os.getpid()).anonymous
    with watching(0.02) as watch:
        until = time.perf_counter() + 4 * setting.seconds
        while time.perf_counter() < until:
            for batch in loader.sync():
                assert len(batch["x"]) <= ARRAY_BATCH
                if time.perf_counter() > until:
                    break
    loader.close()
    return {
        "limit_mib": limit / MIB,
        "most_mib": watch.peak.total / MIB,
        "shared_mib": watch.shared / MIB,
        "private_mib": watch.peak.anonymous / MIB,
        "before_mib": before / MIB,
        "reads_in_flight": setting.server.counts().most_open,
    }


# CPU


def cpu(setting: Setting) -> Figures:
    """Read ranges by aioload's storages and by bare obstore, in turn, from a server that is near."""
    from obstore.store import HTTPStore, S3Store

    places = raw(setting.data, setting.scale)
    setting.server.set()
    url = setting.url(places.packed)
    bucket, _, prefix = setting.url(places.packed, "s3").removeprefix("s3://").partition("/")
    plain = {"client_options": {"allow_http": True}}
    s3: dict[str, Any] = {"endpoint": setting.server.url, "anonymous": True, "region": "us-east-1"}
    stores = {
        "web": Remote(url).open(),
        "bucket": Remote(setting.url(places.packed, "s3"), s3).open(),
    }
    bare = {
        "web": HTTPStore.from_url(url, **plain),
        "bucket": S3Store(
            bucket,
            prefix=prefix,
            endpoint=setting.server.url,
            region="us-east-1",
            skip_signature=True,
            virtual_hosted_style_request=False,
            **plain,
        ),
    }
    figures: dict[str, list[float]] = {}

    async def measure() -> None:
        for again in range(CPU_ROUNDS):
            for part_bytes, name in ((8 << 20, "8 MiB"), (1 << 20, "1 MiB")):
                ranges = cut(_sizes(places), part_bytes)[: (256 << 20) // part_bytes]
                for kind in stores:
                    readers = [
                        ("aioload", read_by_storage, stores[kind]),
                        ("obstore", read_by_obstore, bare[kind]),
                    ]
                    for who, read, source in readers[:: -1 if again % 2 else 1]:  # who goes first pays more
                        began = time.process_time()
                        came = await read(source, ranges, 8)
                        taken = (time.process_time() - began) / came * 1e9
                        figures.setdefault(f"{kind} {name} {who}", []).append(taken)
        for storage in stores.values():
            await close(storage)

    run(measure())
    return {name: float(np.median(values)) for name, values in figures.items()}


# shared


def _steady(setting: Setting, loader: aioload.Loader, touch: Callable[[Any], int]) -> Figures:
    """Measure whole epochs after the first."""
    before = setting.server.counts()
    held = loader.stats()
    samples, cpu, began = 0, tree_cpu(os.getpid()), time.perf_counter()
    while not samples or time.perf_counter() - began < setting.seconds:
        samples += sum(map(touch, loader.sync()))
    seconds, cpu = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
    after, stats = setting.server.counts(), loader.stats()
    loader.close()
    read = stats.read_bytes - held.read_bytes
    came = after.bytes - before.bytes
    return _rates(setting, samples, read, seconds, cpu, after.cpu_seconds - before.cpu_seconds) | {
        "network_bytes": came,
        "requests": after.requests - before.requests,
        "reads_in_flight": stats.reads_in_flight,
        "open_requests": after.most_open,
    }


def _rates(
    setting: Setting, samples: int, size: int, seconds: float, cpu: float, server_cpu: float | None = None
) -> Figures:
    """Tell how fast it went, and how fast it would go with CPUs that the server does not use."""
    counts = setting.server.counts()
    server_cpu = counts.cpu_seconds if server_cpu is None else server_cpu
    left = 1 - server_cpu / seconds / CPUS
    return {
        "samples_per_second": samples / seconds,
        "alone_per_second": samples / seconds / left,
        "mb_per_second": size / seconds / 1e6,
        "cpu_per_gb": cpu / size * 1e9 if size else 0.0,
        "cpu_seconds_per_1000": cpu / samples * 1000,
        "server_cpus": server_cpu / seconds,
    }


CASES: dict[str, Callable[[Setting], Figures]] = {
    "photos-local": photos_local,
    "photos-network": photos_network,
    "photos-cached": photos_cached,
    "spare-local": spare_local,
    "spare-network": spare_network,
    "spare-cached": spare_cached,
    "raw-bare": raw_bare,
    "raw-bare-shuffled": raw_bare_shuffled,
    "raw-in-order": raw_in_order,
    "raw-shuffled": raw_shuffled,
    "day-local": day_local,
    "day-good": day_good,
    "day-bad": day_bad,
    "day-bad-unhedged": day_bad_unhedged,
    "memory-least": memory_least,
    "memory-many": memory_many,
    "cpu": cpu,
}
"""By name, in the order of a round: what is compared stands side by side."""
