"""Conversion between config.json of a Hugging Face model and a spec.

Torch-free, and careful with its input, which anyone may have written.
"""

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strategies.plan.shapes import (
    ffn_width,
    head_width,
    kv_heads,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.plan.spec import (
    FrozenDtype,
    ModelName,
    ModelSpec,
    Precision,
    RopeScaling,
    TrainSpec,
)

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
WEIGHT_FILE = re.compile(r"^model(-\d{5}-of-\d{5})?\.safetensors$")
TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
OTHER_FILES = (CONFIG, INDEX, GENERATION_CONFIG, *TOKENIZER_FILES)  # beside the weights
ARCHITECTURES = {
    "LlamaForCausalLM": "Llama 1 to 3, TinyLlama, OpenLLaMA, SmolLM",
    "MistralForCausalLM": "Mistral",
    "Qwen2ForCausalLM": "Qwen2, Qwen2.5",
    "Qwen3ForCausalLM": "Qwen3 without experts",
}
# Accepted values of a quantization_config whose codes can be read.
GPTQ: dict[str, tuple[object, ...]] = {
    "quant_method": ("gptq",),
    "bits": (4,),
    "checkpoint_format": ("gptq", "gptq_v2", None),
}
STORED: dict[str, FrozenDtype] = {name: name for name in get_args(FrozenDtype)}
ROPE_BASE = 10_000.0  # default of a config.json without it
DTYPES = {
    Precision.FLOAT64: "float64",
    Precision.FLOAT32: "float32",
    Precision.BFLOAT16: "float32",
    Precision.FLOAT16: "float32",
    Precision.PURE_BFLOAT16: "bfloat16",
}


class UnsupportedModel(ValueError):
    """Model that cannot be loaded here; the message gives the reason and the supported values."""


class HfConfig(BaseModel):
    """Fields of config.json that affect the computation, under its names."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    architectures: list[str] = Field(min_length=1)
    vocab_size: int = Field(ge=2, le=1_114_112)
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """Form of transformers 5, which joins rope_theta and rope_scaling."""
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    quantization_config: dict[str, Any] | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    """Name of `dtype` before transformers 5."""

    @property
    def stored_dtype(self) -> FrozenDtype | None:
        """Type of the weights as stored; None if it is not told, or they are quantised."""
        told = self.dtype or self.torch_dtype
        return None if self.quantization_config is not None else STORED.get(str(told))

    @property
    def window(self) -> int | None:
        """Number of tokens back that a token attends to; None for all."""
        if self.use_sliding_window is None:
            asked = self.architectures[0] == "MistralForCausalLM"
        else:
            asked = self.use_sliding_window
        return self.sliding_window if asked else None

    def head_width(self) -> int | None:
        """Return the features of a head; None if heads share the width."""
        given, heads = self.head_dim, self.num_attention_heads
        return None if given is None or given * heads == self.hidden_size else given

    def model(self) -> ModelSpec:
        """Return the network described here. Raises UnsupportedModel if it cannot be built."""
        if reasons := list(self.obstacles()):
            raise UnsupportedModel(f"{CONFIG}: {'; '.join(reasons)}")
        rope = dict(self.rope_parameters or self.rope_scaling or {})
        base = rope.pop("rope_theta", None) or self.rope_theta or ROPE_BASE
        kind = rope.get("rope_type", rope.pop("type", "default"))
        fields: dict[str, Any] = {
            "name": ModelName.LLAMA,
            "layers": self.num_hidden_layers,
            "width": self.hidden_size,
            "heads": self.num_attention_heads,
            "kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_width": self.head_width(),
            "ffn_width": self.intermediate_size,
            "tied_embeddings": self.tie_word_embeddings,
            "attention_bias": self.architectures[0] == "Qwen2ForCausalLM",
            "query_key_norms": self.architectures[0] == "Qwen3ForCausalLM",
            "norm_epsilon": self.rms_norm_eps,
            "rope_base": base,
        }
        if kind != "default":
            known = RopeScaling.model_fields
            fields["rope_scaling"] = {name: rope[name] for name in known if name in rope}
            fields["rope_scaling"]["rope_type"] = kind
        try:
            return ModelSpec.model_validate(fields)
        except ValidationError as error:
            raise UnsupportedModel(f"{CONFIG}: {told(error)}") from error

    @property
    def stores_zeros_less_one(self) -> bool:
        """True if zero points of GPTQ weights are stored in the first format, less one."""
        return (self.quantization_config or {}).get("checkpoint_format") != "gptq_v2"

    def obstacles(self) -> Iterator[str]:
        """Yield the reasons why the network cannot be built here."""
        if self.architectures[0] not in ARCHITECTURES:
            known = ", ".join(f"{name} ({models})" for name, models in ARCHITECTURES.items())
            yield f"architecture {self.architectures[0]} is not supported; known are: {known}"
        rounded = self.quantization_config
        if rounded is not None and not is_known_gptq(rounded):
            told = {name: rounded.get(name) for name in GPTQ}
            yield (
                f"its weights are quantised ({told}); the only supported form is GPTQ with 4 "
                "bits; use the checkpoint with full weights"
            )
        if self.hidden_act != "silu":
            yield f"hidden_act {self.hidden_act} is not supported; silu is"
        if self.attention_bias or self.mlp_bias:
            yield "attention_bias and mlp_bias (of output and feed-forward) are not supported"
        if self.attention_dropout:
            yield f"attention_dropout {self.attention_dropout:g} is not supported; 0 is"
        rope = self.rope_parameters or self.rope_scaling or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3"):
            yield f"rope_type {kind} is not supported; default and llama3 are"
        if any(isinstance(value, dict) for value in rope.values()):
            yield "rotary positions that differ between layers are not supported"
        if (share := rope.get("partial_rotary_factor", 1)) != 1:
            yield f"partial_rotary_factor {share} is not supported; 1 is"


def parse_config(content: bytes) -> HfConfig:
    """Parse config.json. Raises UnsupportedModel if it is not valid or lacks a field."""
    try:
        return HfConfig.model_validate_json(content)
    except ValidationError as error:
        raise UnsupportedModel(f"{CONFIG}: {told(error)}") from error


def told(error: ValidationError) -> str:
    """Return a sentence that names the wrong fields and their errors."""
    return "; ".join(
        f"{'.'.join(map(str, wrong['loc'])) or 'the file'}: {wrong['msg']}"
        for wrong in error.errors(include_url=False, include_input=False)
    )


def differences(config: HfConfig, spec: TrainSpec) -> Iterator[str]:
    """Yield a sentence for each field in which a spec differs from a checkpoint's config.json."""
    there, here = shape_of(config.model(), config.vocab_size), model_shape(spec)
    for field, wanted in there.items():
        if here[field] != wanted:
            yield f"{field} is {here[field]} in the spec, {wanted} in {CONFIG}"
    if config.window is not None and tokens_per_sample(spec.data) > config.window:
        yield (
            f"data.sequence_length is {tokens_per_sample(spec.data):,}, but the model attends "
            f"only {config.window:,} tokens back (sliding_window), which is not supported; make "
            f"it {config.window:,} or less"
        )


def model_shape(spec: TrainSpec) -> dict[str, object]:
    return shape_of(spec.model, vocabulary_size(spec.data))


def shape_of(model: ModelSpec, vocabulary: int) -> dict[str, object]:
    """Return all fields that must be equal, under the spec's names."""
    return {
        "model.layers": model.layers,
        "model.width": model.width,
        "model.heads": model.heads,
        "model.kv_heads": kv_heads(model),
        "model.head_width": head_width(model),
        "model.ffn_width": ffn_width(model),
        "model.tied_embeddings": model.tied_embeddings,
        "model.attention_bias": model.attention_bias,
        "model.query_key_norms": model.query_key_norms,
        "model.norm_epsilon": model.norm_epsilon,
        "model.rope_base": model.rope_base,
        "model.rope_scaling": model.rope_scaling,
        "data.vocabulary_size": vocabulary,
    }


def is_known_gptq(rounded: dict[str, Any]) -> bool:
    """Return True if a checkpoint's quantised weights can be read (`gptq`)."""
    return all(rounded.get(name) in known for name, known in GPTQ.items())


def config_of(spec: TrainSpec, origin: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return config.json of a trained llama.

    `origin`, the config.json that training started from, keeps its fields beside the shape, such as
    the family and the token that ends a text.
    """
    model, scaling = spec.model, spec.model.rope_scaling
    family = "Llama"
    if model.attention_bias:
        family = "Qwen2"
    elif model.query_key_norms:
        family = "Qwen3"
    config: dict[str, Any] = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "max_position_embeddings": spec.data.sequence_length,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config |= origin or {}
    # The first two are written below in the form that all versions read; weights are saved in full.
    for name in ("rope_parameters", "dtype", "quantization_config"):
        config.pop(name, None)
    return config | {
        "vocab_size": vocabulary_size(spec.data),
        "hidden_size": model.width,
        "intermediate_size": ffn_width(model),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": kv_heads(model),
        "head_dim": head_width(model),
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_base,
        "rope_scaling": None if scaling is None else scaling.model_dump(),
        "torch_dtype": DTYPES[spec.precision],
    }
