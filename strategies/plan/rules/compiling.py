"""Rules about the layouts that torch.compile is known to run with, and the compiler it needs."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import OptimizerName, Strategy

ZERO = (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)


def layers_compile(resolved: ResolvedSpec) -> Iterator[Problem]:
    if not resolved.spec.compile:
        return
    degrees = {axis: getattr(resolved.layout, axis) for axis in ("pipeline", "context", "tensor")}
    others = [f"{axis} degree {degree}" for axis, degree in degrees.items() if degree > 1]
    if resolved.strategy in ZERO:
        others.insert(0, f"strategy {resolved.strategy}")
    if others:
        yield Problem(
            code="not_supported_together",
            param="compile",
            message=f"compile runs on one rank and with ddp, fsdp and hsdp, but not with "
            f"{' and '.join(others)}; leave it out",
        )


def nodes_have_a_compiler(resolved: ResolvedSpec) -> Iterator[Problem]:
    missing, name = resolved.hardware.no_compiler, resolved.hardware.class_name
    if not missing:
        return
    if resolved.spec.compile:
        yield Problem(
            code="no_compiler",
            param="compile",
            message=f"compile builds kernels on the node, and class {name} lacks {missing}; have "
            "it installed, or leave compile out",
        )
    optimizer = resolved.spec.training.optimizer
    if optimizer is OptimizerName.ADAMW_TRITON and resolved.hardware.device == "cuda":
        yield Problem(
            code="no_compiler",
            param="training.optimizer",
            message=f"optimizer {optimizer} builds its kernel on the node, and class {name} lacks "
            f"{missing}; have it installed, or take adamw, which makes the same update",
        )
