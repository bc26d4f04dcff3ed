"""Shapes and parameter counts of well-known models and of Hugging Face config.json files.

The counts are checked against transformers' own. For a plan, a model is replaced by the nearest of
our models: `as_spec`. Torch-free.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.plan.spec import ModelName, ModelSpec


class UnknownModel(ValueError):
    """Name that is not in the catalog, or a config.json of another architecture."""


@dataclass(frozen=True)
class Shape:
    """Numbers that determine the parameter count of a causal model."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocabulary: int
    head_width: int | None = None
    """Features of a head; None: width / heads."""
    gated: bool = True
    """True for SwiGLU and RMSNorm, as in Llama; else two matrices and LayerNorm, as in GPT."""
    tied: bool = False
    biases: bool = False
    """True if every matrix of a layer has a bias."""
    query_key_value_biases: bool = False
    query_key_norms: bool = False
    """True if each head of queries and of keys has an RMSNorm, as in Qwen3."""
    positions: int = 0
    """Rows of a table of learned positions."""
    dtype: str = "bfloat16"
    """Type in which its weights are published."""

    def count(self) -> int:
        """Return the number of parameters; a matrix shared by embedding and head counts once."""
        per_head = self.head_width or self.width // self.heads
        queries, keys = per_head * self.heads, per_head * self.kv_heads
        attention = 2 * self.width * queries + 2 * self.width * keys
        feed_forward = (3 if self.gated else 2) * self.width * self.ffn_width
        norm = self.width if self.gated else 2 * self.width
        layer = attention + feed_forward + 2 * norm
        if self.biases or self.query_key_value_biases:
            layer += queries + 2 * keys
        if self.query_key_norms:
            layer += 2 * per_head
        if self.biases:
            layer += 2 * self.width + self.ffn_width
        ends = (1 if self.tied else 2) * self.vocabulary * self.width
        return self.layers * layer + norm + ends + self.positions * self.width


def gpt2(layers: int, width: int, heads: int) -> Shape:
    """Return a shape of Radford et al., 2019: learned positions, biases, tied embeddings."""
    shape = Shape(layers, width, heads, heads, 4 * width, 50_257, gated=False, tied=True)
    return replace(shape, biases=True, positions=1024, dtype="float32")


def opt(layers: int, width: int, heads: int) -> Shape:
    """Return a shape of Zhang et al., arXiv:2205.01068.

    Two rows of its table of positions are not used.
    """
    shape = Shape(layers, width, heads, heads, 4 * width, 50_272, gated=False, tied=True)
    return replace(shape, biases=True, positions=2048 + 2, dtype="float16")


def qwen(layers: int, width: int, heads: int, kv_heads: int, ffn: int, *, small: bool) -> Shape:
    """Return a shape of Qwen2.5, arXiv:2412.15115; the small ones tie their embeddings."""
    vocabulary = 151_936 if small else 152_064
    shape = Shape(layers, width, heads, kv_heads, ffn, vocabulary, tied=small)
    return replace(shape, query_key_value_biases=True)


def qwen3(layers: int, width: int, heads: int, ffn: int, *, small: bool = False) -> Shape:
    """Return a shape of Qwen3, arXiv:2505.09388: 8 heads of keys, 128 features in each head."""
    of_each = None if heads * 128 == width else 128
    shape = Shape(layers, width, heads, 8, ffn, 151_936, head_width=of_each, tied=small)
    return replace(shape, query_key_norms=True)


KNOWN = {
    "gpt2": gpt2(12, 768, 12),
    "gpt2-medium": gpt2(24, 1024, 16),
    "gpt2-large": gpt2(36, 1280, 20),
    "gpt2-xl": gpt2(48, 1600, 25),
    "opt-125m": opt(12, 768, 12),
    "opt-1.3b": opt(24, 2048, 32),
    "opt-2.7b": opt(32, 2560, 32),
    "opt-6.7b": opt(32, 4096, 32),
    "opt-13b": opt(40, 5120, 40),
    "opt-30b": opt(48, 7168, 56),
    "opt-66b": opt(64, 9216, 72),
    "tinyllama-1.1b": Shape(22, 2048, 32, 4, 5632, 32_000, dtype="float32"),
    "openllama-3b": Shape(26, 3200, 32, 32, 8640, 32_000, dtype="float16"),
    "openllama-7b": Shape(32, 4096, 32, 32, 11_008, 32_000, dtype="float16"),
    "openllama-13b": Shape(40, 5120, 40, 40, 13_824, 32_000, dtype="float16"),
    "llama-2-7b": Shape(32, 4096, 32, 32, 11_008, 32_000, dtype="float16"),
    "llama-2-13b": Shape(40, 5120, 40, 40, 13_824, 32_000, dtype="float16"),
    "llama-2-70b": Shape(80, 8192, 64, 8, 28_672, 32_000, dtype="float16"),
    "llama-3-8b": Shape(32, 4096, 32, 8, 14_336, 128_256),
    "llama-3-70b": Shape(80, 8192, 64, 8, 28_672, 128_256),
    "llama-3-405b": Shape(126, 16_384, 128, 8, 53_248, 128_256),
    "mistral-7b": Shape(32, 4096, 32, 8, 14_336, 32_000),
    "mistral-nemo-12b": Shape(40, 5120, 32, 8, 14_336, 131_072, head_width=128),
    "qwen2.5-0.5b": qwen(24, 896, 14, 2, 4864, small=True),
    "qwen2.5-1.5b": qwen(28, 1536, 12, 2, 8960, small=True),
    "qwen2.5-3b": qwen(36, 2048, 16, 2, 11_008, small=True),
    "qwen2.5-7b": qwen(28, 3584, 28, 4, 18_944, small=False),
    "qwen2.5-14b": qwen(48, 5120, 40, 8, 13_824, small=False),
    "qwen2.5-32b": qwen(64, 5120, 40, 8, 27_648, small=False),
    "qwen2.5-72b": qwen(80, 8192, 64, 8, 29_568, small=False),
    "qwen3-0.6b": qwen3(28, 1024, 16, 3072, small=True),
    "qwen3-1.7b": qwen3(28, 2048, 16, 6144, small=True),
    "qwen3-4b": qwen3(36, 2560, 32, 9728, small=True),
    "qwen3-8b": qwen3(36, 4096, 32, 12_288),
    "qwen3-14b": qwen3(40, 5120, 40, 17_408),
    "qwen3-32b": qwen3(64, 5120, 64, 25_600),
}


def known_model(name: str) -> Shape:
    """Return the shape behind a name. Raises UnknownModel, with the known names, for others."""
    try:
        return KNOWN[name.lower()]
    except KeyError as error:
        known = ", ".join(KNOWN)
        raise UnknownModel(f"model {name!r} is not known; known are: {known}") from error


def from_config(config: Mapping[str, Any]) -> Shape:
    """Return the shape that a config.json describes.

    Raises UnknownModel if its architecture is not known or a number is missing.
    """
    kind = config.get("model_type")
    read = READERS.get(str(kind))
    if read is None:
        raise UnknownModel(f"model_type {kind!r} is not known; known are: {', '.join(READERS)}")
    try:
        return replace(read(config), dtype=stored_dtype(config))
    except KeyError as error:
        raise UnknownModel(f"config.json of a {kind} model has no {error.args[0]}") from error


def stored_dtype(config: Mapping[str, Any]) -> str:
    """Return the type of a checkpoint's numbers; float32 if its config.json tells no other."""
    told = config.get("dtype") or config.get("torch_dtype")
    return told if told in ("float16", "bfloat16") else "float32"


def llama_config(config: Mapping[str, Any]) -> Shape:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head_width = config.get("head_dim") or width // heads
    return Shape(
        layers=config["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        ffn_width=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        head_width=None if head_width * heads == width else head_width,
        tied=bool(config.get("tie_word_embeddings", False)),
        query_key_value_biases=config["model_type"] == "qwen2",
        query_key_norms=config["model_type"] == "qwen3",
    )


def gpt2_config(config: Mapping[str, Any]) -> Shape:
    shape = gpt2(config["n_layer"], config["n_embd"], config["n_head"])
    inner = config.get("n_inner") or shape.ffn_width
    positions = config["n_positions"]
    return replace(shape, ffn_width=inner, positions=positions, vocabulary=config["vocab_size"])


def opt_config(config: Mapping[str, Any]) -> Shape:
    shape = opt(config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"])
    return replace(
        shape,
        ffn_width=config["ffn_dim"],
        positions=config["max_position_embeddings"] + 2,
        vocabulary=config["vocab_size"],
    )


READERS: dict[str, Callable[[Mapping[str, Any]], Shape]] = {
    "llama": llama_config,
    "mistral": llama_config,
    "qwen2": llama_config,
    "qwen3": llama_config,
    "gpt2": gpt2_config,
    "opt": opt_config,
}


def as_spec(shape: Shape) -> ModelSpec:
    """Return the nearest of our models.

    It has no learned positions and no biases: a few numbers less.
    """
    return ModelSpec(
        name=ModelName.LLAMA if shape.gated else ModelName.GPT,
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads if shape.gated and shape.kv_heads != shape.heads else None,
        head_width=shape.head_width,
        ffn_width=shape.ffn_width,
        tied_embeddings=shape.tied,
        query_key_norms=shape.query_key_norms,
    )
