"""Shards of a dataset, read in the order of their paths: text in pieces, and documents with their
places. Torch-free."""

import codecs
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from strategies.plan.built_in.datasets import DatasetFormat as Format
from strategies.plan.data.compression import BadCompression, compression_in, opened
from strategies.plan.data.rows import Row, WrongRow, row_from
from strategies.plan.data.tables import NoTables, table_rows

PIECE_BYTES = 1 << 20  # read at a time, so that a large text never lies in memory as a whole


class BadData(Exception):
    """Dataset that cannot be trained on."""


class Document(NamedTuple):
    """Line of a file, or row of a table."""

    place: str
    """Words for it, with its file and number."""
    content: object
    line_at: int | None
    """Byte at which its line begins; None: it cannot be found again by itself."""


class ShardSpan(NamedTuple):
    """Part of a shard that begins and ends at ends of lines; by default all of it."""

    shard: int
    """Number of the shard."""
    begin: int = 0
    """Byte of its first line."""
    end: int | None = None
    """Byte behind its last line; None: it is the file's last."""


WHOLE = ShardSpan(0)


class PlacedRow(NamedTuple):
    """Row, with the place of its document."""

    place: str
    row: Row
    line_at: int | None


def shards_of(path: Path) -> list[Path]:
    """Return the files of a dataset, sorted by their paths."""
    if not path.is_dir():
        return [path]
    files = (file for file in path.rglob("*") if file.is_file())
    return sorted(files, key=lambda file: file.relative_to(path).as_posix())


def pieces_of_text(shards: Sequence[Path]) -> Iterator[str]:
    """Yield a UTF-8 text in pieces, the same however it is divided into shards.

    Raises BadData naming the first invalid byte.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    before, piece = 0, b"-"
    pieces = pieces_of_bytes(shards)
    while piece:
        piece = next(pieces, b"")
        unfinished = len(decoder.getstate()[0])  # a character may lie across two pieces
        try:
            yield decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise BadData(
                f"{byte_place(shards, before - unfinished + error.start)} "
                f"(0x{error.object[error.start]:02x}) is not valid UTF-8; save the text "
                "as UTF-8, or use tokenizer bytes"
            ) from error
        before += len(piece)


def pieces_of_bytes(shards: Sequence[Path]) -> Iterator[bytes]:
    """Yield what all shards hold, in pieces of PIECE_BYTES, the last one smaller."""
    pending = bytearray()
    for number, path in enumerate(shards):
        try:
            with opened(path) as file:
                while piece := file.read(PIECE_BYTES - len(pending)):
                    pending += piece
                    if len(pending) == PIECE_BYTES:
                        yield bytes(pending)
                        pending.clear()
        except BadCompression as error:
            raise BadData(f"{file_words(shards)[number] or 'the dataset '}{error}") from error
    if pending:
        yield bytes(pending)


def byte_place(shards: Sequence[Path], at: int) -> str:
    """Return the words for byte number `at` of all shards, counted in its own file."""
    for file, path in zip(file_words(shards), shards, strict=True):
        size = unpacked_size(path)
        if at < size:
            return f"{file}byte {at:,} of {size:,}"
        at -= size
    return f"byte {at:,} behind the end"


def unpacked_size(path: Path) -> int:
    """Return the number of bytes that a file holds; a compressed one is read for it."""
    if compression_in(path) is None:
        return path.stat().st_size
    with opened(path) as file:
        return sum(len(piece) for piece in iter(lambda: file.read(PIECE_BYTES), b""))


def file_words(shards: Sequence[Path]) -> list[str]:
    """Return the words that name each shard in a message, nothing if it is the only one."""
    if len(shards) == 1:
        return [""]
    common = os.path.commonpath({shard.parent for shard in shards})
    return [f"{shard.relative_to(common)} " for shard in shards]


def whole_lines(pieces: Iterator[str]) -> Iterator[str]:
    """Yield the same text in pieces that end at line ends."""
    rest = ""
    for piece in pieces:
        lines, end, rest_of_line = (rest + piece).rpartition("\n")
        rest = rest_of_line
        if end:
            yield lines + end
    yield rest


def rows(shards: Sequence[Path], format: Format) -> Iterator[PlacedRow]:
    """Yield every line, or row of a table, that is not blank.

    Raises BadData naming the place of a bad one.
    """
    for path, file in zip(shards, file_words(shards), strict=True):
        yield from rows_of(path, format, file)


def rows_of(
    path: Path, format: Format, file: str, span: ShardSpan = WHOLE, *, lines_before: int = 0
) -> Iterator[PlacedRow]:
    """Yield the rows of one file or a span of it; `file` begins every place. Raises BadData."""
    try:
        for place, content, line_at in documents(
            path, format, file, span, lines_before=lines_before
        ):
            try:
                yield PlacedRow(place, row_from(content), line_at)
            except WrongRow as error:
                raise BadData(f"{place} {error}") from error
    except (NoTables, BadCompression) as error:
        raise BadData(f"{file or 'the dataset '}{error}") from error


def documents(
    path: Path, format: Format, file: str, span: ShardSpan = WHOLE, *, lines_before: int = 0
) -> Iterator[Document]:
    """Yield each line or row of one file, or lines of a span of it; `file` begins every place.

    Raises BadData, NoTables, BadCompression.
    """
    if format in ("parquet", "arrow"):
        for number, fields in table_rows(path, format):
            yield Document(f"{file}row {number}", fields, None)
        return
    can_seek = compression_in(path) is None
    with opened(path) as lines:
        at = span.begin
        if at > 0:
            lines.seek(at)
        for number, line in enumerate(lines, start=lines_before + 1):
            if at == span.end:
                return
            if line.strip():
                try:
                    content = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise BadData(f"{file}line {number} is not JSON: {error}") from error
                yield Document(f"{file}line {number}", content, at if can_seek else None)
            at += len(line)
