"""Rules about context parallelism, which splits samples evenly by tokens, and Ulysses heads."""

import math
from collections.abc import Iterator

from strategies.plan import shapes
from strategies.plan.rules.problem import Problem, ResolvedSpec, largest_divisor


def ulysses_divides(resolved: ResolvedSpec) -> Iterator[Problem]:
    context, degree = resolved.layout.context, resolved.spec.parallelism.ulysses_degree
    param = "parallelism.ulysses_degree"
    if context == 1 and degree > 1:
        yield Problem(
            code="needs_context_parallel",
            param=param,
            message=f"ulysses_degree {degree} is the number of context-parallel ranks that "
            "exchange heads, but the context degree is 1; take a context degree of "
            f"{degree}, or leave it out",
        )
        return
    if resolved.spec.model.name.reads_images:  # rules.images
        return
    heads = shapes.heads(resolved.spec.model) // resolved.layout.tensor
    nearest = largest_divisor(degree, context, max(1, heads))
    if context % degree:
        yield Problem(
            code="not_divisible",
            param=param,
            message=f"ulysses_degree {degree} does not divide the context degree {context}; the "
            f"nearest is {nearest}",
        )
    if heads % degree:
        of_each = " of each tensor-parallel rank" if resolved.layout.tensor > 1 else ""
        yield Problem(
            code="not_divisible",
            param=param,
            message=f"the {heads} heads{of_each} cannot be split in {degree} equal parts; the "
            f"nearest ulysses_degree is {nearest}",
        )


def tokens_divide(resolved: ResolvedSpec) -> Iterator[Problem]:
    context, degree = resolved.layout.context, resolved.spec.parallelism.ulysses_degree
    is_split = context > 1 and not resolved.spec.model.name.reads_images  # rules.images
    if not is_split or context % degree:
        return
    length, multiple = (
        shapes.tokens_per_sample(resolved.spec.data),
        tokens_multiple(context, degree),
    )
    if length % multiple == 0:
        return
    step = multiple
    if resolved.spec.parallelism.sequence_parallel:
        step = math.lcm(step, context * resolved.layout.tensor)
    yield Problem(
        code="not_divisible",
        param="data.sequence_length",
        message=f"{length} tokens per sample are not divisible by {multiple}, which {context} "
        f"context-parallel ranks in rings of {context // degree} need; "
        f"{length - length % step or step} would be divisible",
    )


def tokens_multiple(context: int, ulysses_degree: int) -> int:
    """Return the number that must divide sequence_length.

    It is a multiple of the ranks and, in a ring, of the 2 x ring chunks of its zigzag order.
    """
    ring = context // ulysses_degree
    return context if ring == 1 else math.lcm(context, 2 * ring)
