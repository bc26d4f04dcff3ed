"""Uses of the trained model at the end: its weights as one file, and a sample of text."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from strategies.plan.data.tokens import Tokenizer
from strategies.plan.run_directory import fsync_directory
from strategies.plan.spec import ModelName, TrainSpec
from strategies.train.fine_tuning.pretrained import to_hugging_face
from strategies.train.init import Source, build_model
from strategies.train.models.transformer import Transformer

TEMPERATURE = 0.7
TOP_K = 20
BESIDE = '{"tokenizer": "huggingface"}'  # the tokenizer's files are too large for a header


def export_weights(
    path: Path, weights: dict[str, Tensor], spec: TrainSpec, tokenizer: Tokenizer | None
) -> None:
    """Write whole tensors as safetensors, atomically.

    A llama is written in Hugging Face's form, any other model under its global names. The metadata
    describe the model (`spec`) and its tokens (`tokenizer`, for `stored_tokenizer`; the files
    of a checkpoint's tokenizer are beside it, and an image model has none).
    """
    if spec.model.name is ModelName.LLAMA:
        weights = to_hugging_face(weights, spec)
    aside = path.with_name(f"{path.name}.tmp")
    metadata = {"format": "pt", "spec": spec.model_dump_json()}
    if tokenizer is not None:
        metadata["tokenizer"] = BESIDE if tokenizer.files else tokenizer.stored()
    save_file(weights, aside, metadata=metadata)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
    fsync_directory(path.parent)


def sample_text(
    weights: dict[str, Tensor],
    spec: TrainSpec,
    tokenizer: Tokenizer,
    *,
    prompt: str,
    num_tokens: int,
    source: Source | None = None,
) -> str:
    """Return the prompt and the model's continuation, on CPU; the same for the same weights.

    Weights that `weights` lacks are frozen, and read from `source` again. Without a prompt, or with
    one that has no tokens, the text continues a line break.
    """
    model = build_model(spec, device=torch.device("cpu"), source=source)
    assert isinstance(model, Transformer)
    with torch.no_grad():
        for name, parameter in model.named_weights():
            if parameter.requires_grad:
                parameter.copy_(weights[name])
    begin = tokenizer.encode(prompt).tolist() or tokenizer.encode("\n").tolist() or [0]
    written = generate(
        model,
        begin,
        num_tokens=num_tokens,
        vocabulary=tokenizer.size,
        seed=spec.training.seed,
    )
    return tokenizer.decode(written)


@torch.inference_mode()
def generate(
    model: Transformer, prompt: list[int], *, num_tokens: int, vocabulary: int, seed: int
) -> list[int]:
    """Return `prompt` and `num_tokens` more, each drawn from the TOP_K likeliest of the vocabulary.

    The model may be sized for more tokens than the vocabulary has.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(num_tokens):
        context = torch.tensor([tokens[-model.sequence_length :]])
        likeliest = torch.topk(model(context)[0, -1, :vocabulary], min(TOP_K, vocabulary))
        odds = torch.softmax(likeliest.values / TEMPERATURE, dim=-1)
        drawn = torch.multinomial(odds, 1, generator=generator)
        tokens.append(int(likeliest.indices[drawn].item()))
    return tokens
