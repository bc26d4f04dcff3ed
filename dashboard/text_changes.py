"""Changes between two texts, line by line, for a page that compares them."""

import difflib
from dataclasses import dataclass
from enum import StrEnum

AROUND = 3  # unchanged lines shown before and after a change


class LineChange(StrEnum):
    """Fate of a line."""

    SAME = "same"
    ADDED = "added"
    REMOVED = "removed"
    SKIPPED = "skipped"
    """Mark in place of unchanged lines that are left out."""


@dataclass(frozen=True)
class ChangedLine:
    """One line of a comparison."""

    change: LineChange
    text: str


def changed_lines(before: str, after: str) -> list[ChangedLine]:
    """Return the changes from one text to another with the lines around them; empty if there are
    none."""
    old, new = before.splitlines(), after.splitlines()
    found: list[ChangedLine] = []
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(
        AROUND
    ):
        _, first, *_ = group[0]
        if found or first > 0:
            found.append(ChangedLine(LineChange.SKIPPED, "…"))
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                found += [ChangedLine(LineChange.SAME, line) for line in old[old_from:old_to]]
                continue
            found += [ChangedLine(LineChange.REMOVED, line) for line in old[old_from:old_to]]
            found += [ChangedLine(LineChange.ADDED, line) for line in new[new_from:new_to]]
    return found
