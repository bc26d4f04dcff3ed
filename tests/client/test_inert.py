"""Whatever others wrote, a terminal only ever shows it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.inert import inert, one_line


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2\x1b\\sixel", "sixel"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("\x1b", ""),
        ("a\rb\x08c\x00d\x7fe", "abcde"),
        ("safe\u202egnp.exe", "safegnp.exe"),
        ("a\u2066b\u2069c\ufeffd", "abcd"),
        ("a\u2028b", "ab"),
        ("\ud800x", "x"),
        ("[bold red]markup[/]", "[bold red]markup[/]"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("grüße 日本 👩\u200d🔬", "grüße 日本 👩\u200d🔬"),
    ],
)
def test_control_is_taken_out_and_text_stays(hostile: str, shown: str) -> None:
    assert inert(hostile) == shown


@given(st.text(st.characters()))
def test_nothing_that_controls_is_left(text: str) -> None:
    for character in inert(text):
        category = unicodedata.category(character)
        assert character in "\n\t\u200d" or category not in ("Cc", "Cf", "Cs", "Zl", "Zp")


@given(st.text(st.characters()))
def test_making_inert_twice_changes_nothing(text: str) -> None:
    assert inert(inert(text)) == inert(text)


@given(st.text(st.characters()))
def test_one_line_is_one_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
