"""docs/edge-cases.md names for every case files in which a test carries its number."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "edge-cases.md"
ROW = re.compile(r"^\| (\d+b?) \| .+ \| .+ \| (.+) \|$", re.MULTILINE)
FILE = re.compile(r"`(tests/[a-z_/]+\.py)`")
CASES = [*(str(number) for number in range(1, 78)), "18b"]


def numbers_in(path: Path) -> set[str]:
    """Of the cases that tests of a file are about: in their names, or in a comment above them."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^def test_(\w+)", text, re.MULTILINE)
    found = set(re.findall(r"^# Edge case (\d+b?)$", text, re.MULTILINE))
    for name in names:
        found.update(re.findall(r"^(?:edge_)?(\d+b?)_", name))
        if tail := re.search(r"((?:_\d+b?)+)$", name):
            found.update(tail.group(1).strip("_").split("_"))
    return found


def test_every_case_is_on_the_page_once_and_each_named_test_exists() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(number for number, _ in rows) == sorted(CASES)
    for number, cell in rows:
        files = FILE.findall(cell)
        assert files, number
        for name in files:
            assert number in numbers_in(ROOT / name), f"no test of case {number} in {name}"
