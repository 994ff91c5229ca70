"""Pack: draw a folder of pictures, one sub-folder a class, and write it as one packed set.

Shows `aioload.Writer` with typed fields, keys and metadata. For folders like this one the command line does
the same: `aioload pack --shuffle example-data/pictures example-data/train`. Run this first: the next two
examples read what it writes.
"""

import argparse
import random
import shutil
from pathlib import Path

from PIL import Image, ImageDraw

import aioload

CLASSES = ["circle", "square", "triangle"]
PICTURES_PER_CLASS = 80


def draw_pictures(folder: Path) -> None:
    dice = random.Random(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(PICTURES_PER_CLASS):
            draw_shape(name, dice).save(folder / name / f"{number:03}.png")


def draw_shape(name: str, dice: random.Random) -> Image.Image:
    picture = Image.new("RGB", (32, 32), tuple(dice.choices(range(0, 90), k=3)))
    x, y, radius = dice.randint(11, 20), dice.randint(11, 20), dice.randint(6, 10)
    colour = tuple(dice.choices(range(130, 256), k=3))
    sides = {"square": 4, "triangle": 3}
    if name == "circle":
        ImageDraw.Draw(picture).ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)
    else:
        ImageDraw.Draw(picture).regular_polygon((x, y, radius), sides[name], dice.randint(0, 90), fill=colour)
    return picture


def pack(pictures: Path, train: Path) -> None:
    # Records are read in the order they are packed, so the classes are mixed here, once and for all.
    files = sorted(pictures.glob("*/*.png"))
    random.Random(1).shuffle(files)

    fields = {"image": "image", "label": "int"}
    with aioload.Writer(train, fields=fields, metadata={"classes": CLASSES}) as writer:
        for file in files:
            label = CLASSES.index(file.parent.name)
            key = f"{file.parent.name}/{file.stem}"
            writer.write({"image": file.read_bytes(), "label": label}, key=key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="folder for pictures and set")
    data = parser.parse_args().data

    draw_pictures(data / "pictures")
    shutil.rmtree(data / "train", ignore_errors=True)  # a complete set is never written over
    pack(data / "pictures", data / "train")

    dataset = aioload.Dataset(data / "train")
    print(f"packed {len(dataset)} records with the fields {dict(dataset.fields)}")
    print(f"record 17 is {dataset[17]['__key__']!r}, a picture of shape {dataset[17]['image'].shape}")


main()
