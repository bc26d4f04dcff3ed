"""Modules that no server imports, although libraries of its would."""

import subprocess
import sys

CODE = """
import sys
from core.process.imports import lean_imports
with lean_imports():
    import api.main, scheduler.main, worker.main, standalone.up
unused = {"rich", "rich.console", "pygments", "opentelemetry.sdk.metrics"}
unused |= {"sqlalchemy.dialects.postgresql"}
print(sorted(unused & sys.modules.keys()))
import rich.console
from opentelemetry.sdk.metrics import MeterProvider
"""


def test_a_server_leaves_out_what_it_never_uses_and_a_later_command_may_import_it() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
