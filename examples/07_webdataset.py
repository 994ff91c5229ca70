"""WebDataset: train on tar archives as they are, here some that the webdataset package has written.

Shows `aioload.Dataset` over a pattern of archives: no copy is made, only an index, once, which lies beside
them. After that they have all that a packed set has: any order, ranks, resuming, `aioload verify`. Needs
`pip install webdataset` to write them, not to read. Reads the pictures that 01_pack.py drew.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from torch import nn

import aioload

CLASSES = ["circle", "square", "triangle"]


def write(pictures: Path, archives: Path) -> str:
    archives.mkdir(exist_ok=True)
    with webdataset.ShardWriter(f"{archives}/shapes-%03d.tar", maxcount=100, verbose=0) as writer:
        for file in sorted(pictures.glob("*/*.png")):
            label = CLASSES.index(file.parent.name)
            writer.write(
                {"__key__": f"{file.parent.name}/{file.stem}", "png": file.read_bytes(), "cls": label}
            )
    return f"{archives}/shapes-{{000..002}}.tar"


def scaled(sample: dict[str, Any]) -> dict[str, Any]:
    """Make the picture what a network wants: float32, channels first."""
    return {"image": sample["png"].transpose(2, 0, 1).astype(np.float32) / 255, "label": sample["cls"]}


def train(loader: aioload.Loader, epochs: int) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(CLASSES)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    with loader.sync() as batches:
        for _ in range(epochs):
            for batch in batches:
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data
    if not (data / "pictures").exists():
        parser.exit(2, f"{data / 'pictures'} is not there; run 01_pack.py first\n")

    dataset = aioload.Dataset(write(data / "pictures", data / "webdataset"))
    print(f"{dataset.kind}: {len(dataset)} samples in {len(dataset.index.shards)} archives, {dataset.fields}")

    loader = aioload.Loader(dataset, batch_size=16, shuffle=True, transform=scaled)
    print(f"loss {train(loader, epochs=4):.2f} after 4 epochs")


if __name__ == "__main__":
    main()
