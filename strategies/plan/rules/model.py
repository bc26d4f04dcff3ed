"""Rules about widths and heads, which must divide, and about fields of one model family."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec, largest_divisor
from strategies.plan.shapes import heads
from strategies.plan.spec import ModelName


def heads_divide(resolved: ResolvedSpec) -> Iterator[Problem]:
    model, num_heads = resolved.spec.model, heads(resolved.spec.model)
    if model.name.reads_images:
        return
    if model.head_width is not None:
        yield from given_width_is_even(model.head_width)
    else:
        yield from width_divides(model.width, num_heads)
    if model.kv_heads is None:
        return
    if model.name is ModelName.GPT and model.kv_heads != num_heads:
        yield Problem(
            code="not_supported_by_model",
            param="model.kv_heads",
            message=f"gpt gives each of its {num_heads} heads its own keys, so kv_heads cannot "
            f"be {model.kv_heads}; leave it out, or take llama",
        )
    elif num_heads % model.kv_heads:
        yield Problem(
            code="not_divisible",
            param="model.kv_heads",
            message=f"{num_heads} heads are not divisible by {model.kv_heads} kv_heads; the "
            f"nearest is {largest_divisor(min(model.kv_heads, num_heads), num_heads)}",
        )


def given_width_is_even(head_width: int) -> Iterator[Problem]:
    if head_width % 2:
        yield Problem(
            code="odd_head_width",
            param="model.head_width",
            message=f"head_width {head_width} is odd, and rotary positions need an even number; "
            f"use {head_width + 1}",
        )


def width_divides(width: int, num_heads: int) -> Iterator[Problem]:
    fitting = f"the nearest is {largest_divisor(num_heads, width // 2)}"
    if width % 2:
        fitting = f"the width must be even; use {width + 1}"
    if width % num_heads:
        yield Problem(
            code="not_divisible",
            param="model.heads",
            message=f"width {width} is not divisible by {num_heads} heads; {fitting}",
        )
    elif width // num_heads % 2:
        yield Problem(
            code="odd_head_width",
            param="model.heads",
            message=f"width {width} / {num_heads} heads = {width // num_heads} "
            f"features per head; rotary positions need an even number; {fitting}",
        )


def family_has_it(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse fields that only llama has, and those that no family of models has together."""
    model = resolved.spec.model
    if model.name is ModelName.LLAMA:
        if model.attention_bias and model.query_key_norms:
            yield Problem(
                code="not_supported_by_model",
                param="model.query_key_norms",
                message="no family of models has both attention_bias (Qwen2) and query_key_norms "
                "(Qwen3), so the result could not be saved; leave one out",
            )
        return
    if model.checkpoint is not None:
        yield Problem(
            code="not_supported_by_model",
            param="model.checkpoint",
            message=f"a checkpoint is loaded into llama (Llama, Mistral, Qwen2 and Qwen3 are of "
            f"its family), not into {model.name}; take name llama and its config.json's fields",
        )
    if model.attention_bias:
        yield Problem(
            code="not_supported_by_model",
            param="model.attention_bias",
            message=f"{model.name} has no biases in its attention; leave it out, or take llama",
        )
    if model.query_key_norms:
        yield Problem(
            code="not_supported_by_model",
            param="model.query_key_norms",
            message=f"{model.name} has no norms in its attention; leave it out, or take llama",
        )


def frequencies_are_ordered(resolved: ResolvedSpec) -> Iterator[Problem]:
    scaling = resolved.spec.model.rope_scaling
    if scaling is not None and scaling.high_freq_factor <= scaling.low_freq_factor:
        yield Problem(
            code="out_of_range",
            param="model.rope_scaling.high_freq_factor",
            message=f"high_freq_factor {scaling.high_freq_factor:g} must be above low_freq_factor "
            f"{scaling.low_freq_factor:g}; Llama 3.1 has 4 and 1",
        )
