"""Which files .gitignore and .trainyardignore leave out, by git's rules for patterns."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

FILES = (".gitignore", ".trainyardignore")


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file that lies in `base` (empty, or ending in /)."""

    base: str
    expression: re.Pattern[str]
    folders_only: bool
    negated: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Whether it speaks of `path`, which is relative to the packed folder."""
        if not path.startswith(self.base) or (self.folders_only and not is_folder):
            return False
        return self.expression.fullmatch(path[len(self.base) :]) is not None


def patterns_of(text: str, base: str) -> list[Pattern]:
    """The patterns of an ignore file."""
    found = []
    for line in text.splitlines():
        written = line.rstrip()
        if not written or written.startswith("#"):
            continue
        negated = written.startswith("!")
        written = written[negated:].removeprefix("\\")
        folders_only = written.endswith("/")
        written = written.rstrip("/")
        anchored = "/" in written
        written = written.removeprefix("/")
        if not written:
            continue
        expression = "" if anchored else "(?:.*/)?"
        found.append(
            Pattern(base, re.compile(expression + translated(written)), folders_only, negated)
        )
    return found


def translated(pattern: str) -> str:
    """A pattern as a regular expression: `*` and `?` stay within a name, `**` does not."""
    expression, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        if pattern.startswith("**/", at):
            expression, at = expression + "(?:.*/)?", at + 3
            continue
        if pattern.startswith("**", at):
            expression, at = expression + ".*", at + 2
            continue
        end = pattern.find("]", at + 2)
        if character == "[" and end > 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\")
            inner = f"^{inner[1:]}" if inner.startswith("!") else inner
            expression, at = f"{expression}[{inner}]", end + 1
            continue
        expression += {"*": "[^/]*", "?": "[^/]"}.get(character, re.escape(character))
        at += 1
    return expression


def is_ignored(patterns: Iterable[Pattern], path: str, *, is_folder: bool) -> bool:
    """What the last pattern that speaks of `path` says."""
    ignored = False
    for pattern in patterns:
        if pattern.matches(path, is_folder=is_folder):
            ignored = not pattern.negated
    return ignored
