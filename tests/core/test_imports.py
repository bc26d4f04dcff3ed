"""Modules that no server imports, although libraries of its would."""

import subprocess
import sys

CODE = """
import sys
from core.process.imports import lean_imports
with lean_imports():
    import api.main, scheduler.main, worker.main, standalone.up
unused = {"rich", "rich.console", "pygments", "sqlalchemy.dialects.postgresql"}
print(sorted(unused & sys.modules.keys()))
import rich.console
"""


def test_a_server_on_sqlite_imports_no_rich_and_no_postgresql_and_a_later_command_may() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
