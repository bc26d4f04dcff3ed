"""Rules about batch sizes: global = micro x accumulation x data-parallel degree."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec


def samples_divide(resolved: ResolvedSpec) -> Iterator[Problem]:
    training, batch_degree = resolved.spec.training, resolved.layout.batch_degree
    total, micro = training.global_batch_size, training.micro_batch_size
    accumulation = training.gradient_accumulation_steps
    parts = [(batch_degree, f"{batch_degree} data-parallel ranks")]
    if isinstance(micro, int):
        parts.append((micro, f"micro_batch_size {micro}"))
    if accumulation is not None:
        parts.append((accumulation, f"gradient_accumulation_steps {accumulation}"))
    product = 1
    for number, _ in parts:
        product *= number
    named = " x ".join(text for _, text in parts)
    if micro is not None and accumulation is not None:
        if product != total:
            yield Problem(
                code="batch_mismatch",
                param="training.global_batch_size",
                message=f"{named} = {product} samples per step, not {total}; take "
                f"global_batch_size {product}, or leave one of the others out",
            )
    elif total % product:
        yield Problem(
            code="not_divisible",
            param="training.global_batch_size",
            message=f"{total} samples per step are not divisible by {product} ({named}); "
            f"the nearest is {max(1, round(total / product)) * product}",
        )
