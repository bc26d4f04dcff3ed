"""Cap of a long log: its first and its last half are kept, and the middle is freed on the disk.

Ranks write into plain files, whether they are read or not. The middle is punched out of such a file
while it grows: every byte keeps its offset, so that shipped pieces can still be identified by the
offset at which they begin.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from core.base.words import size_text

PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01  # linux/falloc.h
STEP = 1 << 20  # bytes that are worth a call
LINE_END = re.compile(rb"[\r\n]")
LONGEST_LINE = 1 << 16  # bytes in which the end of a line is searched

libc = ctypes.CDLL(None, use_errno=True)


class Gap(NamedTuple):
    """Bytes of a log that are left out."""

    start: int
    end: int | None
    """End of the gap; None while the log may grow, whose last half is known only at its end."""


@dataclass
class LogCap:
    """Limit of `cap` bytes on the disk for every log below `folder`."""

    folder: Path
    cap: int
    tell: Callable[[str], None]
    """Function called once for each log that has become too long."""
    given_back: dict[Path, int] = field(default_factory=dict)
    """Offset up to which each log has been freed."""

    def trim(self) -> None:
        """Free the current middle of each log."""
        for path in logs_below(self.folder):
            start, end = self.cap // 2, path.stat().st_size - self.cap // 2
            if end - self.given_back.get(path, start) < min(STEP, self.cap // 4):
                continue
            try:
                # From the gap's beginning each time: the disk frees whole blocks only.
                punch(path, start, end)
            except OSError as error:
                self.tell(f"Long logs cannot be shortened here: {error.strerror}.")
                self.cap = 1 << 62
                return
            if path not in self.given_back:
                self.tell(
                    f"{path.parent.name}/{path.name} is longer than {size_text(self.cap)}: its "
                    "middle is left out, and its last part is sent when the attempt has ended."
                )
            self.given_back[path] = end


def logs_below(folder: Path) -> Iterator[Path]:
    """Return the logs of every rank and of the launcher."""
    return folder.glob("*/*.log")


def gap_of(path: Path, cap: int, *, is_final: bool) -> Gap | None:
    """Return the gap of a log; None if all of it is kept.

    Lines stay whole, so that no part of a secret is left at the edge.
    """
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
    """Return the line that replaces `left_out` bytes."""
    return (
        f"\n[{left_out:,} bytes are left out here: this node keeps {size_text(cap)} of a log, its "
        "beginning and its end]\n"
    )


def punch(path: Path, start: int, end: int) -> None:
    """Free the bytes from `start` to `end` on the disk; they read as zeros. Raises OSError."""
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
