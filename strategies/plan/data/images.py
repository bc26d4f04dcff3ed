"""Labelled images from a .npz file, which is not trusted: checked, unpacked once per node into
plain numbers, and read through a memory map. Torch-free.

An archive holds `images` (N, H, W) or (N, H, W, C) and `labels` (N,); or x_train, y_train and,
optionally, x_test, y_test, like the MNIST of Keras. Pixels are bytes or floats.
"""

import json
import math
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
import numpy.typing as npt

from strategies.plan.data.corpus import forget_oldest, locked, signature
from strategies.plan.data.reading import BadData
from strategies.plan.data.tokens import Integers
from strategies.plan.data.windows import Windows, share_of
from strategies.plan.data.zip_directory import find_directory
from strategies.plan.image_shapes import ImageShape, image_shape, num_classes
from strategies.plan.spec import DataSpec
from strategies.plan.words import counted

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint16]

TRAINING = (("images", "labels"), ("x_train", "y_train"))
TESTS = ("x_test", "y_test")
MOST_CLASSES = 1 << 16
MOST_BYTES = 16 << 30  # unpacked size, where the caller sets no lower limit
PIECE_BYTES = 1 << 20
MOST_EVALUATED_BYTES = 64 << 20  # held-out images are kept in memory as float32

LARGEST_DIRECTORY = 64 << 10


class Array(NamedTuple):
    """One array of an archive, as described by its header."""

    name: str
    member: ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.shape}"


class ImageSet(NamedTuple):
    """Images and their labels."""

    images: Array
    labels: Array


class ArchiveContents(NamedTuple):
    """Description of an archive's content."""

    shape: ImageShape
    is_bytes: bool  # or floats
    num_train: int
    num_tests: int
    classes: int  # the largest label + 1


def check(path: Path, *, most_bytes: int = MOST_BYTES) -> ArchiveContents:
    """Read an archive from start to end. Raises BadData, with the numbers, if it is not usable."""
    with opened(path, most_bytes) as archive:
        return read(archive, images=None, labels=None)


def unpack(path: Path, folder: Path) -> None:
    """Write an archive's numbers to `images` and `labels`, their description to `found.json`."""
    with (
        opened(path, MOST_BYTES) as archive,
        (folder / "images").open("wb") as images,
        (folder / "labels").open("wb") as labels,
    ):
        found = read(archive, images=images, labels=labels)
    (folder / "found.json").write_text(json.dumps(found))


def read(
    archive: ZipFile, *, images: IO[bytes] | None, labels: IO[bytes] | None
) -> ArchiveContents:
    """Check the whole archive and write its numbers, in one form, to the given files."""
    parts = parts_of(archive)
    largest = 0
    for part in parts:
        numbers = labels_of(archive, part.labels)
        largest = max(largest, int(numbers.max()))
        if labels is not None:
            numbers.tofile(labels)
        for piece in pixels_of(archive, part.images):
            if images is not None:
                piece.tofile(images)
    if largest == 0:
        raise BadData(f"{parts[0].labels.name}: all labels are 0; at least 2 classes are needed")
    first = parts[0].images
    height, width, *channels = first.shape[1:]
    return ArchiveContents(
        shape=ImageShape(height, width, *(channels or [1])),
        is_bytes=first.dtype == np.uint8,
        num_train=first.shape[0],
        num_tests=parts[1].images.shape[0] if len(parts) > 1 else 0,
        classes=largest + 1,
    )


@contextmanager
def opened(path: Path, most_bytes: int) -> Iterator[ZipFile]:
    """Open an archive. Raises BadData if its directory, or its unpacked size, is too large."""
    try:
        require_small_directory(path)
        with ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > most_bytes:
                raise BadData(
                    f"unpacked it would take {unpacked:,} bytes; the limit is {most_bytes:,}"
                )
            yield archive
    except (BadZipFile, EOFError, zlib.error, NotImplementedError, struct.error) as error:
        raise BadData(f"is not a valid .npz archive: {error}") from error


def require_small_directory(path: Path) -> None:
    with path.open("rb") as file:
        directory_bytes = find_directory(file).size
    if directory_bytes > LARGEST_DIRECTORY:
        raise BadData(f"its directory has {directory_bytes:,} bytes: too many arrays")


def parts_of(archive: ZipFile) -> list[ImageSet]:
    """Return the images to train on, then the test images if there are any. Checks all headers."""
    members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
    training = [names for names in TRAINING if set(names) <= members.keys()]
    if len(training) != 1:
        listed = ", ".join(sorted(members)[:10]) or "nothing"
        raise BadData(f"has {listed}; it needs images and labels, or x_train and y_train")
    wanted = [*training, TESTS] if set(TESTS) <= members.keys() else training
    parts = [
        ImageSet(*(header(archive, name, members[name]) for name in names)) for names in wanted
    ]
    for part in parts:
        require_images_with_labels(part)
    if len(parts) > 1:
        first, other = parts[0].images, parts[1].images
        if other.shape[1:] != first.shape[1:] or (other.dtype == np.uint8) != (
            first.dtype == np.uint8
        ):
            raise BadData(f"{other} of {other.dtype} differ from {first} of {first.dtype}")
    return parts


def header(archive: ZipFile, name: str, member: ZipInfo) -> Array:
    """Read an array's name, type and shape from its first bytes."""
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or member.flag_bits & 1:
        raise BadData(f"{name} is compressed or encrypted in a way that numpy.savez does not use")
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):  # others may announce headers of 4 GiB
                raise ValueError(f"version {version}")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        except ValueError as error:
            raise BadData(f"{name} is not an array written by numpy.save: {error}") from error
        begins_at = file.tell()
    if dtype.hasobject:
        raise BadData(f"{name} holds Python objects, which are not loaded; save plain numbers")
    if is_fortran and len(shape) > 1:
        raise BadData(f"{name} is in Fortran order; save numpy.ascontiguousarray({name})")
    expected = begins_at + math.prod(shape) * dtype.itemsize
    if member.file_size != expected:
        raise BadData(
            f"{name} {shape} of {dtype} should take {expected:,} bytes, not {member.file_size:,}"
        )
    return Array(name, member, dtype, shape)


def require_images_with_labels(part: ImageSet) -> None:
    images, labels = part
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise BadData(
            f"{images} are {images.dtype}; pixels must be uint8 (0 to 255) or floats, so save "
            f"{images.name}.astype(numpy.uint8) or .astype(numpy.float32)"
        )
    if len(images.shape) not in (3, 4):
        raise BadData(f"{images} must be (N, height, width) or (N, height, width, channels)")
    if min(images.shape) < 1:
        raise BadData(f"{images} are empty")
    if labels.dtype.kind not in "iu" or len(labels.shape) != 1:
        raise BadData(f"{labels} of {labels.dtype} must be integers (N,)")
    if labels.shape[0] != images.shape[0]:
        raise BadData(f"{images.shape[0]:,} {images.name}, but {labels.shape[0]:,} {labels.name}")


def labels_of(archive: ZipFile, array: Array) -> Labels:
    """Return all labels of a part."""
    numbers = np.concatenate(list(pieces_of(archive, array)))
    outside = np.flatnonzero((numbers < 0) | (numbers >= MOST_CLASSES))
    if len(outside):
        at = int(outside[0])
        raise BadData(
            f"{array.name}[{at}] is {numbers[at]}; labels are from 0 to {MOST_CLASSES - 1:,}"
        )
    return numbers.astype(np.uint16)


def pixels_of(archive: ZipFile, array: Array) -> Iterator[Pixels]:
    """Yield the pixels of a part, flattened, in pieces: bytes as they are, floats as float32."""
    done, per_image = 0, math.prod(array.shape[1:])
    for piece in pieces_of(archive, array):
        if array.dtype == np.uint8:
            yield piece
            continue
        with np.errstate(over="ignore"):
            pixels = piece.astype(np.float32)
        broken = np.flatnonzero(~np.isfinite(pixels))
        if len(broken):
            at = done + int(broken[0])
            raise BadData(f"{array.name}[{at // per_image}] has a pixel that is not finite")
        done += len(pixels)
        yield pixels


def pieces_of(archive: ZipFile, array: Array) -> Iterator[npt.NDArray[Any]]:
    """Yield an array, flattened, a MiB at a time. The archive's checksum is verified at its end."""
    with archive.open(array.member) as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        size = PIECE_BYTES - PIECE_BYTES % array.dtype.itemsize
        while piece := file.read(size):
            yield np.frombuffer(piece, dtype=array.dtype)


class Images(Windows):
    """Images as samples of one token each: a window is an image and its label."""

    def __init__(self, pixels: Pixels, labels: Labels, spec: DataSpec, *, num_tests: int) -> None:
        self.pixels, self.labels, self.spec = pixels, labels, spec
        held_out = share_of(len(labels), spec.held_out)
        if num_tests:  # test images come last in the files and are never trained on
            held_out = num_tests if spec.held_out else 0
        self.num_train = len(labels) - (num_tests or held_out)
        self.num_held_out = held_out
        if self.num_train < 1:
            raise BadData(
                f"dataset {spec.dataset} has {counted(len(labels), 'image')}; held_out "
                f"{spec.held_out:g} leaves no image to train on"
            )
        self.most_evaluated = max(self.most_evaluated, MOST_EVALUATED_BYTES // (4 * pixels[0].size))

    def bounds(self, windows: Integers) -> tuple[Integers, Integers]:
        return windows, np.full_like(windows, 2)  # the image, and its label

    def num_labels(self, starts: Integers, lengths: Integers) -> Integers:
        return lengths - 1

    def inputs(self, images: Integers) -> npt.NDArray[np.float32]:
        """Return normalised pixels (B, 1, P).

        Bytes are scaled to 0 to 1, floats taken as they are; then the spec's mean is subtracted and
        the result divided by the spec's deviation.
        """
        pixels = self.pixels[images].reshape(len(images), 1, -1).astype(np.float32)
        if self.pixels.dtype == np.uint8:
            pixels /= np.float32(255)
        pixels -= np.float32(self.spec.pixel_mean)
        pixels /= np.float32(self.spec.pixel_deviation)
        return pixels


def open_images(path: Path, spec: DataSpec, cache_dir: Path) -> Images:
    """Open the images of a dataset.

    Raises BadData, with the numbers, if they do not fit the spec.
    """
    try:
        with locked(cache_dir / "images") as folder:
            kept = folder / signature([path], "npz", "pixels", None)
            if not kept.exists():
                aside = folder / f"{kept.name}.tmp"
                shutil.rmtree(aside, ignore_errors=True)  # left by a process that was killed
                aside.mkdir()
                unpack(path, aside)
                aside.rename(kept)
            os.utime(kept)
            forget_oldest(folder)
            shape, is_bytes, num_train, num_tests, classes = json.loads(
                (kept / "found.json").read_text()
            )
            dtype = np.uint8 if is_bytes else np.float32
            pixels = np.memmap(kept / "images", dtype=dtype, mode="r")
            labels = np.memmap(kept / "labels", dtype=np.uint16, mode="r")
    except BadData as error:
        raise BadData(f"dataset {spec.dataset}: {error}") from error
    found = ArchiveContents(ImageShape(*shape), is_bytes, num_train, num_tests, classes)
    require_as_told(found, spec)
    return Images(pixels.reshape(-1, *found.shape), labels, spec, num_tests=num_tests)


def require_as_told(found: ArchiveContents, spec: DataSpec) -> None:
    """Raise BadData if the images' shape or classes differ from those the plan was made for."""
    told = image_shape(spec)
    if found.shape != told:
        raise BadData(
            f"dataset {spec.dataset} has images of {found.shape}, but data.image_shape says {told}"
        )
    if found.classes > num_classes(spec):
        raise BadData(
            f"dataset {spec.dataset} has labels up to {found.classes - 1}, but data.classes is "
            f"{num_classes(spec)}; make it {found.classes} or more"
        )
