"""Folders of images as sources: with a sub-folder a class, or flat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..shard.kinds import kind_of
from .items import Item, Source, printable, shuffled

__all__ = ["Listing", "class_folder", "flat_folder", "list_folder"]


@dataclass(frozen=True, slots=True)
class Listing:
    """What lies in a folder and below; hidden names are passed over."""

    root: str
    """The folder."""
    images: list[str] = field(default_factory=list)
    """Paths of the images, relative to the folder, sorted within each sub-folder."""
    others: list[str] = field(default_factory=list)
    """Paths of all other files."""

    @property
    def loose(self) -> list[str]:
        """Images in the folder itself."""
        return [path for path in self.images if os.sep not in path]

    @property
    def classes(self) -> list[str]:
        """Sub-folders with at least one image below, sorted."""
        return sorted({path.partition(os.sep)[0] for path in self.images if os.sep in path})

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not packed, in a sentence."""
        if not self.others:
            return ()

        count = "1 file is" if len(self.others) == 1 else f"{len(self.others)} files are"
        return (f"{count} left out, with no suffix of an image: {printable(self.others[0])} …",)


def list_folder(root: Path) -> Listing:
    """Go through a folder and all below it.

    Raises:
        OSError: a folder cannot be read.
    """
    listing = Listing(os.fspath(root))
    for path in _walk(listing.root, "", ()):
        (listing.images if kind_of(path) == "image" else listing.others).append(path)
    return listing


def class_folder(listing: Listing, *, seed: int | None = None) -> Source:
    """Return the images with the number of their sub-folder as the label; its name is kept in the metadata.

    Raises:
        ConfigError: an image lies beside the sub-folders, so that it has no class.
    """
    if listing.loose:
        raise ConfigError(
            f"{listing.root} holds images in sub-folders, one a class, but {printable(listing.loose[0])} "
            "lies beside them; move it into a class, or pack without labels with --kind flat"
        )

    labels = {name: label for label, name in enumerate(listing.classes)}
    paths = sorted(listing.images, key=lambda path: (labels[path.partition(os.sep)[0]], path))
    return Source(
        kind="folder",
        fields={"image": "image", "label": "int"},
        items=_labelled(listing.root, shuffled(paths, seed), labels),
        cost=len(paths),
        metadata={"classes": [printable(name) for name in labels]},
        notes=listing.notes,
    )


def flat_folder(listing: Listing, *, seed: int | None = None) -> Source:
    """Return the images without labels."""
    paths = shuffled(sorted(listing.images), seed)
    items = (
        Item(_join(listing.root, path), _key(path), {}, {"image": _join(listing.root, path)})
        for path in paths
    )
    return Source("flat", {"image": "image"}, items, len(paths), notes=listing.notes)


def _walk(folder: str, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files below a folder; `above` are the folders on the way: a link may lead in circles."""
    with os.scandir(folder) as found:
        entries = sorted(
            (entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name
        )

    for entry in entries:
        if not entry.is_dir():
            yield prefix + entry.name
            continue

        stat = entry.stat()
        here = (stat.st_dev, stat.st_ino)
        if here not in above:
            yield from _walk(entry.path, prefix + entry.name + os.sep, (*above, here))


def _labelled(root: str, paths: list[str], labels: dict[str, int]) -> Iterator[Item]:
    for path in paths:
        name = _join(root, path)
        yield Item(name, _key(path), {"label": labels[path.partition(os.sep)[0]]}, {"image": name})


def _join(root: str, path: str) -> str:
    return os.path.join(root, path)  # noqa: PTH118 - once a file: a Path would cost ten times as much


def _key(path: str) -> str:
    """Return the path without its suffix, with slashes on any system."""
    return printable(path[: path.rindex(".")].replace(os.sep, "/"))
