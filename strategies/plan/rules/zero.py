"""Rules about DeepSpeed's ZeRO: supported combinations, and offloading of its states."""

from collections.abc import Iterator

from strategies.plan.layout import AXES
from strategies.plan.rules.layout import DEGREE_FIELDS
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import Offload, OptimizerName, Precision, Strategy

STAGES = {Strategy.ZERO1: 1, Strategy.ZERO2: 2, Strategy.ZERO3: 3}
OPTIMIZERS = (OptimizerName.ADAMW, OptimizerName.SGD)
BY_MATRIX = (OptimizerName.LARS, OptimizerName.LAMB)  # refused by the optimizer's own rule


def zero_shards_alone(resolved: ResolvedSpec) -> Iterator[Problem]:
    others = {
        DEGREE_FIELDS[axis]: degree
        for axis, degree in zip(AXES, resolved.layout.degrees, strict=True)
        if axis != "shard" and degree > 1
    }
    if resolved.strategy in STAGES and others:
        named = ", ".join(f"{field} {degree}" for field, degree in others.items())
        nearest = "hsdp" if "data_parallel_replicate_degree" in others else "fsdp"
        yield Problem(
            code="zero_shards_alone",
            param="parallelism.strategy",
            message=f"{resolved.strategy} only shards, and cannot run with {named}; take strategy "
            f"{nearest} with the same degrees, which shards what zero3 does",
        )


def offload_needs_zero(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism, stage = resolved.spec.parallelism, STAGES.get(resolved.strategy, 0)
    asked_for = {
        "offload_optimizer": (parallelism.offload_optimizer, 1),
        "offload_parameters": (parallelism.offload_parameters, 3),
    }
    for field, (device, least_stage) in asked_for.items():
        if device is Offload.NONE:
            continue
        if stage < least_stage:
            strategies = "zero3" if least_stage == 3 else "zero1, zero2 or zero3"
            yield Problem(
                code="offload_needs_zero",
                param=f"parallelism.{field}",
                message=f"{field} {device} needs strategy {strategies}, not {resolved.strategy}; "
                "take one of these, or leave it out",
            )
        elif device is Offload.NVME and stage < 3:
            yield Problem(
                code="offload_needs_zero",
                param=f"parallelism.{field}",
                message=f"{field} nvme needs strategy zero3, not {resolved.strategy}, which "
                "updates whole rows; take zero3, or cpu",
            )


def weights_follow_the_optimizer(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism = resolved.spec.parallelism
    optimizer = parallelism.offload_optimizer
    if parallelism.offload_parameters is Offload.NVME and optimizer is not Offload.NVME:
        yield Problem(
            code="not_supported_together",
            param="parallelism.offload_parameters",
            message="offload_parameters nvme needs offload_optimizer nvme: the optimizer's copy "
            f"of the weights stays in memory with {optimizer}; take nvme for both, or "
            "offload_parameters cpu",
        )


def swapping_is_compiled(resolved: ResolvedSpec) -> Iterator[str]:
    """Warn about the packages a node needs for nvme, which is known only when the run begins
    there."""
    parallelism = resolved.spec.parallelism
    if Offload.NVME in (parallelism.offload_optimizer, parallelism.offload_parameters):
        yield (
            "offloading to nvme compiles DeepSpeed's async_io once on the node, which needs "
            "libaio-dev, g++ and ninja-build there; if one is missing, the run does not "
            "start and its error names the missing one"
        )


def zero_keeps_float32(resolved: ResolvedSpec) -> Iterator[Problem]:
    if resolved.strategy in STAGES and resolved.spec.precision is Precision.PURE_BFLOAT16:
        yield Problem(
            code="not_supported_together",
            param="precision",
            message=f"{resolved.strategy} keeps weights in float32, so precision pure_bfloat16 "
            "would save nothing; take bfloat16, which computes in bfloat16, or strategy fsdp",
        )


def zero_updates_flat_rows(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer = resolved.spec.training.optimizer
    if resolved.strategy in STAGES and optimizer not in (*OPTIMIZERS, *BY_MATRIX):
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} cannot update the flat rows of {resolved.strategy}; "
            "take adamw or sgd, or strategy fsdp",
        )


def computed_in_float32(resolved: ResolvedSpec) -> Iterator[str]:
    """Warn if the strategy is less exact than the precision."""
    if resolved.strategy in STAGES and resolved.spec.precision is Precision.FLOAT64:
        yield (
            f"{resolved.strategy} sums gradients and keeps weights and optimizer in float32, so "
            "float64 follows one rank's curve only as closely as float32 does (loss to 1e-6)"
        )
