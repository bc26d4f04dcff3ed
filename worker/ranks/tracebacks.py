"""Exception that ended a rank, read from its standard error."""

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
# An exception that nobody caught in a C++ thread, such as NCCL's watchdog, ends the process with
# SIGABRT; the watchdog's own monitor ends it without one.
ABORT = re.compile(
    r"^terminate called after throwing an instance of '([\w:]+)'\n\s*what\(\):\s*(.*)$|"
    r"(Terminating the process after attempting to dump.*)$|"
    r"^(terminate called without an active exception)$",
    re.MULTILINE,
)
# torch 2.13 under Python before 3.14: a thread of gloo that frees the tensor of the last collective
# asks for Python's lock; if Python is ending, it is ended instead, in code that must not be left.
STAYED_IN_GROUP = (
    "This happens at random to a program that ends in its process group of gloo: call "
    "torch.distributed.destroy_process_group() as its last step."
)
MISSING = re.compile(r"No such file or directory: ['\"](.+?)['\"]|^(\S+) not found\.?$")
CODE = "/job/code/"


def traceback_error(log: Path, left_out: Sequence[str] = ()) -> RankError | None:
    """Find the last exception in a rank's output: its type, its message, and when it was written.

    If the program missed a path that was left out of its archive, the error has a remedy.
    """
    text, written_ns = read_tail(log)
    found = [one for one in EXCEPTION.finditer(text) if one[1] is None]
    if not found:
        return abort_error(log)
    message = found[-1][3] or ""
    return RankError(found[-1][2], message, written_ns, remedy=remedy_for(message, left_out))


def abort_error(log: Path) -> RankError | None:
    """Find the C++ exception with which a process aborted; None if its output has none."""
    text, written_ns = read_tail(log)
    found = ABORT.search(text)
    if found is None:
        return None
    if found[4] is not None:
        return RankError("abort", found[4], written_ns, remedy=STAYED_IN_GROUP)
    return RankError(found[1] or "abort", found[2] or found[3], written_ns)


def read_tail(log: Path) -> tuple[str, int]:
    """Return the end of a rank's output without torch's prefixes, and when it was written, in ns.

    Returns an empty text if it cannot be read.
    """
    try:
        with log.open("rb") as file:
            written_ns = os.fstat(file.fileno()).st_mtime_ns
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return "", 0
    return TORCH_PREFIX.sub("", text), written_ns


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
