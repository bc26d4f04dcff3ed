"""Names in a sentence. Pure."""

from collections.abc import Sequence


def in_words(names: Sequence[str]) -> str:
    """`north-01`, `north-01 and north-02`, `north-01, north-02 and 6 more`."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
