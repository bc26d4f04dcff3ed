"""Rules about compiled layers, and the compiler that generated kernels need."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import OptimizerName


def layers_compile(resolved: ResolvedSpec) -> Iterator[Problem]:
    if resolved.spec.compile is not True:
        return
    tensor = resolved.layout.tensor
    if tensor > 1:
        yield Problem(
            code="not_supported_together",
            param="compile",
            message=f"compile does not run with tensor degree {tensor}, where gradients of split "
            "matrices lose their layout; leave it out",
        )


def nodes_have_a_compiler(resolved: ResolvedSpec) -> Iterator[Problem]:
    missing, name = resolved.hardware.no_compiler, resolved.hardware.class_name
    if not missing:
        return
    if resolved.spec.compile is True:
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
