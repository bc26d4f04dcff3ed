"""The check of docstrings tells a named subject from an implied one."""

import ast
import re
import subprocess
import sys

import pytest

from tests.language import FOLDERS, FORBIDDEN, REPOSITORY, Docstring, read_docstrings


def test_each_public_docstring_is_read_and_no_private_one() -> None:
    source = '''
"""Module."""

LIMIT = 3
"""Constant."""
_OWN = 4
"""Private constant."""


class Shown:
    """Class."""

    lease_s: float
    """Attribute."""

    def method(self):
        """Method.

        Second paragraph.
        """
        def inner():
            """Inner function."""

    def __repr__(self):
        """Private method."""


class _Hidden:
    """Private class."""

    def method(self):
        """Method of a private class."""


async def function():
    """Function."""
    work()
    """Not a docstring."""
'''
    found = list(read_docstrings(source.lstrip()))
    assert [docstring.text.splitlines()[0] for docstring in found] == [
        "Module.",
        "Constant.",
        "Class.",
        "Attribute.",
        "Method.",
        "Function.",
    ]
    assert found[0].line == 1
    assert found[-1].line == source.lstrip().splitlines().index('    """Function."""') + 1


@pytest.mark.parametrize(
    "text",
    [
        "What becomes of a run.",
        "Whether it fits.",
        "Of row i; of one in files, what was copied there.",
        "It holds no longer.",
        "By id of a lease the booked one.",
        "where, in lower case",
    ],
)
def test_an_unnamed_subject_is_found(text: str) -> None:
    assert not Docstring(1, text).obeys


@pytest.mark.parametrize(
    "text",
    [
        "Return the leases granted.",
        "True if the job fits.",
        "In-memory copy of a file.",
        "`python -m worker.shim`: supervisor of one attempt.",
        "One block of the attention matrix.",
        "",
    ],
)
def test_a_verb_or_a_noun_phrase_is_not(text: str) -> None:
    assert Docstring(1, text).obeys


def test_the_list_is_in_lower_case_and_the_folders_exist() -> None:
    assert all(word == word.lower() for word in FORBIDDEN)
    assert all((REPOSITORY / folder).is_dir() for folder in FOLDERS)


@pytest.mark.slow
def test_the_finished_folders_obey() -> None:
    """`make check` runs the same."""
    checked = subprocess.run(
        [sys.executable, "-m", "tests.language"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_no_sentence_leaves_it_to_its_reader_whether_it_is_one_or_several() -> None:
    undecided = re.compile(r"[a-z]\(e?s\)")
    folders = (
        "api",
        "client",
        "core",
        "dashboard",
        "scheduler",
        "standalone",
        "strategies",
        "worker",
    )
    for path in (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        source = path.read_text()
        if not undecided.search(source):
            continue
        said = [
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not [text for text in said if undecided.search(text)], path
