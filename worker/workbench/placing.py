"""Placing of the porter in a workbench's sandbox: copies of its files, and nothing else of
ours."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]  # where the packages lie
FILES = (
    "core/wire/frames.py",
    "worker/workbench/idleness.py",
    "worker/workbench/porter.py",
    "worker/workbench/ssh_server.py",
    "worker/workbench/unwritten.py",
)


def place_porter(folder: Path) -> None:
    """Copy the porter's files to `folder`, with the folders of their packages."""
    for name in FILES:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
