"""The exception that ended a rank of a person's own program, read from its standard error."""

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from worker.judge import RankError

TAIL_BYTES = 64_000
# Once its ranks have met, torch writes this before every line of an exception.
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
# A syntax error of the program itself comes without the first line of a traceback. What is raised
# while Python clears up ends nothing; the error of a DataLoader's worker is told in a second part.
EXCEPTION = re.compile(
    r"^(Exception ignored in.*\n)?"
    r"(?:(?:Original )?Traceback \(most recent call last\):|  File \".*\", line \d+)\n"
    r"(?:[ \t].*\n|\n)*?(\w[\w.]*)(?:: (.*))?$",
    re.MULTILINE,
)
MISSING = re.compile(r"No such file or directory: ['\"](.+?)['\"]|^(\S+) not found\.?$")
CODE = "/job/code/"


def traceback_error(log: Path, left_out: Sequence[str] = ()) -> RankError | None:
    """Find the last exception in a rank's output: its type, its message, when it was written, and
    what to do where it missed one of the paths that were left out of its archive."""
    try:
        with log.open("rb") as file:
            written_ns = os.fstat(file.fileno()).st_mtime_ns
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = [one for one in EXCEPTION.finditer(TORCH_PREFIX.sub("", text)) if one[1] is None]
    if not found:
        return None
    message = found[-1][3] or ""
    return RankError(found[-1][2], message, written_ns, remedy=remedy_for(message, left_out))


def remedy_for(message: str, left_out: Sequence[str]) -> str:
    """Name the path that a program missed and how to take it along; empty where none of
    `left_out` (a folder's path ends in `/`) is in question."""
    found = MISSING.search(message)
    if found is None:
        return ""
    path = posixpath.normpath((found[1] or found[2]).removeprefix(CODE))
    if path.startswith(("/", "..")):
        return ""
    if any(f"{path}/".startswith(f"{one.rstrip('/')}/") or one.startswith(f"{path}/")
           for one in left_out):  # fmt: skip
        return (
            f"An ignore file kept {path} out of the archive; submit again with "
            f"--include {posixpath.dirname(path) or path}."
        )
    if "./" in left_out:
        return (
            "The program was packed alone; submit again with --folder, which packs all of its "
            f"folder, or with --include {path}."
        )
    return ""
