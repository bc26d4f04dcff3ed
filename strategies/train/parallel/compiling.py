"""torch.compile, layer by layer: fused kernels, generated for this machine."""

import torch

from strategies.plan.compilers import why_no_compiler
from strategies.plan.run_directory import NotEquipped
from strategies.train.models.network import Network


def compile_layers(model: Network, device: torch.device) -> None:
    """Compile every layer's forward; equal layers share one compilation.

    Raises NotEquipped if the machine cannot build the kernels.
    """
    missing = why_no_compiler("cuda" if device.type == "cuda" else "cpu")
    if missing:
        raise NotEquipped(
            f"compile: true builds kernels on every node, and this one lacks {missing}; install "
            "it, or leave compile out"
        )
    for layer in model.layers.values():
        layer.forward = torch.compile(layer.forward)
