"""TFRecord: read files of tf.train.Example as they are, without TensorFlow.

Shows `aioload.Dataset` over a TFRecord file, what its features are by default, and how `fields=` asks for
some of them with kinds of their own. Both checksums of each record are compared. Needs `pip install tfrecord`
to write the file, not to read it. Reads the pictures that 01_pack.py drew.
"""

import argparse
from pathlib import Path

from tfrecord.writer import TFRecordWriter

import aioload

CLASSES = ["circle", "square", "triangle"]


def write(pictures: Path, path: Path) -> None:
    writer = TFRecordWriter(str(path))
    for file in sorted(pictures.glob("*/*.png")):
        label = CLASSES.index(file.parent.name)
        writer.write(
            {
                "image/encoded": (file.read_bytes(), "byte"),
                "image/class/label": (label, "int"),
                "image/class/text": (file.parent.name.encode(), "byte"),
            }
        )
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data
    if not (data / "pictures").exists():
        parser.exit(2, f"{data / 'pictures'} is not there; run 01_pack.py first\n")

    path = data / "shapes.tfrecord"
    write(data / "pictures", path)

    print("as they are:", aioload.Dataset(path).fields)  # numbers are arrays: a feature is a list

    fields = {"image/encoded": "image", "image/class/label": "int", "image/class/text": "str"}
    dataset = aioload.Dataset(path, fields=fields)
    with aioload.Loader(dataset, batch_size=16, shuffle=True).sync() as batches:
        for batch in batches:
            images, labels = batch["image/encoded"], batch["image/class/label"]
    print(f"{len(dataset)} records; the last batch: {tuple(images.shape)}, labels {labels.tolist()}")


if __name__ == "__main__":
    main()
