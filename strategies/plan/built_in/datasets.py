"""Datasets that need no upload. Torch-free and numpy-free, so that the API may import it."""

from pathlib import Path
from typing import Literal

PYTHON_STDLIB = "python-stdlib"
DIGITS = "digits"
DatasetFormat = Literal["text", "jsonl", "npz", "parquet", "arrow"]
BUILT_IN: dict[str, DatasetFormat] = {PYTHON_STDLIB: "text", DIGITS: "npz"}


def prepare(name: str, cache_dir: Path) -> Path:
    """Return the file of a built-in dataset, creating it on first use.

    Raises ValueError if the name is not a built-in dataset or this machine lacks its source.
    """
    if name == PYTHON_STDLIB:
        from strategies.plan.built_in import stdlib_text

        return stdlib_text.prepare(cache_dir)
    if name == DIGITS:
        from strategies.plan.built_in import digits

        return digits.prepare(cache_dir)
    raise ValueError(f"{name} is not a built-in dataset; known are: {', '.join(BUILT_IN)}")
