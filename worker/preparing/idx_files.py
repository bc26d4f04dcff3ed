"""Image files as torchvision's MNIST classes read them, written from an uploaded archive.

`datasets.MNIST(root)` reads four files below `root/MNIST/raw`, in the format IDX: a magic number
and the dimensions in big-endian, then the bytes. An archive (`.npz`) of images of bytes with their
tests has the same numbers.
"""

import os
import shutil
import struct
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from strategies.plan.data.images import (
    MOST_BYTES,
    ImageSet,
    labels_of,
    opened,
    parts_of,
    pieces_of,
)

PREFIXES = ("train", "t10k")
IMAGES_MAGIC, LABELS_MAGIC = 0x803, 0x801
MOST_LABELS = 256


def write_idx(archive: Path, folder: Path) -> None:
    """Write the files of an archive into `folder`, which appears once they are complete.

    It stays empty if the archive is not of that kind: no tests, colours, or pixels that are no
    bytes. Raises BadData, and OSError of the disk.
    """
    aside = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    with opened(archive, MOST_BYTES) as content:
        parts = parts_of(content)
        if len(parts) == len(PREFIXES) and all(_is_grey(part) for part in parts):
            for prefix, part in zip(PREFIXES, parts, strict=True):
                _write_part(content, part, aside, prefix)
    os.rename(aside, folder)


def _is_grey(part: ImageSet) -> bool:
    return part.images.dtype == np.uint8 and len(part.images.shape) == 3


def _write_part(archive: ZipFile, part: ImageSet, folder: Path, prefix: str) -> None:
    labels = labels_of(archive, part.labels)
    if labels.max() >= MOST_LABELS:
        return
    with (folder / f"{prefix}-labels-idx1-ubyte").open("wb") as file:
        file.write(struct.pack(">II", LABELS_MAGIC, len(labels)))
        file.write(labels.astype(np.uint8).tobytes())
    with (folder / f"{prefix}-images-idx3-ubyte").open("wb") as file:
        file.write(struct.pack(">IIII", IMAGES_MAGIC, *part.images.shape))
        for piece in pieces_of(archive, part.images):
            file.write(piece.tobytes())
