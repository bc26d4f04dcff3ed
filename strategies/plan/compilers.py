"""Compilers that generated kernels need on a node. Torch-free."""

import os
import shlex
import shutil
import sysconfig
from pathlib import Path
from typing import Literal


def why_no_compiler(device: Literal["cpu", "cuda"]) -> str:
    """Return what this machine lacks to build generated kernels; empty if it lacks nothing.

    On GPUs Triton builds its launcher with a C compiler, on CPUs torch.compile builds the kernels
    with a C++ compiler, and both against Python's headers.
    Sources: triton/runtime/build.py, torch/_inductor/cpp_builder.py.
    """
    missing = []
    if device == "cuda" and not _finds(os.environ.get("CC"), "gcc", "clang"):
        missing.append("a C compiler (gcc)")
    if device == "cpu" and not _finds(os.environ.get("CXX"), "g++"):
        missing.append("a C++ compiler (g++)")
    if not python_header().exists():
        missing.append(f"{python_header()} (Debian: python3-dev of this Python)")
    return " and ".join(missing)


def python_header() -> Path:
    """Return the path of the header that every extension of this Python includes."""
    scheme = sysconfig.get_default_scheme()
    # Debian's scheme for packages under /usr/local has no headers.
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    return Path(sysconfig.get_path("include", scheme)) / "Python.h"


def _finds(named: str | None, *usual: str) -> bool:
    """Return True if the compiler that a variable names, or else a usual one, is there."""
    programs = shlex.split(named)[:1] if named else usual
    return any(shutil.which(program) for program in programs)
