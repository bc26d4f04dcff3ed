"""`python -m tests.install`: installs what the tests need beside Python, where it may.

Chromium for the browser tests, bubblewrap for those of sandboxes. With root rights from the
distribution's packages, Chromium else through Playwright's own download. What cannot be had is
said, and the tests that need it are skipped and say why.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests import chromium


@dataclass(frozen=True)
class Program:
    """A program that tests need."""

    packages: tuple[str, ...]
    """Of the distribution: the first that it has."""
    tests: str
    find: Callable[[], str | None]
    download: tuple[str, ...] = ()
    """What fetches it without root rights."""


PROGRAMS = (
    Program(
        ("chromium-headless-shell", "chromium"),
        "the browser tests",
        chromium.find,
        (sys.executable, "-m", "playwright", "install", "chromium"),
    ),
    Program(("bubblewrap",), "the tests of the bubblewrap sandbox", lambda: shutil.which("bwrap")),
)


def main() -> None:
    """Install what is missing; say what stays so."""
    missing = [program for program in PROGRAMS if program.find() is None]
    for program in missing:
        say(f"{program.packages[-1]} is missing, for {program.tests}; installing it (once)")
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        apt("update", "-qq")
        for program in missing:
            install(program)
    else:
        for program in missing:
            if program.download:
                subprocess.run(program.download, check=False)
    for program in missing:
        if program.find() is None:
            say(f"{program.packages[-1]} could not be installed: {program.tests} will be skipped.")


def install(program: Program) -> None:
    """Install the first of its packages that the distribution has."""
    for package in program.packages:
        if apt("install", "-y", "-qq", "--no-install-recommends", package):
            return


def apt(*arguments: str) -> bool:
    """Run apt-get quietly; return False if it failed."""
    done = subprocess.run(
        ("apt-get", *arguments),
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode == 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
