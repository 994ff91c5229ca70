"""Own storage: a set that lies where aioload does not look by itself, here in a ZIP archive.

Shows the two methods of a storage and the few helpers beside them. The class of tests in `aioload.testing`
says whether a storage does all that it must. Reads what 01_pack.py wrote.
"""

import argparse
import os
import zipfile
from pathlib import Path

import anyio.to_thread

import aioload
from aioload.storage import check_name, check_range, ends_early


class ZipStorage:
    """The files of an archive whose entries are stored as they are, which its ranges can be read from.

    Args:
        archive: the file.
    """

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._descriptor = os.open(archive, os.O_RDONLY)
        self._entries: dict[str, tuple[int, int]] = {}  # by name: where it begins, and its size
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise aioload.ConfigError(
                        f"{entry.filename} in {archive} is compressed; store it as it is"
                    )
                head = os.pread(self._descriptor, 30, entry.header_offset)
                names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                self._entries[entry.filename] = (entry.header_offset + 30 + names, entry.file_size)

    async def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._entry(name)[1]

    async def read_into(self, name: str, start: int, out: memoryview) -> None:
        """Fill `out`, whole, with the bytes of a file from `start` on."""
        view = check_range(start, out)
        first, size = self._entry(name)
        if start + len(view) > size:
            raise ends_early(name, size, start + len(view))
        await anyio.to_thread.run_sync(os.preadv, self._descriptor, [view], first + start)

    def close(self) -> None:
        """Close the archive; whoever opened it does."""
        os.close(self._descriptor)

    def __repr__(self) -> str:
        return f"zip:{self._archive}"

    def _entry(self, name: str) -> tuple[int, int]:
        check_name(name)
        if name not in self._entries:
            raise aioload.NotFoundError(f"there is no {name} in {self._archive}", shard=name)
        return self._entries[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("example-data"), help="where 01_pack.py wrote")
    data = parser.parse_args().data
    if not (data / "train").exists():
        parser.exit(2, f"{data / 'train'} is not there; run 01_pack.py first\n")

    archive = data / "train.zip"
    with zipfile.ZipFile(archive, "w") as made:  # stored, not compressed: photos do not get smaller
        for file in sorted((data / "train").iterdir()):
            made.write(file, file.name)

    storage = ZipStorage(archive)
    dataset = aioload.Dataset(storage)
    with aioload.Loader(dataset, batch_size=16, shuffle=True).sync() as batches:
        records = sum(len(batch["label"]) for batch in batches)
    storage.close()

    print(f"{records} records of {dataset.source}, {len(dataset)} in the folder")


if __name__ == "__main__":
    main()
