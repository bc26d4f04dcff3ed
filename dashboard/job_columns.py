"""Columns of the list of jobs: which there are, and which of them a viewer has chosen. Pure."""

from collections.abc import Iterable, Mapping, Sequence

COLUMNS: Mapping[str, str] = {
    "layout": "Layout, node",
    "data": "Data",
    "submitted": "Submitted",
    "progress": "Progress",
    "ran": "Run time",
    "finish": "Finish",
    "curve": "Curve",
    "loss": "Loss, or the chosen metric",
    "speed": "Tokens/s",
}
"""Word of each column, in the order in which they stand; state, name and reason always do."""
USUAL = ("layout", "progress", "finish", "curve", "loss", "speed")
ALWAYS = 3
"""Columns that no choice removes: selection, state, name."""


def chosen_columns(kept: Sequence[str] | None) -> list[str]:
    """Return the columns that a list shows, in order; of None the usual ones. A column that this
    version does not know is left out."""
    wanted = USUAL if kept is None else kept
    return [name for name in COLUMNS if name in wanted]


def sent_columns(fields: Iterable[tuple[str, str]]) -> list[str]:
    """Return the columns that a form names."""
    return chosen_columns([value for name, value in fields if name == "column"])
