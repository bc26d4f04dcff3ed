"""Style sheets, scripts and vendored libraries."""

import gzip
import re
from hashlib import sha256

import pytest
from starlette.testclient import TestClient

from dashboard.static_files import ROOT

VENDORED = ROOT / "vendor" / "VENDORED.md"


def test_vendored_files_are_the_ones_their_list_names() -> None:
    listed = dict(re.findall(r"\| (\S+/\S+) \| ([0-9a-f]{64}) \|", VENDORED.read_text()))
    found = {
        path.relative_to(VENDORED.parent).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in VENDORED.parent.rglob("*")
        if path.is_file() and path != VENDORED
    }
    assert found == listed


def test_a_file_is_sent_once_and_then_only_asked_about(page: TestClient) -> None:
    first = page.get("/static/style.css")
    assert first.status_code == 200
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    again = page.get("/static/style.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_what_a_page_names_is_kept_by_browsers_for_ever(page: TestClient) -> None:
    named = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.get("/jobs").text)
    assert len(named) >= 6
    for address in named:
        answer = page.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    for address in ("/static/000000000000/style.css", "/static/style.css"):
        answer = page.get(address)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")


@pytest.mark.parametrize("name", ["../site_map.py", "..%2fsite_map.py", "nothing.js", "vendor"])
def test_only_files_of_the_list_are_served(page: TestClient, name: str) -> None:
    assert page.get(f"/static/{name}").status_code == 404


def test_dark_values_are_the_same_in_both_places() -> None:
    """They stand twice, because CSS cannot share them between a query and an attribute."""
    css = (ROOT / "tokens.css").read_text()
    by_system = re.search(r'not\(\[data-theme="light"\]\) \{(.*?)\n  \}', css, re.DOTALL)
    by_choice = re.search(r'\n  :root\[data-theme="dark"\] \{(.*?)\n  \}', css, re.DOTALL)
    assert by_system is not None
    assert by_choice is not None
    assert by_system[1].split() == by_choice[1].split()


def test_all_that_any_page_loads_weighs_less_than_300_kb() -> None:
    loaded = [path for path in ROOT.rglob("*") if path.suffix in (".css", ".js", ".svg")]
    weight = sum(len(gzip.compress(path.read_bytes())) for path in loaded)
    assert len(loaded) > 20
    assert weight < 300_000, f"{weight:,} bytes"
