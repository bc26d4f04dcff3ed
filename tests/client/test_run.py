"""`from trainyard.run import log`: one file that needs nothing and does nothing outside a job."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard import run


def test_numbers_go_to_the_run_folder_from_the_first_rank_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINYARD_RUN", raising=False)
    run.log(step=1, loss=1)
    monkeypatch.setenv("TRAINYARD_RUN", str(tmp_path))
    run.log(step=1, loss=1, accuracy=0.5)
    run.log(2, loss=float("nan"))
    monkeypatch.setenv("RANK", "1")
    run.log(step=3, loss=1)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert json.loads(lines[0]) == {"step": 1, "loss": 1.0, "accuracy": 0.5}


def test_it_imports_the_standard_library_only() -> None:
    source = Path(run.__file__)
    code = f"import runpy, sys; runpy.run_path({str(source)!r}); print(sorted(sys.modules))"
    seen = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "httpx2" not in seen
    assert "trainyard" not in seen
