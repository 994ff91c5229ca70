"""GPU: train where there is one, else on the CPU, with the same loop.

Shows `Loader(device=...)`, which copies batches while the model works on those before; `channels_last` and
`dtype`, which are done on the device, so that bytes travel as they were decoded; and
`aioload.DevicePrefetcher` around a torch `DataLoader`. Reads what 01_pack.py wrote.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import aioload

EPOCHS = 4


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(data: Path, device: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers need the other cores
    dataset = aioload.Dataset(data / "train")
    stages = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten())
    model = nn.Sequential(*stages, nn.Linear(16 * 8 * 8, len(dataset.metadata["classes"])))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    loader = aioload.Loader(
        dataset,
        batch_size=16,
        shuffle=True,
        device=device,
        channels_last=True,  # (N, H, W, C) bytes become (N, C, H, W) floats, on the device
        dtype=torch.float32,
        mean=127.5,
        std=127.5,
    )
    with loader.sync() as batches:
        for epoch in range(EPOCHS):
            total = torch.zeros((), device=device)
            for batch in batches:
                loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()  # no .item(): the host goes on ahead of the device

            print(f"epoch {epoch}: loss {total.item() / len(batches):.3f}")

        print(batches.report())


def prefetch(device: str) -> None:
    others = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=16, pin_memory=device != "cpu")
    with aioload.DevicePrefetcher(others, device) as batches:
        print("a DataLoader's batches:", [round(float(batch[0].sum())) for batch in batches])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    parser.add_argument("--device", default=best_device(), help="cuda, cuda:1, cpu")
    options = parser.parse_args()

    if not (options.data / "train").exists():
        parser.exit(2, f"{options.data / 'train'} is not there; run 01_pack.py first\n")
    train(options.data, options.device)
    prefetch(options.device)


main()
