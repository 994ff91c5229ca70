"""What do TFRecord shards cost: to scan a million records, to split an example, to read a long list?

    python benchmarks/bench_tfrecord.py

CPU time, median of some rounds, in one process and from memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from aioload.decode import for_encoding
from aioload.shard.features import render
from aioload.shard.scan import run
from aioload.shard.tfrecord import TFRecordFormat, frame, scan

ROUNDS = 5
INTS = 10_000
IMAGE_BYTES = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="small records to scan")
    records = parser.parse_args().records

    small = memoryview(frame(bytes(100)) * records)
    seconds = cpu_seconds(lambda: run(scan(len(small), "small"), lambda start, stop: small[start:stop]), 1)
    print(f"scan of records of 100 bytes: {records / seconds:,.0f} a second")

    record = memoryview(frame(picture()))
    found = run(scan(len(record), "one"), lambda start, stop: record[start:stop])
    arrays = TFRecordFormat(found.fields, **found.facts)
    ints = arrays.with_kinds({"height": "int", "label": "int"})
    unchecked = TFRecordFormat(ints.fields, ints.encodings, check_data=False)
    for name, form in (("two lists", arrays), ("two ints", ints), ("two ints, data unchecked", unchecked)):
        micros = cpu_seconds(lambda form=form: form.split(record)) * 1e6
        print(f"split of a 100 KB image and {name}: {micros:.1f} us")

    draw = np.random.default_rng(1)
    for most in (2**7, 2**31, 2**63):
        numbers = draw.integers(0, most, INTS, np.uint64).astype(np.int64)
        message = memoryview(render("example:int64", numbers))
        decode = for_encoding("example:int64")
        micros = cpu_seconds(lambda message=message, decode=decode: decode(message), 100) * 1e6
        print(f"packed list of {INTS:,} ints below {most:,}: {micros:.0f} us")


def cpu_seconds(work: Callable[[], object], times: int = 2000) -> float:
    """Return the CPU seconds that a piece of work takes."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            work()
        rounds.append((time.process_time() - began) / times)
    return statistics.median(rounds)


def picture() -> bytes:
    """Return an example of an image and two numbers."""
    values = {
        "image": (b"\x0a", render("example:bytes", [b"\xff\xd8\xff" + bytes(IMAGE_BYTES - 3)])),
        "height": (b"\x1a", render("example:int64", [480])),
        "label": (b"\x1a", render("example:int64", [7])),
    }
    entries = (
        member(b"\x0a", member(b"\x0a", name.encode()) + member(b"\x12", member(tag, message)))
        for name, (tag, message) in values.items()
    )
    return member(b"\x0a", b"".join(entries))


def member(tag: bytes, data: bytes) -> bytes:
    """Return a member of a message."""
    return tag + render("example:int64", [len(data)])[2:] + data


if __name__ == "__main__":
    main()
