"""Every example runs on the machines that people have, or is refused for what it is about."""

from pathlib import Path

import pytest
import yaml

from core.spec.planning import plan_training
from core.spec.spec import JobSpec
from strategies.plan.hardware import Hardware
from tests.strategies.support.training_runs import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
A100 = {"device": "cuda", "memory_gib": 39.6, "model": "NVIDIA A100-SXM4-40GB"}
ONE_GPU = Hardware(class_name="a100x1", slots=1, host_memory_gib=64, **A100)
TWO_SLOTS = Hardware(class_name="cpu2", device="cpu", slots=2, memory_gib=16)
EIGHT_GPUS = Hardware(class_name="a100x8", slots=8, host_memory_gib=512, **A100)
MACHINES = {"one GPU": ONE_GPU, "two CPU slots": TWO_SLOTS, "eight GPUs": EIGHT_GPUS}

# Refused on one GPU, with the reason: they show how ranks work together.
NEED_RANKS = {
    "digits-cnn": "nothing_to_verify",
    "gpt-tensor": "needs_tensor_parallel",
    "gpt-tiled": "nothing_to_gather",
    "gpt-ulysses": "needs_context_parallel",
    "gpt-verified": "nothing_to_verify",
    **dict.fromkeys(
        (
            "gpt-gpipe",
            "gpt-interleaved",
            "gpt-interleaved-zero-bubble",
            "gpt-naive",
            "gpt-pipeline",
            "gpt-zero-bubble",
        ),
        "too_many_ranks",
    ),
}
# Refused on less than four or eight slots: they show several axes at once.
NEED_MANY_RANKS = dict.fromkeys(
    ("gpt-3d", "gpt-fsdp-tensor", "gpt-fsdp-tensor-context", "gpt-hsdp", "gpt-usp"),
    "too_many_ranks",
)
NEED_A_GPU = {"gpt-triton": "optimizer_needs_gpu"}
REFUSED = {
    "one GPU": NEED_RANKS | NEED_MANY_RANKS,
    "two CPU slots": NEED_MANY_RANKS | NEED_A_GPU,
    "eight GPUs": {},
}
RANKS = {  # of the examples whose number is left to the planner
    "one GPU": {1},
    "two CPU slots": {2},
    "eight GPUs": {4, 6, 8},  # 4 heads are split over at most 4 ranks; 12 samples over 6
}


def read(path: Path) -> JobSpec:
    return JobSpec.model_validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_the_machine(path: Path, machine: str) -> None:
    job = read(path)
    assert job.name == path.stem
    found = plan_training(job, MACHINES[machine])
    refusal = REFUSED[machine].get(path.stem)
    if refusal is not None:
        assert refusal in [problem.code for problem in found.problems]
        return
    assert found.runnable, found.problems
    assert found.global_batch_size == job.training.global_batch_size
    assert found.device == MACHINES[machine].device
    if job.resources.ranks_per_node == "auto":
        assert found.ranks_per_node in RANKS[machine]
        each = found.micro_batch_size * found.gradient_accumulation_steps
        assert each * found.layout.batch_degree == found.global_batch_size
        assert found.warnings[0].startswith("auto chose "), found.warnings


@pytest.mark.parametrize("machine", [ONE_GPU, EIGHT_GPUS], ids=lambda found: found.class_name)
def test_an_example_may_compute_on_the_cpu_of_a_gpu_node(machine: Hardware) -> None:
    job = read(REPOSITORY / "examples" / "gpt-ddp.yaml")
    asked = {"resources": job.resources.model_copy(update={"device": "cpu"})}
    found = plan_training(job.model_copy(update=asked), machine)
    assert found.runnable, found.problems
    assert (found.device, found.ranks_per_node) == ("cpu", machine.slots)
    assert machine.host_memory_gib is not None
    assert found.capacity_gib == pytest.approx(0.9 * machine.host_memory_gib / machine.slots)


def test_every_example_is_named_by_a_page_on_strategies() -> None:
    pages = "".join(page.read_text() for page in (REPOSITORY / "docs/strategies").glob("*.md"))
    assert [path.name for path in EXAMPLES if path.name not in pages] == []


def test_the_demos_example_is_there() -> None:
    assert "gpt-ddp" in [path.stem for path in EXAMPLES]
