"""What does a trace cost while it runs, and when it is written?

    python benchmarks/bench_trace.py

Records of 2 KB without workers, where a batch costs least, so that what is told of it weighs most. Epochs in
which there is a trace and others take turns in one loader; CPU seconds of the process, medians. Writing is
timed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import aioload
from aioload.recorder import Recorder

RECORDS = 20_000
RECORD_BYTES = 2048


def pack(folder: Path, records: int) -> Path:
    """Write records of one size."""
    with aioload.Writer(folder / "set", fields={"data": "bytes", "label": "int"}) as writer:
        for record in range(records):
            writer.write({"data": record.to_bytes(4, "big") * (RECORD_BYTES // 4), "label": record})
    return folder / "set"


def epoch(loader: aioload.SyncLoader) -> tuple[int, float]:
    """Take all batches of an epoch; return how many they were, and the CPU seconds."""
    began = time.process_time()
    batches = sum(1 for _ in loader)
    return batches, time.process_time() - began


def measure(data: Path, folder: Path, batch_size: int, rounds: int) -> str:
    """Return a row of the table."""
    plain, traced, writing = [], [], []
    finish = Recorder.finish

    def timed(recorder: Recorder) -> None:
        began = time.process_time()
        finish(recorder)
        writing.append(time.process_time() - began)

    path = folder / "run.json"
    Recorder.finish = timed  # type: ignore[method-assign]  # writing is to be timed apart
    with contextlib.closing(aioload.Loader(data, batch_size=batch_size, num_workers=0)) as found:
        loader = found.sync()
        epoch(loader)  # layouts and costs are learnt
        for _ in range(rounds):
            plain.append(epoch(loader))
            with aioload.trace(path, max_events=1_000_000):
                traced.append(epoch(loader))
    Recorder.finish = finish  # type: ignore[method-assign]  # likewise
    batches = plain[0][0]
    off, on = (statistics.median(seconds for _, seconds in one) for one in (plain, traced))
    wrote, size = statistics.median(writing), path.stat().st_size
    return (
        f"| {batch_size} | {off / batches * 1e6:.1f} | {on / batches * 1e6:.1f} "
        f"| {(on - off) / batches * 1e6:.1f} | {on / off - 1:+.1%} "
        f"| {wrote / batches * 1e6:.1f} | {size / batches:,.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, {date.today()}\n")
    print("| batch size | us a batch | with a trace | more | | us to write it | bytes of JSON |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        data = pack(Path(folder), options.records)
        for batch_size in (8, 64, 512):
            print(measure(data, Path(folder), batch_size, options.rounds))


if __name__ == "__main__":
    main()
