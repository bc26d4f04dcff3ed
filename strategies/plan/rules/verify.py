"""Rules about the certificate: more than one rank to compare with one, and enough steps."""

from collections.abc import Iterator

from strategies.plan.catalog import multiplies_in_tf32, promised
from strategies.plan.promise import Promise
from strategies.plan.rules.problem import Problem, ResolvedSpec


def there_is_something_to_verify(resolved: ResolvedSpec) -> Iterator[Problem]:
    verify, steps = resolved.spec.verify, resolved.spec.training.steps
    if verify is None:
        return
    if resolved.world_size == 1:
        yield Problem(
            code="nothing_to_verify",
            param="verify",
            message=f"verify compares {verify.steps} steps of a layout with one rank, but the "
            "job has only 1 rank; request more ranks, or leave verify out",
        )
    if verify.steps > steps:
        yield Problem(
            code="out_of_range",
            param="verify.steps",
            message=f"verify compares {verify.steps} steps, but the whole run has {steps}; take "
            f"{steps} or fewer",
        )
    result_class = promised(resolved.strategy, resolved.spec)
    spec = resolved.spec
    tf32 = multiplies_in_tf32(spec)
    tolerance = Promise(result_class, spec.precision, resolved.strategy, tf32).tolerance
    if tolerance is not None and verify.steps > tolerance.steps:
        yield Problem(
            code="out_of_range",
            param="verify.steps",
            message=f"rounding in {resolved.spec.precision} grows so fast that at most the first "
            f"{tolerance.steps} steps are compared, not {verify.steps}; take {tolerance.steps} or "
            "fewer",
        )
