"""What do the line of `aioload.progress` and the calls of `aioload.metrics` cost a loop over tiny batches?

    python benchmarks/bench_live.py

Records of one number, in batches of 8 and of 256, one worker. Epochs without and with take turns; the ratio
is the median of those of a turn, of CPU time of the whole process and of time. The line is drawn four times a
second for a terminal that throws it away, and a callback called once a second.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

import aioload
from aioload.screens import Line, Terminal


class Nowhere(io.StringIO):
    """A terminal that throws away what it gets."""

    def write(self, text: str) -> int:
        """Throw away."""
        return len(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=400_000, help="of the set")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each")
    options = parser.parse_args()

    console = Console(file=Nowhere(), force_terminal=True, width=120)
    print(f"a line: {line(console):.0f} us")
    with tempfile.TemporaryDirectory() as folder:
        data = pack(Path(folder) / "set", options.records)
        print(f"{'batch':>5}{'us a batch':>12}   {'with':<10}{'CPU':>8}{'time':>8}")
        for size in (8, 256):
            compare(data, size, options.rounds, console)


def compare(data: Path, size: int, rounds: int, console: Console) -> None:
    """Print what showing and telling cost with batches of a size."""
    with aioload.Loader(data, batch_size=size, num_workers=1).sync() as bare:
        faces: dict[str, Iterable[Any]] = {
            "nothing": bare,
            "progress": aioload.progress(bare, console=console),
            "metrics": aioload.metrics(bare, lambda stats, diagnosis: None, every=1),
        }
        epoch(bare)  # starts the worker
        turns = [{name: epoch(face) for name, face in faces.items()} for _ in range(rounds)]
    alone = statistics.median(turn["nothing"][1] for turn in turns)
    for name in ("progress", "metrics"):
        cpu, taken = (
            statistics.median(turn[name][place] / turn["nothing"][place] for turn in turns)
            for place in (0, 1)
        )
        print(f"{size:>5}{alone * 1e6:>12.1f}   {name:<10}{cpu:>8.3f}{taken:>8.3f}")


def epoch(face: Iterable[Any]) -> tuple[float, float]:
    """Return the CPU time and the time of a batch."""
    cpu, began, batches = time.process_time(), time.perf_counter(), 0
    for _ in face:
        batches += 1
    return (time.process_time() - cpu) / batches, (time.perf_counter() - began) / batches


def line(console: Console) -> float:
    """Return the microseconds of CPU time that drawing a line takes."""
    screen, shown = (
        Terminal(console),
        Line("epoch 3  120/1,000", 0.12, "812 samples/s  45.2 MB/s  stall 2%", 0.02),
    )
    screen.show(shown)
    began = time.process_time()
    for _ in range(500):
        screen.show(shown)
    taken = (time.process_time() - began) / 500 * 1e6
    screen.close()
    return taken


def pack(path: Path, records: int) -> Path:
    """Write a set of numbers."""
    with aioload.Writer(path, {"n": "int"}) as writer:
        for number in range(records):
            writer.write({"n": number})
    return path


if __name__ == "__main__":
    main()
