"""The fake trainer, with imports that load what looks like the CUDA driver and answers nothing."""

import mmap
import sys
import tempfile
from pathlib import Path

from fake_trainer import main

mapped: list[mmap.mmap] = []


def preload() -> None:
    """Map a file with the driver's name."""
    library = Path(tempfile.mkdtemp()) / "libcuda.so.1"
    library.write_bytes(b"no driver")
    with library.open("r+b") as file:
        mapped.append(mmap.mmap(file.fileno(), 0))


if __name__ == "__main__":
    sys.exit(main())
