"""Batches under test: taken in each way there is, and made comparable with what was packed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import torch

import aioload

__all__ = ["FACES", "Warnings", "counted", "gather", "pack", "plain", "take_async", "take_sync"]

COUNTED = 100


def pack(path: Path, fields: Mapping[str, str], samples: Iterable[Mapping[str, Any]], **options: Any) -> Path:
    """Write a set whose keys are `k0`, `k1`, … and return its folder."""
    with aioload.Writer(path, fields, **options) as writer:
        for record, sample in enumerate(samples):
            writer.write(sample, key=f"k{record}")
    return path


def counted(path: Path, records: int = COUNTED, **options: Any) -> Path:
    """Write a set of small records in which a record's number can be read off each field."""
    samples = (
        {"n": record, "text": f"t{record}", "array": np.full((2, 3), record, np.float32)}
        for record in range(records)
    )
    return pack(path, {"n": "int", "text": "str", "array": "ndarray"}, samples, **options)


async def gather(batches: AsyncIterable[Any]) -> list[Any]:
    """Take all batches of an epoch by `async for`."""
    return [batch async for batch in batches]


def take_sync(loader: aioload.Loader) -> list[Any]:
    """Take an epoch by a plain `for`, and close."""
    with loader.sync() as batches:
        return list(batches)


def take_async(loader: aioload.Loader) -> list[Any]:
    """Take an epoch by `async for`, in an event loop of its own, and close."""

    async def main() -> list[Any]:
        async with loader:
            return await gather(loader)

    return anyio.run(main)


FACES: list[Callable[[aioload.Loader], list[Any]]] = [take_sync, take_async]


def plain(tree: Any) -> Any:
    """Make a batch comparable with `==`: classes stay, arrays and tensors become dtype, shape and bytes."""
    if isinstance(tree, torch.Tensor):
        raw = tree.contiguous().reshape(-1).view(torch.uint8).numpy()
        return "leaf", str(tree.dtype).removeprefix("torch."), tuple(tree.shape), raw.tobytes()
    if isinstance(tree, np.ndarray):
        return "leaf", tree.dtype.name, tree.shape, tree.tobytes()
    if isinstance(tree, dict):
        return type(tree), [(key, plain(value)) for key, value in tree.items()]
    if isinstance(tree, list | tuple):
        return type(tree), [plain(value) for value in tree]
    if dataclasses.is_dataclass(tree):
        return type(tree), [plain(getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    return tree


class Warnings(logging.Handler):
    """Keeps what aioload logs as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Warnings:
        logging.getLogger("aioload").addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger("aioload").removeHandler(self)
