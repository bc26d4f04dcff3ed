"""First weights that do not depend on the layout: a name and a seed give the whole tensor.

A rank that holds only a part of a tensor draws all of it and keeps its slice, so every layout
starts from the same numbers. Norm weights start at 1, biases at 0, matrices at a normal
distribution with deviation sqrt(2 / (5 x width)) (SmallInit, arXiv:1910.05895, equation 6:
0.05 at width 160, 0.023 at width 768).
"""

import hashlib
import importlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from strategies.catalog import MODELS, VOCABULARY
from strategies.models.transformer import Transformer
from strategies.precision import dtype_of
from strategies.spec import TrainSpec

Slice = Callable[[str, Tensor], Tensor]


def whole(name: str, full: Tensor) -> Tensor:
    """The slice of a rank that holds everything."""
    return full


def build_model(spec: TrainSpec, *, device: torch.device, take: Slice = whole) -> Transformer:
    """The model with its first weights; `take` says which part of each tensor this rank holds."""
    module, _, name = MODELS[spec.model.name].partition(":")
    make: Callable[..., Transformer] = getattr(importlib.import_module(module), name)
    with torch.device("meta"):  # no storage yet: torch's own first values are not wanted
        model = make(
            spec.model,
            vocabulary=VOCABULARY[spec.data.tokenizer],
            sequence_length=spec.data.sequence_length,
            dtype=dtype_of(spec.precision),
        )
    model.to_empty(device=device)
    model.compute_constants(device)
    initialise(model, seed=spec.training.seed, width=spec.model.width, take=take)
    return model


@torch.no_grad()
def initialise(model: nn.Module, *, seed: int, width: int, take: Slice = whole) -> None:
    """Overwrite every parameter by its first value."""
    for name, parameter in model.named_parameters():
        parameter.copy_(take(name, first_values(name, parameter.shape, seed=seed, width=width)))


def first_values(name: str, shape: torch.Size, *, seed: int, width: int) -> Tensor:
    """The whole of one tensor, in float64, from its name."""
    if len(shape) == 1:
        return (torch.zeros if name.endswith("bias") else torch.ones)(shape, dtype=torch.float64)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    deviation = math.sqrt(2 / (5 * width))
    return torch.randn(shape, generator=generator, dtype=torch.float64) * deviation
