"""Frames of a workbench's tunnel: streams of bytes with credit, over one connection of its node.

A frame is one message: its kind, its stream, its content. Only the API opens streams, and it names
them by random numbers. A side may send WINDOW bytes of DATA on a stream, and as many more as the
other side has given it CREDIT for. Pure, and with the standard library only: the porter runs inside
the sandbox with a copy of this file.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct("!BQ")
IDLE_REPORT = struct.Struct("!?I")
MAX_CONTENT = 32 << 10  # small, so that a key waits for no more than this of a download
MAX_FRAME = HEADER.size + MAX_CONTENT
WINDOW = 256 << 10


class FrameKind(IntEnum):
    """Kind of a frame."""

    HELLO = 0
    """A connection begins: the porter drops all streams, and answers with the same number in place
    of the stream. What arrives before that answer is of the connection before."""
    OPEN = 1
    """Open a stream. The content is JSON, and says to what."""
    OPENED = 2
    """Answer to OPEN. The content is JSON, with facts about what is open."""
    DATA = 3
    CREDIT = 4
    """Leave to send so many bytes more, a number of four bytes."""
    RESIZE = 5
    """Rows and columns of a terminal's window, two bytes each."""
    CLOSE = 6
    """The stream is over. The content is JSON, and says why."""
    IDLE = 7
    """The workbench is idle, or in use again, and of no stream. The content is an `IdleReport`."""
    STIRRED = 8
    """Word that its owner is in front of the program in the browser, which the porter cannot see.
    Of no stream."""


class Frame(NamedTuple):
    """A frame that has arrived."""

    kind: FrameKind
    stream: int
    content: bytes


class IdleReport(NamedTuple):
    """Report of a porter about the use of its workbench."""

    is_idle: bool
    after_s: int
    """Seconds without use after which it is idle."""


class BadFrame(ValueError):
    """A message that is not a frame."""


def pack(kind: FrameKind, stream: int, content: bytes = b"") -> bytes:
    """Return a frame as one message."""
    assert len(content) <= MAX_CONTENT
    return HEADER.pack(kind, stream) + content


def unpack(message: bytes) -> Frame:
    """Return the frame in a message. Raises BadFrame."""
    if not HEADER.size <= len(message) <= MAX_FRAME:
        raise BadFrame(f"a frame has {HEADER.size} to {MAX_FRAME} bytes, not {len(message)}")
    kind, stream = HEADER.unpack_from(message)
    try:
        return Frame(FrameKind(kind), stream, bytes(message[HEADER.size :]))
    except ValueError as error:
        raise BadFrame(f"there is no kind of frame {kind}") from error


def pack_credit(stream: int, num_bytes: int) -> bytes:
    """Return a frame that allows the other side so many bytes more."""
    return pack(FrameKind.CREDIT, stream, struct.pack("!I", num_bytes))


def credit_in(content: bytes) -> int:
    """Return the number of bytes in a CREDIT. Raises BadFrame."""
    if len(content) != 4:
        raise BadFrame("a credit has 4 bytes")
    return int.from_bytes(content)


def pack_idle(report: IdleReport) -> bytes:
    """Return a frame that says whether the workbench is idle."""
    return pack(FrameKind.IDLE, 0, IDLE_REPORT.pack(report.is_idle, report.after_s))


def idle_in(content: bytes) -> IdleReport:
    """Return the report in an IDLE. Raises BadFrame."""
    if len(content) != IDLE_REPORT.size:
        raise BadFrame(f"a report has {IDLE_REPORT.size} bytes")
    return IdleReport(*IDLE_REPORT.unpack(content))


def pack_resize(stream: int, rows: int, columns: int) -> bytes:
    """Return a frame with the size of a terminal's window."""
    return pack(FrameKind.RESIZE, stream, struct.pack("!HH", rows, columns))


def size_in(content: bytes) -> tuple[int, int]:
    """Return rows and columns in a RESIZE. Raises BadFrame."""
    if len(content) != 4:
        raise BadFrame("the size of a window has 4 bytes")
    rows, columns = struct.unpack("!HH", content)
    return rows, columns
