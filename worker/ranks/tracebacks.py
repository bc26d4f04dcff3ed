"""Exception that ended a rank of a user's own program, read from its standard error."""

import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

from worker.ranks.judge import RankError

TAIL_BYTES = 64_000
# Once its ranks have met, torch writes this before every line of an exception.
TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
# A syntax error of the program itself comes without the first line of a traceback. An exception
# during Python's cleanup ends nothing; the error of a DataLoader's worker comes in a second part.
EXCEPTION = re.compile(
    r"^(Exception ignored in.*\n)?"
    r"(?:(?:Original )?Traceback \(most recent call last\):|  File \".*\", line \d+)\n"
    r"(?:[ \t].*\n|\n)*?(\w[\w.]*)(?:: (.*))?$",
    re.MULTILINE,
)
MISSING = re.compile(r"No such file or directory: ['\"](.+?)['\"]|^(\S+) not found\.?$")
CODE = "/job/code/"


def traceback_error(log: Path, left_out: Sequence[str] = ()) -> RankError | None:
    """Find the last exception in a rank's output: its type, its message, and when it was written.

    If the program missed a path that was left out of its archive, the error has a remedy.
    """
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
    """Return advice about a missing path that was left out of the archive; empty if none applies.

    A folder's path in `left_out` ends in `/`.
    """
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
