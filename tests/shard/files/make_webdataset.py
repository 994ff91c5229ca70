"""Write `webdataset.tar` with the real webdataset package (made with version 1.0.2).

    python make_webdataset.py

The values are those that `test_tar.py` expects.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import webdataset

SAMPLES = [
    {"__key__": "train/a", "txt": "é", "cls": 3, "json": {"n": [1, None]}, "bin": b"\0" * 700},
    {"__key__": "train/中", "txt": "", "cls": -1, "json": {}, "bin": b""},
    {"__key__": "k" * 120, "txt": "end", "cls": 0, "json": [], "bin": b"\xff"},
]


def main() -> None:
    """Write the archive beside this file."""
    with webdataset.TarWriter(str(Path(__file__).with_name("webdataset.tar"))) as writer:
        for number, sample in enumerate(SAMPLES):
            writer.write({**sample, "left.npy": np.full(2, number, np.float32)})


if __name__ == "__main__":
    main()
