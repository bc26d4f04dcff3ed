"""Mapping between our names of weights and Hugging Face's, for Llama, Mistral, Qwen2 and
Qwen3.

Pure and torch-free. Adapters in peft's layout are named after the same modules.
"""

import re
from collections.abc import Iterator

from strategies.plan.spec import ModelSpec

MODULES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}
ENDS = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
OF_A_LAYER = re.compile(r"^layers\.(\d+)\.(\w+(?:\.\w+)?)$")
BIASED = ("attention.query", "attention.key", "attention.value")
QUERY_KEY_NORMS = ("attention.query_norm", "attention.key_norm")
ROTATED = ("attention.query", "attention.key", *QUERY_KEY_NORMS)


def hf_module(name: str) -> str:
    """Return Hugging Face's name of one of our modules. Raises KeyError if it has none.

    `layers.0.attention.query` is `model.layers.0.self_attn.q_proj`.
    """
    if (layer := OF_A_LAYER.match(name)) is None:
        return ENDS[name]
    return f"model.layers.{layer[1]}.{MODULES[layer[2]]}"


def hf_name(weight: str) -> str:
    """Return Hugging Face's name of a weight or bias: the module's, and the same last part."""
    module, _, last = weight.rpartition(".")
    return f"{hf_module(module)}.{last}"


def hf_weights(model: ModelSpec) -> Iterator[str]:
    """Yield the names of all weights of a llama."""
    yield hf_name("embedding.weight")
    for layer in range(model.layers):
        for module in MODULES:
            if module in QUERY_KEY_NORMS and not model.query_key_norms:
                continue
            yield hf_name(f"layers.{layer}.{module}.weight")
            if model.attention_bias and module in BIASED:
                yield hf_name(f"layers.{layer}.{module}.bias")
    yield hf_name("norm.weight")
    if not model.tied_embeddings:
        yield hf_name("head.weight")


def codes_name(hf_weight: str) -> str:
    """Return the name of a weight's codes in a checkpoint rounded by GPTQ."""
    return f"{hf_weight.removesuffix('weight')}qweight"


def is_rotated(weight: str) -> bool:
    """Return True if positions rotate the output of this weight, so its rows are ordered otherwise.

    Features that are rotated together are neighbours here; Hugging Face has them half a head apart.
    """
    return weight.rpartition(".")[0].endswith(ROTATED)
