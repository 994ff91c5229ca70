"""Train: a small network over `async for`, with an augmentation that runs in the workers.

Shows `aioload.Loader`, a transform with `rng`, several epochs over one loader, and `loader.report()`, which
says where the time went. Reads what 01_pack.py wrote.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import aioload

EPOCHS = 8


def augment(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Turn the picture by a random quarter and make it what a network wants: float32, channels first.

    `rng` depends on seed, epoch and record alone: the same run again gives the same pictures.
    """
    turned = np.rot90(sample["image"], rng.integers(4))
    return {"image": turned.transpose(2, 0, 1).astype(np.float32) / 255, "label": sample["label"]}


def small_network(classes: int) -> nn.Module:
    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *stage(3, 16), *stage(16, 32), *stage(32, 64), nn.Flatten(), nn.Linear(64 * 16, classes)
    )


async def train(data: Path) -> None:
    torch.manual_seed(0)
    # so small a network is no faster with more, and the workers need the other cores
    torch.set_num_threads(1)
    dataset = aioload.Dataset(data / "train")
    model = small_network(len(dataset.metadata["classes"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    async with aioload.Loader(dataset, batch_size=16, transform=augment, seed=1) as loader:
        for epoch in range(EPOCHS):
            right = seen = 0
            async for batch in loader:
                guess = model(batch["image"])
                loss = nn.functional.cross_entropy(guess, batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                right += int((guess.argmax(1) == batch["label"]).sum())
                seen += len(batch["label"])

            print(f"epoch {epoch}: {right / seen:.0%} of {seen} right")

        print(loader.report())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data

    if not (data / "train").exists():
        parser.exit(2, f"{data / 'train'} is not there; run 01_pack.py first\n")
    asyncio.run(train(data))


main()
