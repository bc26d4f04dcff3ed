"""The server serves its own manual: every file, with links that lead somewhere."""

import re
from pathlib import Path

import pytest

from dashboard.manual import chapter, chapters
from dashboard.spec_form import HELP

DOCS = Path(__file__).parents[2] / "docs"


def test_every_page_for_users_is_served_under_its_title() -> None:
    names = {one.name for one in chapters()}
    files = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert names <= files
    left_out = {name for name in files - names if "/" not in name}
    assert left_out == {name for name in left_out if name.startswith(("benchmarks", "scaling"))}
    for one in chapters():
        assert one.title
        assert "<script" not in one.text
        assert "<img" not in one.text


@pytest.mark.parametrize("name", [one.name for one in chapters()])
def test_links_between_pages_lead_to_pages_of_the_manual(name: str) -> None:
    found = chapter(name)
    assert found is not None
    for target, anchor in re.findall(r'href="/help/([^"#]+)#?([^"]*)"', found.text):
        led_to = chapter(target)
        assert led_to is not None, f"{name}: {target}"
        if anchor:
            assert f'id="{anchor}"' in led_to.text, f"{name}: {target}#{anchor}"


def test_the_groups_of_the_form_have_a_page() -> None:
    assert [page for page in HELP.values() if chapter(page) is None] == []


def test_the_glossary_explains_the_words_that_pages_use() -> None:
    found = chapter("glossary")
    assert found is not None
    words = {
        word for row in re.findall(r"<tr>\s*<td>(.*?)</td>", found.text) for word in row.split(", ")
    }
    asked = ["node class", "hold", "usable hours", "walk-in", "band", "window", "certificate"]
    assert words >= {*asked, "preflight", "bubble", "lease", "slot", "agenda", "tag"}
    rows = [
        row.lower()
        for row in re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), re.M)
    ]
    assert rows[1:] == sorted(rows[1:]), "by the alphabet"


def test_an_unknown_page_is_none() -> None:
    assert chapter("../README") is None
