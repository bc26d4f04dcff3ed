"""Which database `make test` runs a test of both on; `make test-all` runs it on the other, too."""

import zlib
from pathlib import Path

import pytest

ROOMS = tuple(Path(__file__).parent / room for room in ("api", "scheduler"))
"""Here tests ask about what is done with rows; in core and standalone, about the databases."""
KINDS = "sqlite", "postgresql"


def _quick_on(quick: str, slow: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "database_url",
        [
            pytest.param(quick, marks=pytest.mark.db),
            pytest.param(slow, marks=[pytest.mark.db, pytest.mark.slow]),
        ],
        indirect=True,
    )


quick_on_postgresql = _quick_on("postgresql", "sqlite")
quick_on_sqlite = _quick_on("sqlite", "postgresql")


def is_for_test_all(item: pytest.Item) -> bool:
    """Of a test that runs on both databases, one half: which of them, its name decides.

    Races run on both, and so does whatever is said to.
    """
    if not isinstance(item, pytest.Function) or not set(ROOMS) & {*item.path.parents}:
        return False
    kind = getattr(item, "callspec", None) and item.callspec.params.get("database_url")
    named = (mark for mark in item.iter_markers("parametrize") if "database_url" in mark.args[0])
    if not kind or any(named) or item.get_closest_marker("race"):
        return False
    name = item.nodeid.replace(KINDS[0], "").replace(KINDS[1], "")
    return kind == KINDS[zlib.crc32(name.encode()) % 2]
