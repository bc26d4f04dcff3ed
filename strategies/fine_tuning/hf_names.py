"""What Hugging Face calls the weights of a Llama, Mistral or Qwen2, and what they are called here.

Pure and torch-free. Adapters in peft's layout are named after the same modules.
"""

import re
from collections.abc import Iterator

from strategies.spec import ModelSpec

MODULES = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}
ENDS = {"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
OF_A_LAYER = re.compile(r"^layers\.(\d+)\.(\w+(?:\.\w+)?)$")
BIASED = ("attention.query", "attention.key", "attention.value")
ROTATED = ("attention.query", "attention.key")


def hf_module(name: str) -> str:
    """Hugging Face's name of one of our modules: `layers.0.attention.query` is
    `model.layers.0.self_attn.q_proj`. KeyError where it has none."""
    if (layer := OF_A_LAYER.match(name)) is None:
        return ENDS[name]
    return f"model.layers.{layer[1]}.{MODULES[layer[2]]}"


def hf_name(weight: str) -> str:
    """Hugging Face's name of a weight or bias: our module's, and the same last part."""
    module, _, last = weight.rpartition(".")
    return f"{hf_module(module)}.{last}"


def hf_weights(model: ModelSpec) -> Iterator[str]:
    """The names of all weights of a llama."""
    yield hf_name("embedding.weight")
    for layer in range(model.layers):
        for module in MODULES:
            yield hf_name(f"layers.{layer}.{module}.weight")
            if model.attention_bias and module in BIASED:
                yield hf_name(f"layers.{layer}.{module}.bias")
    yield hf_name("norm.weight")
    if not model.tied_embeddings:
        yield hf_name("head.weight")


def codes_name(hf_weight: str) -> str:
    """Where a checkpoint that GPTQ has rounded keeps what stands for this weight."""
    return f"{hf_weight.removesuffix('weight')}qweight"


def is_rotated(weight: str) -> bool:
    """Whether positions turn what this weight gives, so that its rows lie in another order there.

    Features that are turned together are neighbours here; there they are half a head apart.
    """
    return weight.rpartition(".")[0].endswith(ROTATED)
