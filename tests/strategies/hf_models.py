"""Tiny Hugging Face models with random weights, made by transformers itself: the oracle."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SHAPE, rms_norm_eps=1e-5),
    "llama3-tied": LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True),
    "mistral": MistralConfig(**SHAPE, sliding_window=48),
    "qwen2": Qwen2Config(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
}


def make_model(kind: str, folder: Path, *, dtype: torch.dtype = torch.float32) -> Path:
    """Save a model of a kind in a folder. Biases and norms are random too."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind], dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder
