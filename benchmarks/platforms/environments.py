"""Environments of the measured Python platforms: one each, made once, kept for the next run."""

import os
import subprocess
import sys
import venv
from pathlib import Path


def program(name: str) -> str:
    """Return the path of a program in the environment that has its name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return str(cache / "trainyard-benchmarks" / name / "bin" / name)


def install(name: str, requirement: str) -> str:
    """Make the environment of a program, if there is none; return an empty reason."""
    found = Path(program(name))
    if not found.exists():
        folder = found.parents[1]
        sys.stderr.write(f"installing {requirement} into {folder}\n")
        venv.create(folder, with_pip=True, clear=True)
        python = str(found.with_name("python"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)
    return ""
