"""How many members of a WebDataset archive does a core index a second, and what does a sample cost to split?

    python benchmarks/index_tar.py

The floor asked for is 300,000 members a second, of an archive of 1,000,000 small files in the page cache, two
a sample. `ustar` has a header a file; `pax` has a second one for the time, as the webdataset package writes
them. CPU seconds, reading included; the best and the middle of some runs.
"""

from __future__ import annotations

import argparse
import statistics
import tarfile
import tempfile
import time
from pathlib import Path

from aioload.shard.scan import Scanned, run
from aioload.shard.tar import TarFormat, scan

PAYLOAD = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=1_000_000, help="files in the archive")
    parser.add_argument("--runs", type=int, default=3, help="times each archive is indexed")
    options = parser.parse_args()

    print(f"{'archive':<8}{'MiB':>7}{'members':>11}{'best /s':>11}{'middle /s':>11}{'us a split':>12}")
    for name in ("ustar", "pax"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "some.tar"
            write(path, options.members, pax=name == "pax")
            seconds, found = zip(*(index(path) for _ in range(options.runs)), strict=True)
            rates = [options.members / second for second in seconds]
            split = microseconds(path, found[0])
            print(
                f"{name:<8}{path.stat().st_size / 2**20:>7.0f}{2 * len(found[0].ends):>11,}"
                f"{max(rates):>11,.0f}{statistics.median(rates):>11,.0f}{split:>12.1f}"
            )


def write(path: Path, members: int, *, pax: bool) -> None:
    """Write an archive of that many files, an image and a label a sample."""
    info = tarfile.TarInfo()
    info.size = PAYLOAD
    body = bytes(range(PAYLOAD)).ljust(512, b"\0")
    with path.open("wb") as file:
        for number in range(members):
            info.name = f"train/{number // 2:09d}.{('jpg', 'cls')[number % 2]}"
            info.mtime = 1.7e9 + number / 7 if pax else 1_700_000_000
            file.write(info.tobuf(tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT))
            file.write(body)
        file.write(bytes(1024))


def index(path: Path) -> tuple[float, Scanned]:
    """Return the CPU seconds that it takes to index an archive, and what was found."""
    began = time.process_time()
    with path.open("rb", buffering=0) as file:

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            return file.read(stop - start)

        found = run(scan(path.stat().st_size, path.name), read)
    return time.process_time() - began, found


def microseconds(path: Path, found: Scanned) -> float:
    """Return the CPU microseconds that one sample costs to split."""
    samples = min(len(found.ends), 10_000)
    stops = found.ends[:samples].tolist()
    starts = [found.data_start, *stops[:-1]]
    with path.open("rb") as file:
        data = memoryview(file.read(stops[-1]))

    form = TarFormat((("jpg", "image"), ("cls", "int")))
    began = time.process_time()
    for start, stop in zip(starts, stops, strict=True):
        form.split(data[start:stop])
    return (time.process_time() - began) / samples * 1e6


if __name__ == "__main__":
    main()
