"""Rules about tensor parallelism, which splits heads, feed-forward part and vocabulary evenly."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec, largest_divisor
from strategies.plan.shapes import ffn_width, heads, kv_heads, tokens_per_sample, vocabulary_size

DEGREE = "parallelism.tensor_parallel_degree"


def matrices_divide(resolved: ResolvedSpec) -> Iterator[Problem]:
    spec, degree = resolved.spec, resolved.layout.tensor
    if spec.parallelism.sequence_parallel and degree == 1:
        yield Problem(
            code="needs_tensor_parallel",
            param="parallelism.sequence_parallel",
            message="sequence_parallel splits tokens over the tensor-parallel ranks, but the "
            "tensor degree is 1; take a tensor degree of 2 or more, or leave it out",
        )
    if degree == 1 or spec.model.name.reads_images:  # rules.images
        return
    parts = {
        "heads": heads(spec.model),
        "kv_heads": kv_heads(spec.model),
        "ffn_width": ffn_width(spec.model),
        "vocabulary": vocabulary_size(spec.data),
    }
    uneven = [f"{name} {number}" for name, number in parts.items() if number % degree]
    if uneven:
        yield Problem(
            code="not_divisible",
            param=DEGREE,
            message=f"{', '.join(uneven)} cannot be split in {degree} equal parts; the nearest "
            f"tensor degree is {largest_divisor(degree, *parts.values())}",
        )
    tokens = tokens_per_sample(spec.data) // resolved.layout.context
    if spec.parallelism.sequence_parallel and tokens % degree:
        yield Problem(
            code="not_divisible",
            param="data.sequence_length",
            message=f"sequence_parallel splits {tokens} tokens over {degree} tensor-parallel "
            f"ranks; {tokens - tokens % degree or degree} tokens would be divisible",
        )
