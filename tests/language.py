"""Check of the first word of public docstrings: `python -m tests.language`.

A docstring begins with a verb (functions) or a noun phrase (classes, modules, attributes). One that
begins with a relative pronoun, a bare pronoun or a preposition leaves its subject unnamed, and its
reader has to find it in the code. Run by `make check` on the folders in `FOLDERS`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

FOLDERS = (
    "api",
    "benchmarks",
    "client",
    "core",
    "dashboard",
    "scheduler",
    "simulation",
    "standalone",
    "strategies",
    "worker",
)
"""Folders that obey the rule. To come: tests."""

RELATIVES = (
    "how that what whatever when whenever where wherever whether which whichever while who whoever "
    "whom whose why"
)
PRONOUNS = (
    "anybody anyone anything everybody everyone everything he her here him his it its nobody none "
    "nothing she somebody someone something such their them there these they this those we you your"
)
PREPOSITIONS = (
    "about across after against along among around as at because before behind below beside "
    "between but by during except for from if in inside into like of off on once onto or out "
    "outside over per since so than then though through till to toward towards under unless until "
    "upon with within without"
)
FORBIDDEN = frozenset(f"{RELATIVES} {PRONOUNS} {PREPOSITIONS}".split())
"""First words, in lower case, that no public docstring may have."""


@dataclass(frozen=True)
class Docstring:
    """A docstring of a public module, class, function or attribute."""

    line: int
    text: str

    @property
    def obeys(self) -> bool:
        """True unless the first word is forbidden. A hyphenated word ("In-memory") is one word."""
        first = re.match(r"[\w'-]+", self.text)
        return first is None or first.group().lower() not in FORBIDDEN

    @property
    def beginning(self) -> str:
        """First words, for a message."""
        return " ".join(self.text.split()[:8])


def read_docstrings(source: str) -> Iterator[Docstring]:
    """Yield the public docstrings of a Python module in the order of its syntax tree.

    Public is a module, and what is defined in it, or in a public class of it, under a name without
    a leading underscore. A string below an assignment documents that attribute.
    """
    yield from _read_body(ast.parse(source))


def _read_body(scope: ast.Module | ast.ClassDef) -> Iterator[Docstring]:
    before: ast.AST = scope
    for node in scope.body:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if _may_be_documented(before):
                yield Docstring(node.lineno, text.strip())
            case ast.ClassDef() if _is_public(node.name):
                yield from _read_body(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_public(node.name):
                if docstring := ast.get_docstring(node):
                    yield Docstring(node.body[0].lineno, docstring)
        before = node


def _may_be_documented(node: ast.AST) -> bool:
    match node:
        case ast.Module() | ast.ClassDef():
            return True
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return _is_public(name)
    return False


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def checked_files() -> list[Path]:
    """Return the Python files that must obey the rule, sorted within each folder."""
    return [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def main() -> None:
    """Print each docstring that breaks the rule; exit with 1 if there is one."""
    broken = 0
    for path in checked_files():
        name = path.relative_to(REPOSITORY).as_posix()
        for docstring in read_docstrings(path.read_text(encoding="utf-8")):
            if not docstring.obeys:
                broken += 1
                sys.stdout.write(
                    f"{name}:{docstring.line}: docstring begins {docstring.beginning!r}\n"
                )
    if broken:
        sys.exit(f"{broken} public docstrings name no subject: begin with a verb or a noun phrase")


if __name__ == "__main__":
    main()
