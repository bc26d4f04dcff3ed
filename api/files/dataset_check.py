"""Check of a text while it streams: UTF-8, no NUL, and for JSON lines, each of a form
that can be trained on.

The bytes are kept as they came; nothing is repaired.
"""

import codecs
import json
from dataclasses import dataclass, field

from api.web.errors import InvalidRequest
from api.web.schemas import ProblemItem
from core.base.errors import BadRequest
from core.tables.base import Document
from strategies.plan.data.rows import WrongRow, row_from

MAX_ERRORS = 20
LONG_LINE = 100_000  # characters, from which a line is worth a warning
LONGEST_JSON_LINE = 16 << 20  # bytes held in memory at a time


@dataclass
class DatasetCheck:
    """Checker of a text, fed with the body piece by piece. Its counts are the report."""

    is_jsonl: bool
    lines: int = 0
    characters: int = 0
    warnings: list[str] = field(default_factory=list)
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")()
    )
    _num_bytes: int = 0
    _open_line: int = 0
    _pending: str = ""
    _errors: list[ProblemItem] = field(default_factory=list)

    def feed(self, piece: bytes, *, is_last: bool = False) -> None:
        """Check the next bytes. Raises BadRequest with the wrong byte and its line."""
        zero = piece.find(0)
        if zero >= 0:
            before = self._num_bytes + zero
            line = self.lines + 1 + piece[:zero].count(b"\n")
            raise BadRequest(
                f"This is not text: byte {before:,} (line {line:,}) is NUL. Upload UTF-8 text.",
                code="binary",
                param="body",
            )
        held = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(piece, is_last)
        except UnicodeDecodeError as error:
            offset = self._num_bytes - held + error.start
            line = self.lines + 1 + max(0, error.object[: error.start].count(b"\n"))
            raise BadRequest(
                f"This is not UTF-8: byte {offset:,} (line {line:,}) is "
                f"0x{error.object[error.start]:02x}. Save the file as UTF-8 and upload it again.",
                code="not_utf8",
                param="body",
            ) from error
        self._num_bytes += len(piece)
        if self.is_jsonl:
            self._jsonl(text, is_last=is_last)
        else:
            self._text(text)

    def finish(self) -> None:
        """End the text.

        Raises BadRequest if it was empty or ends within a character, InvalidRequest with the lines
        if some were wrong.
        """
        self.feed(b"", is_last=True)
        if self._open_line and not self.is_jsonl:
            self._end_line()
        if self._errors:
            raise InvalidRequest(self._errors, code="bad_lines")
        if self.characters == 0:
            raise BadRequest(
                "The text is empty. Upload a file with at least one character.",
                code="empty",
                param="body",
            )

    def report(self) -> Document:
        """Return the counts and warnings, to be stored with the dataset."""
        return {"lines": self.lines, "characters": self.characters, "warnings": self.warnings}

    def _text(self, text: str) -> None:
        self.characters += len(text)
        if "\N{REPLACEMENT CHARACTER}" in text:
            line = self.lines + 1 + text[: text.index("\N{REPLACEMENT CHARACTER}")].count("\n")
            self._warn(
                f"Line {line:,} contains a replacement character (U+FFFD): the text "
                "was damaged by an earlier conversion. Convert the original file to "
                "UTF-8 and upload that."
            )
        *ended, rest = text.split("\n")
        for part in ended:
            self._open_line += len(part)
            self._end_line()
        self._open_line += len(rest)

    def _end_line(self) -> None:
        self.lines += 1
        if self._open_line > LONG_LINE:
            self._warn(f"Line {self.lines:,} has {self._open_line:,} characters.")
        self._open_line = 0

    def _jsonl(self, text: str, *, is_last: bool) -> None:
        *ended, self._pending = (self._pending + text).split("\n")
        if is_last and self._pending:
            ended.append(self._pending)
            self._pending = ""
        if len(self._pending) > LONGEST_JSON_LINE:
            raise BadRequest(
                f"Line {self.lines + len(ended) + 1:,} is longer than {LONGEST_JSON_LINE:,} "
                "characters.",
                code="line_too_long",
                param="body",
            )
        for line in ended:
            self._document(line)
            if len(self._errors) == MAX_ERRORS:  # no need for the rest to arrive
                raise InvalidRequest(self._errors, code="bad_lines")

    def _document(self, line: str) -> None:
        self.lines += 1
        where = f"line {self.lines:,}"
        if not line.strip():
            return
        try:
            document = json.loads(line)
        except json.JSONDecodeError as error:
            self._wrong("not_json", f"{where}: not JSON: {error.msg}, column {error.colno}.")
            return
        except (RecursionError, ValueError):
            self._wrong("not_json", f"{where}: not valid JSON.")
            return
        try:
            row = row_from(document)
        except WrongRow as error:
            self._wrong("wrong_row", f"{where} {error}.")
            return
        text = "".join(part.text for part in row.parts)
        try:
            text.encode()
        except UnicodeEncodeError:
            self._wrong(
                "not_utf8",
                f"{where}: the text contains half of a surrogate pair, which is not valid Unicode.",
            )
            return
        if not text:
            self._warn(f"Line {self.lines:,} has an empty text.")
        self.characters += len(text)

    def _wrong(self, code: str, message: str) -> None:
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(ProblemItem(param=f"body.{self.lines}", code=code, message=message))

    def _warn(self, message: str) -> None:
        if len(self.warnings) < MAX_ERRORS:
            self.warnings.append(message)
