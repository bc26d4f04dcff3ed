"""The check of the words that people read finds a struck word wherever it is written."""

from pathlib import Path

import pytest

from tests import wording
from tests.wording import Text, struck, texts


@pytest.mark.slow  # `make check` looks, too
def test_no_struck_word_is_read_by_anybody() -> None:
    assert [(text, found) for text in texts() for found in struck(text)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("dashboard/templates/x.html", "<p>{{ name }} is made anew.</p>"),
        ("dashboard/templates/x.html", '<button title="Plan it anew">Plan</button>'),
        ("dashboard/static/x.js", 'tell("made anew");'),
        ("dashboard/static/x.js", "tell(`${name} is made anew`);"),
        ("api/x.py", 'raise Conflict(f"{name} is made anew.")'),
        ("client/trainyard/cli/x.py", 'def make():\n    """Make it anew."""\n'),
    ],
)
def test_a_struck_word_is_found_in_every_kind_of_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, source: str
) -> None:
    monkeypatch.setattr(wording, "REPOSITORY", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert [word for text in texts() for word, _ in struck(text)] == ["anew"]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("dashboard/templates/x.html", "{# made anew #}"),
        ("dashboard/static/x.js", "// it is made anew"),
        ("api/x.py", 'def make():\n    """Make it anew."""\n    # anew and anew\n'),
    ],
)
def test_comments_and_docstrings_of_code_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, source: str
) -> None:
    monkeypatch.setattr(wording, "REPOSITORY", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert [found for text in texts() for found in struck(text)] == []


@pytest.mark.parametrize(
    ("words", "is_struck"),
    [
        ("Give it back", True),
        ("The lease is given back.", True),
        ("Shut student-17 out", True),
        ("so many nodes of the class", True),
        ("Ranks cannot be told apart.", False),
        ("2 file(s) of .", True),
        ("2 files of .", False),
        ("job_1 or job(id)", False),
    ],
)
def test_a_struck_phrase_is_told_from_a_plain_one(words: str, is_struck: bool) -> None:
    assert bool(list(struck(Text("x", 1, words)))) == is_struck
