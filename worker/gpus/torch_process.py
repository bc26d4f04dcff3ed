"""Questions to the installed torch, each in a process of its own.

The worker itself never loads CUDA: its children could no longer use it.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

PATIENCE_S = 180.0  # a cold disk takes a minute to import torch


def ask(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] = os.environ,
    within_s: float = PATIENCE_S,
) -> subprocess.CompletedProcess[bytes]:
    """Run a module of ours that imports torch, to its end. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**environment, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        timeout=within_s,
        check=False,
    )


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of the error output: mostly the exception that ended the process."""
    return "".join(done.stderr.decode(errors="replace").strip().splitlines()[-1:])[:300]
