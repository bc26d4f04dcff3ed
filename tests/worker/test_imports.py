"""What a worker at rest holds in memory."""

import subprocess
import sys

LARGE = {"numpy", "sqlalchemy", "torch"}


def test_a_worker_imports_large_libraries_only_for_work_that_needs_them() -> None:
    code = f"import sys, worker.main; print(sorted({LARGE} & sys.modules.keys()))"
    found = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
