"""Check of the words that people read: `python -m tests.wording`.

Pages, scripts, messages and the help of the command line have one word for each act, the usual one.
`STRUCK` lists what is not written any more, each with what stands there instead. Read are the text
and the labels of templates, the strings of scripts, the strings of Python that are sentences, and
the docstrings of commands, which are their help.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PYTHON = ("api", "client", "core", "dashboard", "scheduler", "standalone", "strategies", "worker")
COMMANDS = ("client/trainyard/cli",)
"""Folders whose docstrings are read by people, as the help of commands."""

SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

STRUCK = {
    r"\banew\b": "again, new, or updated",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(is|are|was|were|been) told\b(?! apart)": "notified, shown, or known",
    r"\blooked into\b": "profiled",
    r"\bhand (it|them) on\b": "send it to the person",
    r"\b(give|gives|giving|given|gave) (it |them |the lease )?back\b": "release",
    r"\bshut(s|ting)? (\S+ )?out\b": "disable the account",
    r"\blet (\w+ )?in again\b": "enable the account",
    r"\bforget it\b": "remove",
    r"\bheld against\b": "compared with",
    r"\bfor good\b": "permanently",
    r"\bat most so many\b": "maximum number of",
    r"^so many\b": "number of",
    r"\btake a wish\b|\bthe wish\b": "waitlist entry",
    r"^left behind$": "outputs",
    r"\bnobody yet\b": "no ... yet",
    r"\bnot to be trusted\b": "suspected faulty",
    r"\bworth a thought\b": "warnings",
    r"\b(stands|stand) aside\b": "out of service",
    r"\bit is new\b": "new",
    r"\bon the clock of\b": "in the zone",
    r"\bcharged to no quota\b": "does not use up any quota",
    r"\b(cancel|pause) asked\b": "cancelling, pausing",
    r"\bis no valid\b": "is not a",
    r"\bset anew\b": "replace",
    r"\bdoes not give a reason\b": "no reason was given",
    r"\b(rank|node|file|micro-batch|job|step|lease|line)\((e?s)\)": "the counted plural",
}


@dataclass(frozen=True)
class Text:
    """Text that people read, and the place where it is written."""

    path: str
    line: int
    words: str


def texts() -> Iterator[Text]:
    """Yield all text of the repository that people read in pages, messages or help."""
    for path in sorted((REPOSITORY / "dashboard" / "templates").rglob("*.html")):
        yield from _of_template(path)
    for path in sorted((REPOSITORY / "dashboard" / "static").rglob("*.js")):
        if "vendor" not in path.parts:
            yield from _of_script(path)
    for folder in PYTHON:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield from _of_python(path)


def _name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def _of_template(path: Path) -> Iterator[Text]:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\{#.*?#\}", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(text.split("\n"), 1):
        for quoted in re.findall(r"\"([^\"<>{}]*)\"", line):
            if " " in quoted.strip():
                yield Text(_name(path), number, quoted)
        plain = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "\0", line)
        for part in re.split(r"<[^>]*>|\0", plain):
            if part.strip():
                yield Text(_name(path), number, part.strip())


SCRIPT = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'|`((?:[^`\\]|\\.)*)`",
    re.DOTALL,
)


def _of_script(path: Path) -> Iterator[Text]:
    text = path.read_text(encoding="utf-8")
    for found in SCRIPT.finditer(text):
        words = next((group for group in found.groups() if group), "")
        if " " in words.strip():
            yield Text(_name(path), text.count("\n", 0, found.start()) + 1, words)


def _of_python(path: Path) -> Iterator[Text]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = set() if _name(path).startswith(COMMANDS) else _docstrings(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in documented and " " in node.value.strip():
            yield Text(_name(path), node.lineno, node.value)


def _docstrings(tree: ast.AST) -> set[int]:
    return {
        id(statement.value)
        for node in ast.walk(tree)
        for statement in (node.body if isinstance(node, SCOPES) else [])
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def struck(text: Text) -> Iterator[tuple[str, str]]:
    """Yield the words of a text that are not written any more, with what to write."""
    for pattern, better in STRUCK.items():
        if found := re.search(pattern, text.words, re.IGNORECASE):
            yield found[0], better


def main() -> None:
    """Print every struck word; exit with 1 if there is one."""
    broken = 0
    for text in texts():
        for word, better in struck(text):
            broken += 1
            sys.stdout.write(f"{text.path}:{text.line}: {word!r}; write: {better}\n")
    if broken:
        sys.exit(f"{broken} struck words stand in text that people read")


if __name__ == "__main__":
    main()
