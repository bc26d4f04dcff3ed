"""Rules about the certificate: more than one rank to compare with one, and enough steps."""

from collections.abc import Iterator

from strategies.plan.catalog import promised
from strategies.plan.promise import Promise
from strategies.plan.rules.problem import Asked, Problem


def there_is_something_to_verify(asked: Asked) -> Iterator[Problem]:
    verify, steps = asked.spec.verify, asked.spec.training.steps
    if verify is None:
        return
    if asked.world_size == 1:
        yield Problem(
            code="nothing_to_verify",
            param="verify",
            message=f"verify compares {verify.steps} steps of a layout with one rank, but the job "
            "has only 1 rank; ask for more ranks, or leave verify out",
        )
    if verify.steps > steps:
        yield Problem(
            code="out_of_range",
            param="verify.steps",
            message=f"verify compares {verify.steps} steps, but the whole run has {steps}; take "
            f"{steps} or fewer",
        )
    result_class = promised(asked.strategy, asked.spec)
    tolerance = Promise(result_class, asked.spec.precision, asked.strategy).tolerance
    if tolerance is not None and verify.steps > tolerance.steps:
        yield Problem(
            code="out_of_range",
            param="verify.steps",
            message=f"rounding in {asked.spec.precision} grows so fast that at most the first "
            f"{tolerance.steps} steps are compared, not {verify.steps}; take {tolerance.steps} or "
            "fewer",
        )
