"""Tiny Hugging Face models with random weights, made by transformers itself: the oracle.

transformers imports its classes when they are first named, which takes seconds: not on import.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from strategies.plan.hugging_face.hf_config import parse_config
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import TrainSpec
from tests.strategies.support.training_runs import Options, make_run_plan, make_spec

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
KINDS: dict[str, tuple[str, Options]] = {
    "llama": ("LlamaConfig", {"rms_norm_eps": 1e-5}),
    "llama3-tied": ("LlamaConfig", {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", {"sliding_window": 48}),
    "mistral-nemo": ("MistralConfig", {"head_dim": 12, "sliding_window": None}),
    "qwen2": (
        "Qwen2Config",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen3": (
        "Qwen3Config",
        {"head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
}


CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_config(kind: str, **changes: Any) -> Any:
    """What transformers calls the shape of a model."""
    name, own = KINDS[kind]
    return getattr(transformers, name)(**SHAPE | own | changes)


def make_model(kind: str, folder: Path, *, vocabulary: int = 256) -> Path:
    """Save a model of a kind in a folder. Biases and norms are random too."""
    torch.manual_seed(1)
    config = make_config(kind, vocab_size=vocabulary)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def spec_for(checkpoint: Path, **changes: Any) -> TrainSpec:
    """The spec that `trainyard models show` would print, and a short training."""
    config = parse_config((checkpoint / "config.json").read_bytes())
    model = config.model().model_dump(mode="json") | {"checkpoint": "tiny"}
    return make_spec(
        **{"model": model, "training__steps": 6, "data__sequence_length": 24, **changes}
    )


def planned(checkpoint: Path, *, ranks: int = 1, fields: Options, **changes: Any) -> RunPlan:
    spec = spec_for(checkpoint, **changes)
    return make_run_plan(spec, ranks=ranks, model_path=str(checkpoint), **fields)


def make_tokenizer(folder: Path, *, template: str | None = None, begins: bool = False) -> Any:
    """Save a byte-level BPE tokenizer of 256 tokens and a few that mark things."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    bpe.train_from_iterator(["what is the sum of two and two four is the sum"] * 3, trainer)
    if begins:
        bpe.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    tokenizer.save_pretrained(folder)
    return tokenizer
