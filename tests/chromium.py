"""Finds Chromium for the browser tests, and says how long they wait for what they expect.

`python -m tests.install` installs it where it may.
"""

import shutil
from pathlib import Path

from playwright.sync_api import expect

expect.set_options(timeout=30_000)  # as long as an action waits; the default is 5 s

# The shell of the browser alone starts and draws with a third less of the processor.
NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def find() -> str | None:
    """Path of a Chromium or Chrome, or None."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    downloads = Path.home() / ".cache" / "ms-playwright"
    found = sorted(downloads.glob("chromium-*/chrome-linux*/chrome"))
    return str(found[-1]) if found else None
