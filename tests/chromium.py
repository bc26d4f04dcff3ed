"""Finds Chromium for the browser tests; `python -m tests.chromium` installs it where none is found.

With root rights from the distribution's packages, else through Playwright's own download. When
neither works the browser tests are skipped and say why.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Path of a Chromium or Chrome, or None."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    downloads = Path.home() / ".cache" / "ms-playwright"
    found = sorted(downloads.glob("chromium-*/chrome-linux*/chrome"))
    return str(found[-1]) if found else None


def install() -> None:
    """Try to install Chromium."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)  # type: ignore[call-overload]
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(command, check=False, env=environment, **quiet)  # type: ignore[call-overload]
    else:
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False)


if __name__ == "__main__":
    if find() is None:
        sys.stdout.write("No Chromium found for the browser tests; installing one (once)\n")
        install()
        if find() is None:
            sys.stdout.write("It could not be installed: the browser tests will be skipped.\n")
