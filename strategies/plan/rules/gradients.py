"""Rules about gradients that are rounded, late, or not shared at every step."""

from collections.abc import Iterator

from strategies.plan.catalog import SPMD, TECHNIQUES
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import (
    ZERO_STAGES,
    GradientCompression,
    OptimizerName,
    Precision,
    Reduction,
    Strategy,
)

AVERAGED = (
    OptimizerName.ADAMW,
    OptimizerName.ADAMW_TRITON,
    OptimizerName.SGD,
    OptimizerName.LARS,
    OptimizerName.LAMB,
)


def compression_needs_ddp(resolved: ResolvedSpec) -> Iterator[Problem]:
    compression, layout = resolved.spec.parallelism.gradient_compression, resolved.layout
    if compression is GradientCompression.NONE or resolved.strategy not in TECHNIQUES:
        return
    split = {
        "data_parallel_shard_degree": layout.shard,
        "tensor_parallel_degree": layout.tensor,
        "pipeline_parallel_degree": layout.pipeline,
    }
    others = [f"{field} {degree}" for field, degree in split.items() if degree > 1]
    if TECHNIQUES[resolved.strategy].engine != SPMD:
        others = [f"strategy {resolved.strategy}", *others]
    if others:
        yield Problem(
            code="compression_needs_ddp",
            param="parallelism.gradient_compression",
            message=f"gradient_compression {compression} rounds the messages of torch's "
            f"DistributedDataParallel, which does not run with {', '.join(others)}; take "
            "strategy ddp with these degrees at 1, or gradient_compression none",
        )
    if resolved.spec.precision is Precision.PURE_BFLOAT16:
        yield Problem(
            code="compression_saves_nothing",
            param="parallelism.gradient_compression",
            message=f"gradients of precision pure_bfloat16 have 2 bytes already, so "
            f"gradient_compression {compression} would save nothing; take none",
        )


def reduction_is_of_shards(resolved: ResolvedSpec) -> Iterator[Problem]:
    asked, layout = resolved.spec.parallelism.reduce_gradients, resolved.layout
    if asked is Reduction.AUTO or resolved.strategy not in TECHNIQUES:
        return
    if resolved.strategy in ZERO_STAGES or layout.shard == 1:
        yield Problem(
            code="nothing_to_reduce",
            param="parallelism.reduce_gradients",
            message=f"reduce_gradients {asked} is for gradients that fsdp or hsdp shards, and "
            f"strategy {resolved.strategy} with shard degree {layout.shard} has none; take auto, "
            "or strategy fsdp",
        )
    elif layout.pipeline > 1 and asked is Reduction.EACH_MICRO_BATCH:
        yield Problem(
            code="not_supported_together",
            param="parallelism.reduce_gradients",
            message=f"reduce_gradients {asked} cannot run with pipeline_parallel_degree "
            f"{layout.pipeline}, whose stages reduce once in a step; take once or auto",
        )


def local_ranks_average(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism, optimizer = resolved.spec.parallelism, resolved.spec.training.optimizer
    every = parallelism.average_every_steps
    if resolved.strategy is not Strategy.LOCAL_SGD:
        if every is not None:
            yield Problem(
                code="averaging_needs_local_sgd",
                param="parallelism.average_every_steps",
                message=f"average_every_steps {every} is for strategy local_sgd; "
                f"{resolved.strategy} synchronises its ranks at every step; leave it "
                "out",
            )
        return
    if every is None:
        yield Problem(
            code="averaging_missing",
            param="parallelism.average_every_steps",
            message="local_sgd averages the weights of its ranks every few steps; give the number "
            "of steps between two averages, 8 for example (1 sends more than ddp)",
        )
    if optimizer not in AVERAGED:
        known = ", ".join(AVERAGED)
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"local_sgd averages the state of its ranks' optimizers, and that of "
            f"{optimizer} is not a plain number per weight; take one of {known}",
        )


def late_gradients_are_whole(resolved: ResolvedSpec) -> Iterator[Problem]:
    delay, steps = resolved.spec.parallelism.gradient_delay, resolved.spec.training.steps
    if delay == 0:
        return
    if resolved.strategy in ZERO_STAGES:
        yield Problem(
            code="not_supported_together",
            param="parallelism.gradient_delay",
            message=f"gradient_delay {delay} keeps gradients from step to step, and DeepSpeed's "
            f"{resolved.strategy} frees its own; take strategy fsdp, which shards the same state",
        )
    if resolved.strategy is Strategy.LOCAL_SGD:
        yield Problem(
            code="not_supported_together",
            param="parallelism.gradient_delay",
            message=f"gradient_delay {delay} delays the gradient that ranks share, and the "
            "ranks of local_sgd share none; take strategy ddp for delayed gradients, "
            "or gradient_delay 0",
        )
    if delay >= steps:
        yield Problem(
            code="out_of_range",
            param="parallelism.gradient_delay",
            message=f"with gradient_delay {delay} the first {delay} steps change no weights, "
            f"and the run has {steps} steps; a delay of {steps - 1} would leave one "
            "update",
        )
