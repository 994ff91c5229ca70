"""Audio: STFT and Mel bands once a record, not once an epoch; three ways beside each other.

What is the same in every epoch (decode, STFT, Mel) is `prepare`, what is random (a mask over time) is
`transform`. With `cache=` the results of `prepare` are kept, in memory or on a disk, and the second epoch
only draws masks. Generates its own sounds.
"""

import argparse
import shutil
import time
import wave
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

import aioload

RATE, SECONDS = 16_000, 5
WINDOW, HOP, BANDS = 400, 160, 64
MASKED = 40  # frames at most


def mel_bands(bands: int, bins: int, top: float) -> np.ndarray:
    """Return the weight of each bin in each of the triangles that are evenly spaced in mel."""
    mels = np.linspace(0, 2595 * np.log10(1 + top / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = np.linspace(0, top, bins)
    rise = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(rise, fall)).astype(np.float32)


HANN = np.hanning(WINDOW).astype(np.float32)
BANK = mel_bands(BANDS, WINDOW // 2 + 1, RATE / 2)


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    """Make the log Mel spectrogram of a sound: the same in every epoch."""
    sound = sample["audio"]["samples"][0]
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * HANN)) ** 2
    return {"mel": np.log(BANK @ power.T.astype(np.float32) + 1e-6), "label": sample["label"]}


def transform(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Silence some frames: others in every epoch."""
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


def pack(packed: Path, sounds: int) -> None:
    with aioload.Writer(packed, fields={"audio": "audio", "label": "int"}) as writer:
        for number in range(sounds):
            writer.write({"audio": sound(number), "label": number % 10})


def epoch(loader: aioload.Loader) -> float:
    """Run an epoch; return its seconds."""
    began = time.perf_counter()
    for batch in loader.sync():
        assert batch["mel"].shape[1] == BANDS
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="folder for set and cache")
    parser.add_argument("--sounds", type=int, default=100)
    options = parser.parse_args()
    data, sounds = options.data, options.sounds

    for name in ("sounds-packed", "mel-cache"):  # a complete set is never written over
        shutil.rmtree(data / name, ignore_errors=True)
    pack(data / "sounds-packed", sounds)

    print(f"{'cache':8}  {'first epoch':>11}  {'second epoch':>12}  {'sounds/s':>8}  {'ratio':>5}")
    slowest = 0.0
    disk = aioload.cache.Disk(data / "mel-cache", "1GiB")
    for name, cache in (("none", None), ("memory", aioload.cache.Memory("1GiB")), ("disk", disk)):
        loader = aioload.Loader(
            data / "sounds-packed",
            batch_size=20,
            shuffle=True,
            prepare=prepare,
            transform=transform,
            cache=cache,
            num_workers=2,
        )
        first, second = epoch(loader), epoch(loader)
        loader.close()
        slowest = slowest or second
        print(
            f"{name:8}  {first:9.2f} s  {second:10.2f} s  {sounds / second:8,.0f}  {slowest / second:4.1f}x"
        )


main()
