"""Reader of a list of people as CSV, which finds every mistake by line and column. Pure.

Columns: `name` is required; `email`, `lab`, `zone` and `role` are known; every other column is an
attribute of that name. An empty field neither sets nor clears a value.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from api.people.schemas import EMAIL
from core.spec.spec import NAME
from core.tables.kinds import Role

USER_NAME = r"^[a-z][a-z0-9_.-]{0,31}$"
KNOWN = ("name", "email", "lab", "zone", "role")
MAX_PEOPLE = 5000
MAX_TEXT = 100
MAX_ATTRIBUTES = 20


@dataclass(frozen=True)
class PersonLine:
    """A person as described by one line. None marks a field that the line leaves empty."""

    line: int
    name: str
    email: str | None
    lab: str | None
    zone: str | None
    role: Role | None
    attributes: dict[str, str]


@dataclass(frozen=True)
class Mistake:
    """A mistake in a list: its line, its column (empty: the whole line), and a sentence."""

    line: int
    column: str
    message: str


def read_people(text: str) -> tuple[list[PersonLine], list[Mistake]]:
    """Return the people of a list, and its mistakes. A list with a mistake should not be used."""
    reader = csv.reader(
        io.StringIO(text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")), strict=True
    )
    people: list[PersonLine] = []
    mistakes: list[Mistake] = []
    try:
        heads = [head.strip() for head in next(reader, [])]
        mistakes += _wrong_heads(heads)
        if mistakes:
            return [], mistakes
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(people) >= MAX_PEOPLE:
                raise csv.Error(f"at most {MAX_PEOPLE} people in one list")
            person, wrong = _person(reader.line_num, heads, cells)
            mistakes += wrong
            if person is not None:
                people.append(person)
    except csv.Error as error:
        mistakes.append(Mistake(max(1, reader.line_num), "", f"This is not valid CSV: {error}."))
    mistakes += _repeated(people)
    return people, mistakes


def _wrong_heads(heads: Sequence[str]) -> list[Mistake]:
    if not heads or heads == [""]:
        return [Mistake(1, "name", "The first line must name the columns; `name` is needed.")]
    mistakes = []
    if "name" not in heads:
        mistakes.append(
            Mistake(
                1,
                "name",
                f"The column `name` is missing; the columns are: {', '.join(heads)[:MAX_TEXT]}.",
            )
        )
    for position, head in enumerate(heads):
        if head in heads[:position]:
            mistakes.append(Mistake(1, head, "This column occurs twice."))
        elif re.fullmatch(NAME, head) is None:
            mistakes.append(
                Mistake(
                    1,
                    head[:MAX_TEXT],
                    "A column name may only have letters, digits, spaces and . _ -",
                )
            )
    if len([head for head in heads if head not in KNOWN]) > MAX_ATTRIBUTES:
        mistakes.append(Mistake(1, heads[-1], f"At most {MAX_ATTRIBUTES} attributes."))
    return mistakes


def _person(
    line: int, heads: Sequence[str], cells: Sequence[str]
) -> tuple[PersonLine | None, list[Mistake]]:
    if len(cells) != len(heads):
        sentence = f"This line has {len(cells)} fields; the first line names {len(heads)}."
        return None, [Mistake(line, heads[min(len(cells), len(heads) - 1)], sentence)]
    given = {head: cell.strip() for head, cell in zip(heads, cells, strict=True)}
    mistakes = [
        Mistake(line, column, message)
        for column, value in given.items()
        if (message := _wrong(column, value))
    ]
    if mistakes:
        return None, mistakes
    person = PersonLine(
        line=line,
        name=given["name"],
        email=given.get("email", "").lower() or None,
        lab=given.get("lab") or None,
        zone=given.get("zone") or None,
        role=Role(given["role"]) if given.get("role") else None,
        attributes={head: value for head, value in given.items() if head not in KNOWN and value},
    )
    return person, []


def _wrong(column: str, value: str) -> str:
    """Return the mistake in a field as a sentence; empty if there is none."""
    if column == "name" and re.fullmatch(USER_NAME, value) is None:
        return (
            f"{value[:40]!r} is not a valid name: use a small letter, then at most 31 small "
            "letters, digits, _ . or -."
        )
    if not value:
        return ""
    if len(value) > MAX_TEXT or not value.isprintable():
        return f"At most {MAX_TEXT} printable characters."
    if column == "email" and re.fullmatch(EMAIL, value) is None:
        return f"{value!r} is not a valid mail address."
    if column == "role" and value not in list(Role):
        return f"{value!r} is not a role. Choose from {', '.join(Role)}."
    if column == "lab" and re.fullmatch(NAME, value) is None:
        return (
            f"{value!r} is not a valid lab name: use at most 63 letters, digits, spaces and . _ -"
        )
    if column == "zone" and not _is_zone(value):
        return f"{value!r} is not a known time zone. Write it like Europe/Berlin or UTC."
    return ""


def _is_zone(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _repeated(people: Sequence[PersonLine]) -> list[Mistake]:
    mistakes = []
    names: dict[str, int] = {}
    emails: dict[str, int] = {}
    for person in people:
        if person.name in names:
            sentence = f"{person.name} is already on line {names[person.name]}."
            mistakes.append(Mistake(person.line, "name", sentence))
        names.setdefault(person.name, person.line)
        if person.email is not None and person.email in emails:
            sentence = f"{person.email} is already on line {emails[person.email]}."
            mistakes.append(Mistake(person.line, "email", sentence))
        if person.email is not None:
            emails.setdefault(person.email, person.line)
    return mistakes
