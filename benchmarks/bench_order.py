"""How long does it take to find the records of one batch of 256, at a position far into a large set?

    python benchmarks/bench_order.py

The floor asked for is 1 ms a batch, at any position. The full mode runs over 2^40 records; the block mode
over 2^22 blocks, the most there are by default (1 TiB and beyond), whose table an epoch makes once.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc

import numpy as np

from aioload.order import BlockOrder, Blocks, FullOrder, Order

POSITION = 10**9
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batches", type=int, default=300, help="batches to time")
    batches = parser.parse_args().batches

    blocks = Blocks(np.arange((1 << 22) + 1, dtype=np.int64) * 256)  # 2^30 records
    block, began = BlockOrder(blocks, seed=1, epoch=0, lanes=192), time.perf_counter()
    block.records(np.zeros(1, np.int64))
    print(f"table of an epoch of 2^22 blocks: {time.perf_counter() - began:.2f} s, once")

    print(f"{'mode':<8}{'records':>16}{'ms a batch':>12}{'worst':>8}{'KiB on the way':>16}")
    for name, order in (("full", FullOrder(1 << 40, 1, 0)), ("block", block)):
        milliseconds, peak = measure(order, batches)
        middle, worst = statistics.median(milliseconds), max(milliseconds)
        print(f"{name:<8}{len(order):>16,}{middle:>12.3f}{worst:>8.3f}{peak / 1024:>16.0f}")


def measure(order: Order, batches: int) -> tuple[list[float], int]:
    """Return the milliseconds of each batch, and the most bytes that one took."""
    positions = np.arange(POSITION, POSITION + BATCH, dtype=np.int64)
    order.records(positions)
    milliseconds = []
    for number in range(batches):
        began = time.perf_counter()
        order.records(positions + number * BATCH)
        milliseconds.append((time.perf_counter() - began) * 1e3)
    tracemalloc.start()
    order.records(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return milliseconds, peak


if __name__ == "__main__":
    main()
