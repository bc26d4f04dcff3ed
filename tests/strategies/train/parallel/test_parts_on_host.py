"""Fully sharded ranks that keep their parts in the host's memory; a device of its own is in
test_two_devices.py."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from strategies.plan.planner import plan
from strategies.plan.run_directory import WEIGHTS
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import (
    HARDWARE,
    Options,
    Run,
    make_run_plan,
    make_spec,
)

ON_HOST = {"parallelism__offload_optimizer": "cpu", "parallelism__offload_parameters": "cpu"}


def train(pool: Pool, ragged: Options, path: Path, *, ranks: int = 2, **changes: Any) -> Run:
    fields = {name: changes.pop(name) for name in ("resume_from",) if name in changes}
    spec = make_spec(
        model__layers=2,
        training__steps=6,
        training__global_batch_size=8,
        training__gradient_accumulation_steps=2,
        training__max_grad_norm=0.3,
        checkpoint__every_steps=3,
        **{"precision": "float64", "parallelism__strategy": "fsdp", **changes},
    )
    return pool.train(make_run_plan(spec, ranks=ranks, **fields, **ragged), path)


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (2, {"training__optimizer": "sgd", "activation_checkpointing": "full"}),
        pytest.param(2, {"precision": "bfloat16"}, marks=pytest.mark.slow),
        pytest.param(2, {"precision": "float16"}, marks=pytest.mark.slow),
        pytest.param(2, {"precision": "pure_bfloat16"}, marks=pytest.mark.slow),
        pytest.param(
            4,
            {"parallelism__strategy": "hsdp", "parallelism__data_parallel_shard_degree": 2},
            marks=pytest.mark.slow,
        ),
        pytest.param(4, {"parallelism__context_parallel_degree": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_run_is_that_of_parts_on_the_device(
    ranks: int, changes: Options, pool: Pool, ragged: Options, tmp_path: Path
) -> None:
    """On a CPU both are the same memory, so every number is the same."""
    here = train(pool, ragged, tmp_path / "here", ranks=ranks, **changes)
    there = train(pool, ragged, tmp_path / "there", ranks=ranks, **changes, **ON_HOST)
    for name in ("loss", "grad_norm"):
        assert there.series(name) == here.series(name)
    ours, theirs = (load_file(run.directory.artifacts / WEIGHTS) for run in (there, here))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


@pytest.mark.gloo
@pytest.mark.slow
def test_a_run_leaves_the_host_and_comes_back(pool: Pool, ragged: Options, tmp_path: Path) -> None:
    one = train(pool, ragged, tmp_path / "one", ranks=1, parallelism__strategy="single")
    saved = train(pool, ragged, tmp_path / "saved", **ON_HOST).directory.checkpoints
    third = str(saved / "step-000003")
    for name, offload in (("here", {}), ("there", ON_HOST)):
        rest = train(pool, ragged, tmp_path / name, resume_from=third, **offload)
        assert rest.series("loss") == pytest.approx(one.series("loss")[3:], rel=1e-12)


FSDP = {"parallelism__strategy": "fsdp", **ON_HOST}


@pytest.mark.parametrize(
    ("ranks", "changes", "param", "said"),
    [
        (
            2,
            {"parallelism__strategy": "fsdp", "parallelism__offload_optimizer": "cpu"},
            "parallelism.offload_parameters",
            "offload_optimizer is cpu; take cpu for offload_parameters too",
        ),
        (
            2,
            {"parallelism__strategy": "fsdp", "parallelism__offload_parameters": "cpu"},
            "parallelism.offload_optimizer",
            "offload_parameters is cpu; take cpu for offload_optimizer too",
        ),
        (
            2,
            {**FSDP, "parallelism__offload_parameters": "nvme"},
            "parallelism.offload_parameters",
            "offload_parameters nvme needs strategy zero3, not fsdp, which offloads to cpu only",
        ),
        (1, FSDP, "parallelism.offload_parameters", "1 rank shares nothing; take zero3"),
        (
            4,
            {**FSDP, "parallelism__tensor_parallel_degree": 2},
            "parallelism.tensor_parallel_degree",
            "only with tensor_parallel_degree 1, not 2",
        ),
        (
            4,
            {**FSDP, "parallelism__pipeline_parallel_degree": 2},
            "parallelism.pipeline_parallel_degree",
            "only with pipeline_parallel_degree 1, not 2",
        ),
        (
            2,
            {**FSDP, "training__optimizer": "lamb"},
            "training.optimizer",
            "optimizer lamb does not update weights in the host's memory; take adamw or sgd",
        ),
        (
            2,
            {**FSDP, "parallelism__gradient_delay": 3},
            "parallelism.gradient_delay",
            "cannot wait 3 steps; take 0",
        ),
        (
            2,
            {**FSDP, "adapter": {"rank": 2, "targets": ["query"], "base": "nf4"}},
            "adapter.base",
            "base nf4 is opened on the device",
        ),
    ],
)
def test_what_cannot_be_is_told_with_its_field(
    ranks: int, changes: Options, param: str, said: str
) -> None:
    found = plan(make_spec(**changes), nodes=1, ranks_per_node=ranks, hardware=HARDWARE)
    assert not found.runnable
    assert any(said in one.message for one in found.problems if one.param == param), found.problems
