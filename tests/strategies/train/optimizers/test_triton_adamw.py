"""AdamW in Triton: its numbers through Triton's interpreter (interpreted.py), its code for a GPU,
where it may run, and on a GPU the kernel itself.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import BadCheckpoint
from strategies.train.checkpoints.checkpoint import require_same_model
from tests.strategies.support.training_runs import HARDWARE, HERE, REPOSITORY, make_spec

GPU = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)
CASES = [
    "the_update_is_adamw_but_for_rounding",
    "state_has_the_names_of_torchs_adamw",
    "a_training_may_change_from_one_to_the_other",
    "parts_that_are_not_contiguous_are_updated_in_place",
    "a_rank_updates_its_part_of_a_dtensor",
    "late_gradients_and_missing_ones_count_their_own_steps",
]


# In one xdist worker: the interpreter takes ten seconds, and each worker would start its own.
in_one_worker = pytest.mark.xdist_group("interpreted")


@pytest.fixture(scope="module")
def interpreted() -> dict[str, str | None]:
    """What became of each case of interpreted.py."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "interpreted.py")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


@in_one_worker
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_interpreted(case: str, interpreted: dict[str, str | None]) -> None:
    assert interpreted[case] is None, interpreted[case]


@in_one_worker
@pytest.mark.slow
def test_every_case_is_asked_for(interpreted: dict[str, str | None]) -> None:
    assert list(interpreted) == CASES


@pytest.mark.parametrize("aligned", [True, False])
def test_it_compiles_for_a_gpu_and_reads_four_numbers_at_a_time(
    aligned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton needs no GPU to compile for one; wide reads are what makes the kernel fast."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from strategies.train.optimizers.triton_adamw import BLOCK, EPSILON, adamw

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    numbers = ("decay", "step_size", "correction", "weight1", "beta2", "weight2")
    constants = {"EPSILON": EPSILON, "BLOCK": BLOCK, "ALIGNED": aligned}
    signature = {
        **dict.fromkeys(("addresses", "tensor_of", "start_of", "length_of"), "*i64"),
        "num_tensors": "i32",
        **dict.fromkeys(numbers, "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    source = ASTSource(adamw, signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ("ld.global.v4.b32" in compiled.asm["ptx"]) is aligned
    assert compiled.asm["cubin"]


@pytest.mark.parametrize(
    ("hardware", "changes", "said"),
    [
        (HARDWARE, {}, "class cpu-2 has none; take adamw"),
        (GPU, {"precision": "float64"}, "those of precision float64 have 8"),
        (GPU, {"precision": "pure_bfloat16"}, "those of precision pure_bfloat16 have 2"),
        (GPU, {"parallelism__strategy": "zero1"}, "cannot update the flat rows of zero1"),
    ],
)
def test_it_is_refused_where_it_cannot_run(
    hardware: Hardware, changes: dict[str, Any], said: str
) -> None:
    spec = make_spec(training__optimizer="adamw_triton", **changes)
    (problem,) = plan(spec, nodes=1, ranks_per_node=1, hardware=hardware).problems
    assert problem.param == "training.optimizer"
    assert said in problem.message


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline", "local_sgd"])
def test_it_is_exact_wherever_torch_runs_on_gpus(strategy: str) -> None:
    every = 4 if strategy == "local_sgd" else None
    asked = {"strategy": strategy, "average_every_steps": every}
    spec = make_spec(training__optimizer="adamw_triton", parallelism=asked)
    found = plan(spec, nodes=1, ranks_per_node=2, hardware=GPU)
    assert found.runnable, found.problems
    assert found.result_class == ("exempt" if strategy == "local_sgd" else "exact")


def test_checkpoints_move_between_it_and_torchs_adamw() -> None:
    kernel, torchs, sgd = (
        make_spec(training__optimizer=name) for name in ("adamw_triton", "adamw", "sgd")
    )
    require_same_model(kernel, torchs, Path("step-1"))
    require_same_model(torchs, kernel, Path("step-1"))
    with pytest.raises(BadCheckpoint, match="optimizer is adamw here, sgd there"):
        require_same_model(sgd, kernel, Path("step-1"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_it_is_torchs_fused_adamw_but_for_rounding() -> None:
    from strategies.train.optimizers.optimizer import build_optimizer

    torch.manual_seed(0)
    shapes = [(768, 3072), (50_257, 64), (3, 700), (5,), (0, 4)]
    ours = [nn.Parameter(torch.randn(shape, device="cuda")) for shape in shapes]
    torchs = [nn.Parameter(each.detach().clone()) for each in ours]
    kernel, fused = (
        build_optimizer(each, make_spec(training__optimizer=name).training)
        for each, name in ((ours, "adamw_triton"), (torchs, "adamw"))
    )
    for _ in range(20):
        for each, other in zip(ours, torchs, strict=True):
            each.grad = torch.randn_like(each)
            other.grad = each.grad.clone()
        kernel.step()
        fused.step()
    for each, other in zip(ours, torchs, strict=True):
        found, expected = each.detach(), other.detach()
        assert float((found - expected).norm()) <= 1e-6 * float(expected.norm())
