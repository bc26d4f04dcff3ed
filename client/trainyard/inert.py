"""Text written by others (names, reasons, logs, samples), made harmless for a terminal."""

import re
import unicodedata

# Sequences that programs print on purpose: colours, cursor moves (CSI), titles, links (OSC, DCS).
ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
KEPT = {"\n", "\t", "\u200d"}  # U+200D joins emoji and letters of several scripts
# Cc control; Cf invisible formatting, such as text that turns its direction; Cs lone surrogates;
# Zl and Zp line breaks that some terminals obey.
REMOVED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def inert(text: str) -> str:
    """Return `text` without escape sequences, control characters and invisible formatting.

    Line breaks and tabs stay. Markup of rich is not touched: print with `rich.text.Text`.
    """
    if text.isascii() and text.isprintable():
        return text
    text = ESCAPE_SEQUENCE.sub("", text)
    return "".join(c for c in text if c in KEPT or unicodedata.category(c) not in REMOVED)


def one_line(text: str) -> str:
    """Return `inert(text)` with spaces for line breaks and tabs."""
    return inert(text).replace("\n", " ").replace("\t", " ").strip()
