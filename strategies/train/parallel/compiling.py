"""torch.compile, layer by layer: fused kernels, generated for this machine."""

import torch

from strategies.train.models.network import Network


class NoCompiler(Exception):
    """Machine on which torch.compile cannot generate code."""


def compile_layers(model: Network, device: torch.device) -> None:
    """Compile every layer's forward; equal layers share one compilation.

    Raises NoCompiler if the machine has no C++ compiler, which torch needs on CPU.
    """
    if device.type == "cpu":
        require_compiler()
    for layer in model.layers.values():
        layer.forward = torch.compile(layer.forward)


def require_compiler() -> None:
    # Takes a second, which runs without compile are spared.
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise NoCompiler(
            "compile: true needs a C++ compiler on every node (g++ or clang++, or CXX naming "
            "one); install one, or leave compile out"
        ) from error
