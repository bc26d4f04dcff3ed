"""First rows of a dataset as a model reads them: tokens, and which of them it learns to write.

They are made in a process of its own (`python -m api.files.row_preview`), as the tokenizers'
library and pyarrow are no part of the API. A request with bytes takes 0.2 s, with a tokenizer of
the tokenizers library some seconds.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

from pydantic import TypeAdapter

from api.files.schemas import RowPreview
from core.base.errors import BadRequest
from strategies.plan.built_in.datasets import DatasetFormat
from strategies.plan.data.compression import BadCompression, opened
from strategies.plan.data.hf_tokenizer import HuggingFace
from strategies.plan.data.reading import BadData, documents
from strategies.plan.data.rows import Row, Text, WrongRow, row_from
from strategies.plan.data.tables import NoTables

LONGEST_S = 60.0
MOST_CHARACTERS = 200_000  # of a row that is tokenized: a book would take seconds
TEXT_ROW = 2000  # characters of a text without rows

Piece = dict[str, object]


def first_rows(
    path: Path, format: str, tokenizer: Path | None, *, count: int, most_tokens: int
) -> list[RowPreview]:
    """Return the first rows of a dataset's file, by a tokenizer's folder or by bytes.

    Raises BadRequest if they cannot be read here.
    """
    told = json.dumps([str(path), format, str(tokenizer or ""), count, most_tokens])
    command = [sys.executable, "-m", "api.files.row_preview", told]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LONGEST_S, cwd=Path(__file__).parents[2]
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(f"the rows were not read within {LONGEST_S:.0f} s") from error
    if done.returncode != 0:
        raise _unreadable("the reader failed")
    answer = json.loads(done.stdout)
    if answer["why"] is not None:
        raise _unreadable(answer["why"])
    return TypeAdapter(list[RowPreview]).validate_python(answer["rows"])


def _unreadable(why: str) -> BadRequest:
    return BadRequest(f"There is no preview: {why}.", code="no_preview")


def examine(
    path: Path, format: DatasetFormat, folder: str, *, count: int, most_tokens: int
) -> dict[str, object]:
    """Return the rows, or why they cannot be read."""
    try:
        tokenizer = HuggingFace.of(Path(folder)) if folder else None
        rows = [
            {"place": place, **_row(row, tokenizer, most_tokens)}
            for place, row in islice(_rows(path, format), count)
        ]
    except (BadData, BadCompression, NoTables, WrongRow, ValueError, ImportError) as error:
        return {"why": str(error)}
    return {"why": None, "rows": rows}


def _rows(path: Path, format: DatasetFormat) -> Iterator[tuple[str, Row]]:
    if format == "text":
        with opened(path) as file:
            text = file.read(4 * TEXT_ROW).decode("utf-8", "ignore")
        yield "beginning", Text(text[:TEXT_ROW])
        return
    for document in documents(path, format, ""):
        yield document.place, row_from(document.content)


def _row(row: Row, tokenizer: HuggingFace | None, most: int) -> dict[str, object]:
    """Return a row's number of tokens and its first tokens; bytes come in runs of one kind."""
    length = sum(len(part.text) for part in row.parts)
    form = type(row).__name__.lower()
    if tokenizer is None:
        size = sum(len(part.text.encode("utf-8", "replace")) for part in row.parts)
        runs = [
            {"text": "".join(part.text for part in parts)[:most], "learned": learned}
            for learned, parts in groupby(row.parts, key=lambda part: part.learned)
        ]
        learned_size = sum(
            len(part.text.encode("utf-8", "replace")) for part in row.parts if part.learned
        )
        cut = any(len(part.text) > most for part in row.parts)
        return {
            "form": form, "num_tokens": size, "num_learned": learned_size, "pieces": runs,
            "is_cut": cut,
        }  # fmt: skip
    if length > MOST_CHARACTERS:
        raise BadData(f"a row has {length:,} characters; rows up to {MOST_CHARACTERS:,} are shown")
    tokens, learned = tokenizer.encode_row(row)
    learned[:1] = False  # no token precedes it to predict it from
    pieces = [
        {"text": tokenizer.decode([int(token)]), "learned": bool(is_learned)}
        for token, is_learned in zip(tokens[:most], learned[:most], strict=True)
    ]
    return {
        "form": form, "num_tokens": len(tokens), "num_learned": int(learned.sum()),
        "pieces": pieces, "is_cut": len(tokens) > most,
    }  # fmt: skip


if __name__ == "__main__":
    place, kind, folder, count, most = json.loads(sys.argv[1])
    json.dump(examine(Path(place), kind, folder, count=count, most_tokens=most), sys.stdout)
