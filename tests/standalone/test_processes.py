"""What the processes of a standalone platform are started with."""

from pathlib import Path

import pytest

from standalone import processes
from standalone.data_directory import DataDirectory
from standalone.processes import describe, listen


@pytest.mark.parametrize(
    ("build", "hidden"), [("2.13.0+cpu", True), ("2.13.0", False), ("2.13.0+cu126", False)]
)
def test_a_worker_whose_torch_lacks_cuda_offers_cpu_slots(
    build: str, hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "version", lambda name: {"torch": build}[name])
    with listen(None) as listener:
        worker = describe(DataDirectory(tmp_path), listener).worker
    assert (worker.environment.get("CUDA_VISIBLE_DEVICES") == "") is hidden
