"""Rules of .gitignore and .trainyardignore, after git's rules for patterns (gitignore(5)).

git compares bytes, so lines and paths are both read as Latin-1: a character for each byte.
"""

import os
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILES = (".gitignore", ".trainyardignore")
KEPT = re.compile(r"(?: *(?:\\.|[^ \\]|\\$))*")  # a line without the unescaped spaces at its end
CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": " \t\n\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}
NOTHING = "(?!)"


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file in the folder `base` (empty, or ending in /)."""

    base: str
    expression: re.Pattern[str]
    folders_only: bool
    negated: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Return True if the pattern matches `path`, which is relative to the packed folder."""
        if not path.startswith(self.base) or (self.folders_only and not is_folder):
            return False
        below = os.fsencode(path[len(self.base) :]).decode("latin-1")
        return self.expression.fullmatch(below) is not None


def read_patterns(file: Path, base: str) -> list[Pattern]:
    """Read the patterns of an ignore file. Raises OSError if it cannot be read."""
    return patterns_of(file.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("latin-1"), base)


def patterns_of(text: str, base: str) -> list[Pattern]:
    """Read the patterns of a text in which each character stands for a byte."""
    found = []
    for line in text.split("\n"):
        matched = KEPT.match(line.removesuffix("\r"))
        written = matched[0] if matched and not line.startswith("#") else ""
        negated = written.startswith("!")
        written = written.removeprefix("!")
        folders_only = written.endswith("/")
        written = written.removesuffix("/")
        anchored = "/" in written
        written = written.removeprefix("/")
        if not written:
            continue
        expression = ("" if anchored else "(?:.*/)?") + translated(written)
        found.append(Pattern(base, re.compile(expression, re.DOTALL), folders_only, negated))
    return found


def translated(pattern: str) -> str:
    """Translate a pattern to a regular expression.

    `*` and `?` match within a name; `**` matches across slashes if it stands alone between them.
    """
    expression, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            stars = len(pattern) - at - len(pattern[at:].lstrip("*"))
            after = pattern[at + stars : at + stars + 1]
            if stars > 1 and (at == 0 or pattern[at - 1] == "/") and after in ("", "/"):
                expression += "(?:.*/)?" if after else ".*"
                at += stars + len(after)
            else:
                expression, at = expression + "[^/]*", at + stars
        elif character == "[":
            choice, at = _choice(pattern, at + 1)
            expression += choice
        elif character == "\\":
            # A backslash that escapes nothing makes a pattern that matches nothing.
            expression += re.escape(pattern[at + 1]) if at + 1 < len(pattern) else NOTHING
            at += 2
        else:
            expression, at = (
                expression + ("[^/]" if character == "?" else re.escape(character)),
                at + 1,
            )
    return expression


def is_ignored(patterns: Iterable[Pattern], path: str, *, is_folder: bool) -> bool:
    """Return True if the last pattern that matches `path` excludes it."""
    ignored = False
    for pattern in patterns:
        if pattern.matches(path, is_folder=is_folder):
            ignored = not pattern.negated
    return ignored


def _choice(pattern: str, at: int) -> tuple[str, int]:
    """Return the expression for the brackets that open before `at`, and the position after them."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    chosen: set[str] = set()
    first, low = True, ""
    while first or pattern[at : at + 1] != "]":
        first = False
        if at >= len(pattern):
            return NOTHING, at  # never closed
        named = re.compile(r"\[:([^]]*):\]").match(pattern, at)
        if named is not None:
            if named[1] not in CLASSES:
                return NOTHING, len(pattern)
            chosen |= set(CLASSES[named[1]])
            low, at = "", named.end()
            continue
        is_range = pattern[at] == "-" and low != "" and pattern[at + 1 : at + 2] not in ("", "]")
        at += is_range
        at += pattern[at] == "\\"
        if at >= len(pattern):
            return NOTHING, at
        high = pattern[at]
        chosen |= set(map(chr, range(ord(low), ord(high) + 1))) if is_range else {high}
        low, at = "" if is_range else high, at + 1
    if negated:
        chosen = set(map(chr, range(256))) - chosen
    chosen.discard("/")
    listed = "".join(map(re.escape, sorted(chosen)))
    return (f"[{listed}]" if listed else NOTHING), at + 1
