"""Several API processes that start at once on an empty platform."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from api.sign_in.first_start import ensure_link
from core.database.database import Database


def test_apis_that_start_together_print_one_link(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "first-start-link"
    start = functools.partial(ensure_link, database, url="https://ty.example.org", path=path)
    with ThreadPoolExecutor(8) as threads:
        links = {started.result() for started in [threads.submit(start) for _ in range(8)]}
    assert links == {path.read_text().strip()}
