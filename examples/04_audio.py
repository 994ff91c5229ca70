"""Audio: sounds of different lengths in one batch, padded, with their true lengths beside them.

Shows a field of kind audio, a transform that picks what the model needs, and `aioload.collate.pad`. Draws
its own sounds, so it does not need the other examples.
"""

import argparse
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np

import aioload

RATE = 8_000
NOTES = {"c": 261.63, "e": 329.63, "g": 392.0}


def play(file: Path, hertz: float, seconds: float) -> None:
    time = np.arange(int(RATE * seconds)) / RATE
    wobble = np.sin(2 * np.pi * hertz * time) * np.exp(-3 * time)
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(RATE)
        sound.writeframes((wobble * 32767).astype("<i2").tobytes())


def pack(sounds: Path, packed: Path) -> None:
    sounds.mkdir(parents=True, exist_ok=True)
    with aioload.Writer(packed, fields={"audio": "audio", "note": "str"}) as writer:
        for number in range(24):
            note = list(NOTES)[number % len(NOTES)]
            file = sounds / f"{note}-{number:02}.wav"
            play(file, NOTES[note], seconds=0.2 + 0.02 * number)
            writer.write({"audio": file.read_bytes(), "note": note}, key=file.stem)


def one_channel(sample: dict[str, Any]) -> dict[str, Any]:
    """Keep the only channel: the decoder gives {"samples": (channels, n), "rate": …}."""
    return {"wave": sample["audio"]["samples"][0], "note": sample["note"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="folder for sounds and set")
    data = parser.parse_args().data

    shutil.rmtree(data / "notes", ignore_errors=True)  # a complete set is never written over
    pack(data / "sounds", data / "notes")

    loader = aioload.Loader(
        data / "notes",
        batch_size=6,
        transform=one_channel,
        collate=aioload.collate.pad(lengths="{}_length"),
    )
    with loader.sync() as batches:
        for batch in batches:
            print(tuple(batch["wave"].shape), batch["wave_length"].tolist(), "".join(batch["note"]))


main()
