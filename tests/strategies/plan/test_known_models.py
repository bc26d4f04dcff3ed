"""The catalog's models have as many numbers as transformers builds."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from strategies.plan.known_models import (
    KNOWN,
    Shape,
    UnknownModel,
    as_spec,
    from_config,
    known_model,
)
from strategies.plan.shapes import count_parameters

PUBLISHED = {  # as their model cards and papers say
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "opt-125m": 125_239_296,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
}


def transformers_config(name: str, shape: Shape) -> Any:
    """The same model as transformers describes it."""
    import transformers

    if name.startswith("gpt2"):
        return transformers.GPT2Config(
            n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads, n_positions=1024
        )
    common = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
    }
    if name.startswith("opt"):
        return transformers.OPTConfig(
            ffn_dim=shape.ffn_width, word_embed_proj_dim=shape.width, **common
        )
    common |= {"intermediate_size": shape.ffn_width, "num_key_value_heads": shape.kv_heads}
    common |= {"head_dim": shape.head_width} if shape.head_width else {}
    make = {
        "qwen2.5": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "mistral": transformers.MistralConfig,
    }
    return make.get(name.partition("-")[0], transformers.LlamaConfig)(**common)


@pytest.mark.xdist_group("ranks")  # where transformers is imported once
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_model_has_as_many_parameters_as_transformers_builds(name: str) -> None:
    from transformers import AutoModelForCausalLM

    shape = KNOWN[name]
    config = transformers_config(name, shape)
    config.num_hidden_layers, layers = 2, shape.layers  # layers are alike: two of them tell all
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    two = sum(parameter.numel() for parameter in model.parameters())
    layer = sum(parameter.numel() for at, parameter in model.named_parameters() if ".0." in at)
    assert two + (layers - 2) * layer == shape.count()
    config.num_hidden_layers = layers
    assert replace(from_config(json.loads(config.to_json_string())), dtype=shape.dtype) == shape


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_model_has_as_many_parameters_as_published(name: str) -> None:
    assert known_model(name).count() == PUBLISHED[name]


@pytest.mark.parametrize("name", [name for name in KNOWN if KNOWN[name].gated])
def test_a_llama_is_planned_with_all_its_parameters_but_biases(name: str) -> None:
    shape = KNOWN[name]
    planned = count_parameters(as_spec(shape), vocabulary=shape.vocabulary)
    biases = shape.width + 2 * shape.width // shape.heads * shape.kv_heads
    missing = shape.layers * biases if shape.query_key_value_biases else 0
    assert planned == shape.count() - missing


def test_a_gpt_is_planned_with_a_percent_less_at_most() -> None:
    for name in ("gpt2", "gpt2-xl", "opt-125m", "opt-66b"):
        shape = KNOWN[name]
        planned = count_parameters(as_spec(shape), vocabulary=shape.vocabulary)
        assert 0.98 < planned / shape.count() < 1


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(UnknownModel, match=r"model 'gpt5' is not known; known are: gpt2, "):
        known_model("gpt5")
    with pytest.raises(UnknownModel, match=r"model_type 'bert' is not known; known are: llama"):
        from_config({"model_type": "bert"})
    with pytest.raises(UnknownModel, match=r"config\.json of a llama model has no hidden_size"):
        from_config({"model_type": "llama", "num_attention_heads": 2})
