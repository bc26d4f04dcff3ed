"""Every example is a job that a small CPU node can run."""

from pathlib import Path

import pytest
import yaml
from training_runs import REPOSITORY

from core.spec import JobSpec
from strategies.hardware import Hardware
from strategies.planner import plan

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
LAPTOP = Hardware(class_name="laptop", device="cpu", slots=2, memory_gib=4)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_run_on_two_cores(path: Path) -> None:
    job = JobSpec.model_validate(yaml.safe_load(path.read_text()))
    found = plan(
        job,
        nodes=job.resources.nodes,
        ranks_per_node=job.resources.ranks_per_node,
        hardware=LAPTOP,
    )
    assert found.runnable, found.problems
    assert job.name == path.stem


def test_the_demos_example_is_there() -> None:
    assert "gpt-ddp" in [path.stem for path in EXAMPLES]
