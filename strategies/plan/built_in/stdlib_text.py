"""Built-in text: the source files of the running Python's standard library, as one file.

Real text that needs no download. Torch-free and numpy-free, so that the API and the worker may
prepare it too.
"""

import sys
import sysconfig
from pathlib import Path

from strategies.plan.durable_files import write_atomically

FOLDERS = ("", "asyncio")  # about 5 MB
LEAST_BYTES = 100_000  # fewer means a Python without its sources


def prepare(cache_dir: Path) -> Path:
    """Return the text file, written atomically once per Python version."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    target = cache_dir / f"python-stdlib-{version}.txt"
    if target.exists():
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    text = read_sources(Path(sysconfig.get_path("stdlib")))
    write_atomically(target, text)
    return target


def read_sources(stdlib: Path) -> bytes:
    """Return the sorted source files, one after the other.

    Raises ValueError if they are missing.
    """
    paths = [path for folder in FOLDERS for path in sorted((stdlib / folder).glob("*.py"))]
    text = b"\n".join(path.read_bytes() for path in paths)
    if len(text) < LEAST_BYTES:
        raise ValueError(
            f"{stdlib} holds only {len(text)} bytes of Python sources; this Python came without "
            "its standard library's text, so upload a dataset of your own"
        )
    return text
