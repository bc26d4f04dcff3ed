"""Conversion of IDX, the format of MNIST's files, to the .npz file that the server takes.

Source of the format: Y. LeCun's MNIST page. Two zero bytes, the type, the number of dimensions;
every dimension as a big-endian number of 4 bytes; then the values. The numpy header is written by
hand because this client does not depend on numpy.
"""

import gzip
import math
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from trainyard.errors import BadInput
from trainyard.wording import counted

NAMED = re.compile(r"idx[13]-ubyte(\.gz)?$")
UNSIGNED_BYTES = 8  # the only type that MNIST and similar data sets use
CHUNK = 1024 * 1024
ALIGNMENT = 64  # of an .npy file's header
TESTS = ("t10k", "test")  # beginnings of the names of test files


class Idx(NamedTuple):
    """One file: images (N, height, width) or labels (N,)."""

    path: Path
    shape: tuple[int, ...]

    @property
    def array(self) -> str:
        """Name of the array for the server: `x_train`, `y_train`, `x_test` or `y_test`."""
        part = "test" if self.path.name.lower().startswith(TESTS) else "train"
        return f"{'y' if len(self.shape) == 1 else 'x'}_{part}"


def is_idx(path: Path) -> bool:
    """Return True if the name is one of an IDX file.

    Examples: `train-images-idx3-ubyte`, `train-labels.idx1-ubyte.gz`.
    """
    return NAMED.search(path.name.lower()) is not None


def pack(paths: Sequence[Path], target: Path) -> None:
    """Write training images and labels, and those for tests if given, as one .npz file."""
    files = {file.array: file for file in map(read_header, paths)}
    wanted = [{"x_train", "y_train"}, {"x_train", "y_train", "x_test", "y_test"}]
    if len(files) != len(paths) or files.keys() not in wanted:
        listed = ", ".join(path.name for path in paths)
        raise BadInput(
            f"{listed}: name the images and labels to train on, and optionally both for tests "
            f"(their names begin with {' or '.join(TESTS)})."
        )
    with ZipFile(target, "w", ZIP_DEFLATED) as archive:
        for name, file in sorted(files.items()):
            member = ZipInfo(f"{name}.npy")  # without a date: the same files give the same bytes
            member.compress_type = ZIP_DEFLATED
            with archive.open(member, "w") as array:
                array.write(npy_header(file.shape))
                for chunk in values(file):
                    array.write(chunk)


def read_header(path: Path) -> Idx:
    """Read a file's header. Raises BadInput if it is not one that `pack` can convert."""
    with opened(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0":
            raise BadInput(f"{path} is not an IDX file: it begins with {start.hex() or 'nothing'}.")
        kind, dimensions = start[2:]
        if kind != UNSIGNED_BYTES or dimensions not in (1, 3):
            raise BadInput(
                f"{path} has {counted(dimensions, 'dimension')} of type 0x{kind:02x}; images have "
                "3 and labels 1, both of type 0x08 (unsigned bytes)."
            )
        sizes = file.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise BadInput(f"{path} ends within its header.")
    return Idx(path, struct.unpack(f">{dimensions}I", sizes))


def values(file: Idx) -> Iterator[bytes]:
    """Yield the bytes after the header. Raises BadInput if the header promises another number."""
    expected = missing = math.prod(file.shape)
    with opened(file.path) as source:
        source.read(4 + 4 * len(file.shape))
        while chunk := source.read(CHUNK):
            missing -= len(chunk)
            if missing < 0:
                break
            yield chunk
    if missing:
        much = "less" if missing > 0 else "more"
        raise BadInput(
            f"{file.path} has {much} than the {expected:,} bytes that {file.shape} need."
        )


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if it is packed by gzip."""
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if not is_packed:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(IO[bytes], unpacked)
    except (EOFError, gzip.BadGzipFile) as error:
        raise BadInput(f"{path} is a damaged gzip file: {error}.") from error
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}") from error


def npy_header(shape: tuple[int, ...]) -> bytes:
    """Return the header that numpy.save writes before unsigned bytes of a shape."""
    told = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    padding = -(10 + len(told) + 1) % ALIGNMENT
    told += b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(told)) + told
