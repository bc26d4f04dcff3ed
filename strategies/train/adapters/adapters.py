"""Adapters: small trained matrices beside the model's own weights, which stay frozen.

LoRA, Hu et al., arXiv:2106.09685. The frozen matrices may be stored in few bits (`quantised`).
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from strategies.plan.spec import AdapterSpec, FrozenBase
from strategies.train.models.network import Network


class Lora(nn.Module):
    """Term added to a frozen matrix W (out, in): alpha / rank x B A, A (rank, in), B (out, rank).

    B starts at zero, so a run starts from the frozen model's function.
    """

    def __init__(self, *, out: int, into: int, rank: int, alpha: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, into, dtype=dtype))
        self.b = nn.Parameter(torch.empty(out, rank, dtype=dtype))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return self.scale * linear(linear(x, self.a), self.b)


def adapt(model: Network, adapter: AdapterSpec, *, frozen_dtype: torch.dtype) -> None:
    """Freeze a model on the meta device, store its layers' matrices as asked, and add adapters.

    The adapters of a part of a layer are its child `lora`, under the names of their matrices.
    `frozen_dtype` is the type of the matrices that are stored as they are.
    """
    model.requires_grad_(False)
    for layer in model.layers.values():
        for part in list(layer.children()):
            matrices = {
                name: child for name, child in part.named_children() if isinstance(child, nn.Linear)
            }
            adapters = nn.ModuleDict()
            for name, matrix in matrices.items():
                frozen = stored_as(adapter.base, matrix)
                setattr(part, name, frozen)
                if name in adapter.targets:
                    adapters[name] = beside(frozen, matrix, adapter)
            if adapters:
                part.lora = adapters
    freeze_in(frozen_dtype, model)


def freeze_in(dtype: torch.dtype, model: Network) -> None:
    """Give the frozen matrices of a model on the meta device another type.

    Norms and biases are few, and keep theirs.
    """
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.ndim > 1 and weight.is_floating_point() and not weight.requires_grad:
                setattr(module, name, nn.Parameter(weight.to(dtype), requires_grad=False))
    model.tie()


def stored_as(base: FrozenBase, matrix: nn.Linear) -> nn.Module:
    """Return a linear layer in the form that stores its frozen matrix."""
    if base is FrozenBase.NONE:
        return matrix
    from strategies.train.adapters.quantised import FORMS  # needs bitsandbytes

    with torch.device("meta"):
        return FORMS[base](matrix)


def beside(frozen: nn.Module, matrix: nn.Linear, adapter: AdapterSpec) -> Lora:
    """Attach an adapter that adds to a frozen layer's output, before ranks exchange that output."""
    with torch.device("meta"):
        lora = Lora(
            out=matrix.out_features,
            into=matrix.in_features,
            rank=adapter.rank,
            alpha=adapter.alpha,
            dtype=matrix.weight.dtype,
        )
    frozen.register_forward_hook(lambda _, inputs, output: output + lora(inputs[0]))
    return lora
