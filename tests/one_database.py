"""Marks of tests for which `make test` needs one database; the other one is for `make test-all`."""

import pytest


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
