"""What the trained model is used for at the end: its weights as one file, and a sample of text."""

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from strategies.init import build_model
from strategies.models.transformer import Transformer
from strategies.run_directory import fsync_directory
from strategies.spec import TrainSpec

TEMPERATURE = 0.7
TOP_K = 20


def export_weights(path: Path, weights: dict[str, Tensor], spec: TrainSpec) -> None:
    """Write whole tensors under their global names as safetensors, atomically."""
    aside = path.with_name(f"{path.name}.tmp")
    save_file(weights, aside, metadata={"format": "pt", "spec": spec.model_dump_json()})
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)
    fsync_directory(path.parent)


def sample_text(weights: dict[str, Tensor], spec: TrainSpec, *, prompt: str, num_bytes: int) -> str:
    """The prompt and what the model writes after it, on CPU; the same for the same weights."""
    model = build_model(spec, device=torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in model.named_weights():
            parameter.copy_(weights[name])
    written = generate(
        model, prompt.encode() or b"\n", num_bytes=num_bytes, seed=spec.training.seed
    )
    return written.decode("utf-8", errors="replace")


@torch.inference_mode()
def generate(model: Transformer, prompt: bytes, *, num_bytes: int, seed: int) -> bytes:
    """`prompt` and `num_bytes` more, each drawn from the TOP_K likeliest."""
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(num_bytes):
        context = torch.tensor([tokens[-model.sequence_length :]])
        likeliest = torch.topk(model(context)[0, -1], TOP_K)
        odds = torch.softmax(likeliest.values / TEMPERATURE, dim=-1)
        drawn = torch.multinomial(odds, 1, generator=generator)
        tokens.append(int(likeliest.indices[drawn].item()))
    return bytes(tokens)
