"""Plain for: the mean and the spread of each colour over a set, without any async code.

Shows `loader.sync()`, which works the same in a script, in a notebook and inside a running event loop. Reads
what 01_pack.py wrote.
"""

import argparse
from pathlib import Path

import torch

import aioload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data

    if not (data / "train").exists():
        parser.exit(2, f"{data / 'train'} is not there; run 01_pack.py first\n")

    pixels = 0
    total, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    with aioload.Loader(data / "train", batch_size=32).sync() as batches:
        print(f"{len(batches)} batches")
        for batch in batches:
            colours = batch["image"].reshape(-1, 3).double()
            pixels += len(colours)
            total += colours.sum(0)
            squares += colours.square().sum(0)

    mean = total / pixels
    spread = (squares / pixels - mean.square()).sqrt()
    for name, middle, deviation in zip(("red", "green", "blue"), mean.tolist(), spread.tolist(), strict=True):
        print(f"{name:>5}: {middle:.1f} ± {deviation:.1f}")


main()
