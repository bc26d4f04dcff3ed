"""Widths and heads that do not divide."""

from collections.abc import Iterator

from strategies.rules.problem import Asked, Problem
from strategies.spec import ModelName


def heads_divide(asked: Asked) -> Iterator[Problem]:
    model = asked.spec.model
    if model.width % model.heads:
        yield Problem(
            code="not_divisible",
            param="model.heads",
            message=f"width {model.width} is not divisible by {model.heads} heads",
        )
    elif model.width // model.heads % 2:
        yield Problem(
            code="odd_head_width",
            param="model.heads",
            message=f"width {model.width} / {model.heads} heads = {model.width // model.heads} "
            "features per head; rotary positions need an even number",
        )
    if model.kv_heads is None:
        return
    if model.name is ModelName.GPT and model.kv_heads != model.heads:
        yield Problem(
            code="not_supported_by_model",
            param="model.kv_heads",
            message=f"gpt gives each of its {model.heads} heads its own keys, so kv_heads cannot "
            f"be {model.kv_heads}; leave it out, or take llama",
        )
    elif model.heads % model.kv_heads:
        yield Problem(
            code="not_divisible",
            param="model.kv_heads",
            message=f"{model.heads} heads are not divisible by {model.kv_heads} kv_heads",
        )
