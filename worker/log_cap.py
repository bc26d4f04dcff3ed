"""A log that is too long: its first and its last half stay, and the disk gets the middle back.

Ranks write into plain files, whoever reads them or not. The middle is punched out of such a file
while it grows: every byte keeps its place, so that what is shipped can still be told by where it
begins.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01  # linux/falloc.h
STEP = 1 << 20  # bytes that are worth a call
LINE_END = re.compile(rb"[\r\n]")
LONGEST_LINE = 1 << 16  # bytes in which the end of a line is looked for

libc = ctypes.CDLL(None, use_errno=True)


class Gap(NamedTuple):
    """The bytes of a log that nobody is to read."""

    start: int
    end: int | None
    """None while the log may grow: only its end tells what its last half is."""


@dataclass
class LogCap:
    """Holds every log below `folder` to `cap` bytes of the disk."""

    folder: Path
    cap: int
    tell: Callable[[str], None]
    """Called once for each log that has become too long."""
    given_back: dict[Path, int] = field(default_factory=dict)
    """Up to which byte."""

    def trim(self) -> None:
        """Give back what lies between the halves of each log now."""
        for path in logs_below(self.folder):
            start, end = self.cap // 2, path.stat().st_size - self.cap // 2
            if end - self.given_back.get(path, start) < min(STEP, self.cap // 4):
                continue
            try:
                # From its beginning each time: the disk takes whole blocks only.
                punch(path, start, end)
            except OSError as error:
                self.tell(f"The middle of long logs can't be left out here: {error.strerror}.")
                self.cap = 1 << 62
                return
            if path not in self.given_back:
                self.tell(
                    f"{path.parent.name}/{path.name} is longer than {size_text(self.cap)}: its "
                    "middle is left out, and its last part is told when the attempt has ended."
                )
            self.given_back[path] = end


def logs_below(folder: Path) -> Iterator[Path]:
    """The logs of every rank and of the launcher."""
    return folder.glob("*/*.log")


def gap_of(path: Path, cap: int, *, is_final: bool) -> Gap | None:
    """What is left out of a log; None where all of it is kept. Lines stay whole, so that no part of
    a secret is left standing at the edge."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size <= cap:
                return None
            before = max(0, cap // 2 - LONGEST_LINE)
            file.seek(before)
            ends = [found.end() for found in LINE_END.finditer(file.read(cap // 2 - before))]
            start = before + ends[-1] if ends else cap // 2
            if not is_final:
                return Gap(start, None)
            after = size - cap // 2
            file.seek(after)
            first = LINE_END.search(file.read(min(LONGEST_LINE, cap // 2)))
            return Gap(start, after + first.end() if first else after)
    except FileNotFoundError:
        return None


def note_of(left_out: int, cap: int) -> str:
    """What stands where `left_out` bytes are left out, a line of its own."""
    return (
        f"\n[{left_out:,} bytes are left out here: of a log this node keeps {size_text(cap)}, its "
        "beginning and its end]\n"
    )


def size_text(size: int) -> str:
    """`128 MiB`."""
    return f"{size / (1 << 20):g} MiB"


def punch(path: Path, start: int, end: int) -> None:
    """Give the bytes from `start` to `end` back to the disk; they read as zeros. OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        done = libc.fallocate(
            descriptor,
            PUNCH_HOLE | KEEP_SIZE,
            ctypes.c_int64(start),
            ctypes.c_int64(end - start),
        )
        if done != 0:
            number = ctypes.get_errno() or errno.EOPNOTSUPP
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
