"""Reader of the scalars in TensorBoard's event files.

A file is a row of records: length (8 bytes), its checksum, the record, its checksum (both masked
CRC-32C); a record is a protocol buffer `Event`. Read here by hand, because the fields are few:
Event 2 step, 5 summary; Summary 1 value; Value 1 tag, 2 simple_value, 8 tensor; TensorProto 1
dtype, 4 tensor_content, 5 float_val, 6 double_val. Source: tensorflow/core/lib/io/record_writer.h,
tensorflow/core/util/event.proto, summary.proto.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

HEADER, FOOTER = 12, 4
LARGEST = 1 << 16  # bytes of a record with scalars; larger ones hold images or a graph
FLOAT, DOUBLE = 1, 2  # values of TensorProto.dtype
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Scalar(NamedTuple):
    """Recorded value."""

    step: int
    tag: str
    value: float


@dataclass(frozen=True)
class Records:
    """Content of a piece of a file; `end` is the byte after the last whole record."""

    scalars: list[Scalar]
    end: int
    is_broken: bool = False
    """True if a checksum was wrong: nothing behind it can be read."""


def read_records(content: bytes) -> Records:
    """Return the scalars of every whole record at the beginning of `content`."""
    at = 0
    scalars: list[Scalar] = []
    while len(content) - at >= HEADER:
        head = content[at : at + 8]
        (length,) = struct.unpack_from("<Q", head)
        (checksum,) = struct.unpack_from("<I", content, at + 8)
        if checksum != masked_crc(head):
            return Records(scalars, at, is_broken=True)
        end = at + HEADER + length + FOOTER
        if end > len(content):
            break
        if length <= LARGEST:
            record = content[at + HEADER : end - FOOTER]
            (checksum,) = struct.unpack_from("<I", content, end - FOOTER)
            if checksum != masked_crc(record):
                return Records(scalars, at, is_broken=True)
            try:
                scalars += scalars_of(record)
            except (ValueError, struct.error):
                return Records(scalars, at, is_broken=True)
        at = end
    return Records(scalars, at)


def record_size(header: bytes) -> int:
    """Return the bytes of the record that begins with these 12, header and checksums included."""
    return HEADER + int(struct.unpack_from("<Q", header)[0]) + FOOTER


def scalars_of(event: bytes) -> list[Scalar]:
    """Return the scalars of one event. Raises ValueError if it is not a valid protocol buffer."""
    step, summaries = 0, []
    for number, value in fields_of(event):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >= 1 << 63 else value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    found = []
    for summary in summaries:
        for number, value in fields_of(summary):
            if number == 1 and isinstance(value, bytes):
                scalar = scalar_of(value, step)
                if scalar is not None:
                    found.append(scalar)
    return found


def scalar_of(value: bytes, step: int) -> Scalar | None:
    """Return a summary's value if it is one number, else None."""
    tag, number = "", None
    for index, content in fields_of(value):
        if not isinstance(content, bytes):
            continue
        if index == 1:
            tag = content.decode("utf-8", "replace")
        elif index == 2 and len(content) == 4:
            number = struct.unpack("<f", content)[0]
        elif index == 8:
            number = number_of(content)
    return Scalar(step, tag, number) if tag and number is not None else None


def number_of(tensor: bytes) -> float | None:
    """Return the number in a tensor of one element; None for any other."""
    kind, content = 0, b""
    for index, value in fields_of(tensor):
        if index == 1 and isinstance(value, int):
            kind = value
        elif index in (4, 5, 6) and isinstance(value, bytes):
            content = value
    if kind == FLOAT and len(content) == 4:
        return float(struct.unpack("<f", content)[0])
    if kind == DOUBLE and len(content) == 8:
        return float(struct.unpack("<d", content)[0])
    return None


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of each field: an int for a varint, else its bytes."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = varint(message, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"field {number} is of unknown kind {kind}")
        if at + size > len(message):
            raise ValueError(f"field {number} is truncated")
        yield number, message[at : at + size]
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and the position after it."""
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise ValueError("a number is truncated")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number is too long")


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C, rotated and shifted as in TensorFlow's records."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _table()
