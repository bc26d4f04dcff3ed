"""Every example is a job that a CPU node of eight slots can run, or that a GPU node can."""

from pathlib import Path

import pytest
import yaml

from core.spec.spec import JobSpec
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from tests.strategies.support.training_runs import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
WORKSTATION = Hardware(class_name="workstation", device="cpu", slots=8, memory_gib=16)


NEED_A_GPU = ("gpt-triton",)
GPU_NODE = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_can_run(path: Path) -> None:
    job = JobSpec.model_validate(yaml.safe_load(path.read_text()))
    found = plan(
        job,
        nodes=job.resources.nodes,
        ranks_per_node=job.resources.ranks_per_node,
        hardware=GPU_NODE if path.stem in NEED_A_GPU else WORKSTATION,
    )
    assert found.runnable, found.problems
    assert job.name == path.stem


def test_every_example_is_named_by_a_page_on_strategies() -> None:
    pages = "".join(page.read_text() for page in (REPOSITORY / "docs/strategies").glob("*.md"))
    assert [path.name for path in EXAMPLES if path.name not in pages] == []


def test_the_demos_example_is_there() -> None:
    assert "gpt-ddp" in [path.stem for path in EXAMPLES]
