"""Audio: what does it save to make spectrograms once, and not in every epoch? 5 s at 16 kHz, 64 Mel bands.

    python benchmarks/audio_cache.py
    python benchmarks/audio_cache.py --sounds 300 --rounds 3 --only none,mapped,torch
    python benchmarks/audio_cache.py --window 1024 --hop 256

Batches of 32, in random order, two workers. `prepare` is STFT, power, Mel and log, all of it numpy, of frames
as for speech (25 ms, one each 10 ms) unless told otherwise: the more frames, the larger is what is kept.
`transform` masks frames, others in every epoch. Who takes part:

- none: everything in every epoch.
- memory, disk: the results of `prepare` are kept with `cache=`.
- mapped: a set that `aioload map` has made ahead with the same `prepare`; its first epoch says what it cost.
- torch: `DataLoader` over WAV files, with the same decoder and the same functions, in every epoch.

First epochs come in rounds, each with a new loader and an empty cache. Then each has a loader that stays
open, for rounds of one epoch each. Figures are medians of the rounds, ratios medians of the ratios within a
round. Between two epochs there is a pause, as a loader goes on with its next epoch when one ends: whoever
comes next would pay for that. CPU seconds are those of the whole process tree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import wave
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import MIB, backed, tree_cpu

import aioload

__all__ = ["WAYS", "Mel", "Way", "add_options", "mel_bands", "sound", "transform"]

RATE, SECONDS, BANDS = 16_000, 5, 64
MASKED = 40  # frames at most
BATCH, WORKERS = 32, 2
AHEAD = 4  # batches, as torch's: what is made in the pause before an epoch must stay a small part of it
PAUSE = 0.5  # seconds, in which these are made


def mel_bands(bands: int, bins: int, top: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the weight of each bin in each of the triangles that are evenly spaced in mel."""
    mels = np.linspace(0, 2595 * np.log10(1 + top / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = np.linspace(0, top, bins)
    rise = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rise, fall)).astype(np.float32)


class Mel:
    """Makes log Mel spectrograms of sounds: what is done once where it is kept.

    Args:
        window: samples of a frame.
        hop: samples from one to the next.
    """

    def __init__(self, window: int, hop: int) -> None:
        self._window, self._hop = window, hop
        self._hann = np.hanning(window).astype(np.float32)
        self._bank = mel_bands(BANDS, window // 2 + 1, RATE / 2)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return what is made of a sound, (bands, frames), and its label."""
        sound = sample["audio"]["samples"][0]
        frames = np.lib.stride_tricks.sliding_window_view(sound, self._window)[:: self._hop]
        power = np.abs(np.fft.rfft(frames * self._hann)) ** 2
        return {"mel": np.log(self._bank @ power.T.astype(np.float32) + 1e-6), "label": sample["label"]}


def transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Mask some frames."""
    width = int(rng.integers(MASKED))
    start = int(rng.integers(sample["mel"].shape[1] - width))
    sample["mel"][:, start : start + width] = np.log(np.float32(1e-6))
    return sample


def sound(number: int) -> bytes:
    """Return a WAV file of a rising tone in noise."""
    rng = np.random.default_rng(number)
    seconds = np.arange(RATE * SECONDS) / RATE
    tone = np.sin(2 * np.pi * (200 + 40 * (number % 10)) * seconds * (1 + seconds / 10))
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes((8000 * tone + 1000 * rng.standard_normal(len(tone))).astype("<i2").tobytes())
    return file.getvalue()


class Files(torch.utils.data.Dataset[Any]):
    """The same work as a map-style dataset over files."""

    def __init__(self, folder: Path, mel: Mel) -> None:
        self._paths = sorted(map(str, folder.iterdir()))
        self._mel = mel
        self._decode = aioload.decode.Audio()

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        audio = self._decode(Path(self._paths[number]).read_bytes())
        rng = np.random.default_rng(torch.randint(1 << 30, ()).item())
        return transform(self._mel({"audio": audio, "label": number % 10}), rng)


Run = tuple[float, float, int]
"""Of an epoch: seconds, CPU seconds, samples."""


class Way:
    """One who takes part.

    Args:
        batches: begins an epoch.
        close: ends all.
        ahead: seconds of work that was done before the first epoch.
    """

    def __init__(
        self, batches: Callable[[], Iterable[Any]], close: Callable[[], object], ahead: float = 0.0
    ) -> None:
        self.close = close
        self._batches = batches
        self._ahead = ahead

    def epoch(self) -> Run:
        """Run one; return its seconds, CPU seconds and samples."""
        cpu, began, samples = tree_cpu(os.getpid()), time.perf_counter(), 0
        for batch in self._batches():
            samples += len(batch["label"])
        taken = time.perf_counter() - began, tree_cpu(os.getpid()) - cpu
        ahead, self._ahead = self._ahead, 0.0
        time.sleep(PAUSE)
        return taken[0] + ahead, taken[1], samples


def _loader(packed: Path, ahead: float = 0.0, **options: Any) -> Way:
    loader = aioload.Loader(
        packed,
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        prefetch=AHEAD,
        transform=transform,
        **options,
    )
    return Way(loader.sync, loader.close, ahead)


def _none(place: Path, mel: Mel) -> Way:
    return _loader(place / "packed", prepare=mel)


def _memory(place: Path, mel: Mel) -> Way:
    return _loader(place / "packed", prepare=mel, cache=aioload.cache.Memory("2GiB"))


def _disk(place: Path, mel: Mel) -> Way:
    shutil.rmtree(place / "cache", ignore_errors=True)
    return _loader(place / "packed", prepare=mel, cache=aioload.cache.Disk(place / "cache", "2GiB"))


def _mapped(place: Path, mel: Mel) -> Way:
    shutil.rmtree(place / "mapped", ignore_errors=True)
    began = time.perf_counter()
    aioload.map(place / "packed", mel, place / "mapped", num_workers=WORKERS)
    return _loader(place / "mapped", time.perf_counter() - began)


def _torch(place: Path, mel: Mel) -> Way:
    loader = torch.utils.data.DataLoader(
        Files(place / "files", mel), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    return Way(lambda: loader, lambda: None)


WAYS: dict[str, Callable[[Path, Mel], Way]] = {
    "none": _none,
    "memory": _memory,
    "disk": _disk,
    "mapped": _mapped,
    "torch": _torch,
}


def make(place: Path, sounds: int) -> None:
    """Write the sounds, packed and as files."""
    (place / "files").mkdir()
    with aioload.Writer(place / "packed", fields={"audio": "audio", "label": "int"}) as writer:
        for number in range(sounds):
            data = sound(number)
            (place / "files" / f"{number:06}.wav").write_bytes(data)
            writer.write({"audio": data, "label": number % 10})


def measure(place: Path, mel: Mel, names: list[str], sounds: int, rounds: int) -> None:
    """Print the table."""
    first: dict[str, list[Run]] = {name: [] for name in names}
    ways: dict[str, Way] = {}
    for _ in range(rounds):
        for name in names:
            if name in ways:
                ways.pop(name).close()
            ways[name] = WAYS[name](place, mel)
            first[name].append(ways[name].epoch())
    later: dict[str, list[Run]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            later[name].append(ways[name].epoch())
    assert {run[2] for runs in (*first.values(), *later.values()) for run in runs} == {sounds}

    print(f"{'':8}  first epoch  x none  later epochs  sounds/s  CPU s / 1,000  x none  x torch")
    for name in names:
        ratios = [_ratio(first, name, "none"), _ratio(later, name, "none"), _ratio(later, name, "torch")]
        seconds, cpu = (statistics.median(run[of] for run in later[name]) for of in (0, 1))
        print(
            f"{name:8}  {statistics.median(run[0] for run in first[name]):9.2f} s  "
            f"{ratios[0]:>6}  {seconds:10.2f} s  {sounds / seconds:8,.0f}  "
            f"{cpu * 1000 / sounds:13.2f}  {ratios[1]:>6}  {ratios[2]:>7}"
        )
    for way in ways.values():
        way.close()


def _ratio(runs: dict[str, list[Run]], name: str, to: str) -> str:
    if to not in runs:
        return "-"
    return (
        f"{statistics.median(other[0] / one[0] for one, other in zip(runs[name], runs[to], strict=True)):.2f}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take what tells how much is kept, and of which memory."""
    parser.add_argument("--window", type=int, default=400, help="samples of a frame")
    parser.add_argument("--hop", type=int, default=160, help="samples from one frame to the next")
    parser.add_argument(
        "--backed", type=int, default=0, help="MiB of free memory that the host has given before"
    )


def main() -> None:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sounds", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(WAYS), help="names, with commas between them")
    add_options(parser)
    options = parser.parse_args()
    mel = Mel(options.window, options.hop)
    place = Path(tempfile.mkdtemp(prefix="aioload-audio-"))
    try:
        make(place, options.sounds)
        with backed(options.backed * MIB):
            measure(place, mel, options.only.split(","), options.sounds, options.rounds)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
