"""Rules about DeepSpeed's ZeRO: supported combinations."""

from collections.abc import Iterator

from strategies.plan.layout import AXES
from strategies.plan.rules.layout import DEGREE_FIELDS
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import ZERO_STAGES, OptimizerName, Precision

OPTIMIZERS = (OptimizerName.ADAMW, OptimizerName.SGD)
BY_MATRIX = (OptimizerName.LARS, OptimizerName.LAMB)  # refused by the optimizer's own rule


def zero_shards_alone(resolved: ResolvedSpec) -> Iterator[Problem]:
    others = {
        DEGREE_FIELDS[axis]: degree
        for axis, degree in zip(AXES, resolved.layout.degrees, strict=True)
        if axis != "shard" and degree > 1
    }
    if resolved.strategy in ZERO_STAGES and others:
        named = ", ".join(f"{field} {degree}" for field, degree in others.items())
        nearest = "hsdp" if "data_parallel_replicate_degree" in others else "fsdp"
        yield Problem(
            code="zero_shards_alone",
            param="parallelism.strategy",
            message=f"{resolved.strategy} only shards, and cannot run with {named}; take strategy "
            f"{nearest} with the same degrees, which shards what zero3 does",
        )


def zero_keeps_float32(resolved: ResolvedSpec) -> Iterator[Problem]:
    if resolved.strategy in ZERO_STAGES and resolved.spec.precision is Precision.PURE_BFLOAT16:
        yield Problem(
            code="not_supported_together",
            param="precision",
            message=f"{resolved.strategy} keeps weights in float32, so precision pure_bfloat16 "
            "would save nothing; take bfloat16, which computes in bfloat16, or strategy fsdp",
        )


def zero_updates_flat_rows(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer = resolved.spec.training.optimizer
    if resolved.strategy in ZERO_STAGES and optimizer not in (*OPTIMIZERS, *BY_MATRIX):
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} cannot update the flat rows of {resolved.strategy}; "
            "take adamw or sgd, or strategy fsdp",
        )


def computed_in_float32(resolved: ResolvedSpec) -> Iterator[str]:
    """Warn if the strategy is less exact than the precision."""
    if resolved.strategy in ZERO_STAGES and resolved.spec.precision is Precision.FLOAT64:
        yield (
            f"{resolved.strategy} sums gradients and keeps weights and optimizer in float32, so "
            "float64 follows one rank's curve only as closely as float32 does (loss to 1e-6)"
        )
