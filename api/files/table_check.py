"""Check of an uploaded table, parquet or arrow, once it is complete: its columns and its rows.

It is read in a process of its own (`python -m api.files.table_check PATH FORMAT`), so that neither
pyarrow's 60 MB nor a hostile file's bugs are in the API.
"""

import json
import subprocess
import sys
from pathlib import Path

from pydantic import TypeAdapter

from api.web.errors import InvalidRequest
from api.web.schemas import ProblemItem
from core.base.errors import BadRequest
from core.tables.base import Document
from strategies.plan.data.rows import WrongRow, row_from
from strategies.plan.data.tables import NoTables, table_rows

MOST_CHECKED = 100_000  # rows: some seconds; a job that reads more checks those too
MAX_ERRORS = 20
LONGEST_S = 120.0


def tables_report(path: Path, format: str) -> Document:
    """Return the report to be stored with a dataset of tables. Raises BadRequest with the rows."""
    command = [sys.executable, "-m", "api.files.table_check", str(path), format]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=LONGEST_S, cwd=Path(__file__).parents[2]
        )
    except subprocess.TimeoutExpired as error:
        raise _bad(f"was not checked within {LONGEST_S:.0f} s: its rows are too long") from error
    if done.returncode != 0:
        raise _bad(f"is not a readable {format} file: its reader failed")
    told = json.loads(done.stdout)
    if told["why"] is not None:
        raise _bad(told["why"])
    if told["errors"]:
        items = TypeAdapter(list[ProblemItem]).validate_python(told["errors"])
        raise InvalidRequest(items, code="bad_rows")
    report: Document = told["report"]
    return report


def _bad(why: str) -> BadRequest:
    return BadRequest(f"The table {why}.", code="bad_table", param="body")


def examine(path: Path, format: str) -> dict[str, object]:
    """Return the report of a table, its wrong rows, or why it cannot be read."""
    rows = characters = 0
    errors: list[dict[str, str]] = []
    warnings: list[str] = []
    try:
        for number, fields in table_rows(path, format):
            if number > MOST_CHECKED or len(errors) == MAX_ERRORS:
                warnings = [f"The first {MOST_CHECKED:,} rows were checked; a job checks the rest."]
                break
            rows = number
            try:
                row = row_from(fields)
                characters += sum(len(part.text) for part in row.parts)
            except WrongRow as error:
                message = f"row {number:,} {error}."
                errors.append({"param": f"body.{number}", "code": "wrong_row", "message": message})
    except NoTables as error:
        return {"why": str(error)}
    if rows == 0:
        return {"why": "has no rows"}
    report = {
        "lines": None if warnings else rows,
        "characters": None if warnings else characters,
        "warnings": warnings,
    }
    return {"why": None, "errors": errors, "report": report}


if __name__ == "__main__":
    json.dump(examine(Path(sys.argv[1]), sys.argv[2]), sys.stdout)
