"""Rules about the layouts that torch.compile is known to run with."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import Strategy

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
