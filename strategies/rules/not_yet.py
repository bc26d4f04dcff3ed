"""What a spec can name but this version cannot run yet, refused by its name."""

from collections.abc import Iterator
from typing import Any

from strategies.rules.problem import Asked, Problem
from strategies.spec import OptimizerName

READY: dict[str, tuple[Any, ...]] = {
    "training.optimizer": (
        OptimizerName.ADAMW,
        OptimizerName.ADAMW_TRITON,
        OptimizerName.SGD,
        OptimizerName.LARS,
        OptimizerName.LAMB,
    ),
}


def supported(asked: Asked) -> Iterator[Problem]:
    for field, ready in READY.items():
        value: Any = asked.spec
        for name in field.split("."):
            value = getattr(value, name)
        if value not in ready:
            known = ", ".join(str(choice) for choice in ready)
            yield Problem(
                code="not_supported_yet",
                param=field,
                message=f"{field} {value} cannot run yet; this version has: {known}",
            )
