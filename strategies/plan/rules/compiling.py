"""Rules about the compiler that generated kernels need."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import OptimizerName


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
