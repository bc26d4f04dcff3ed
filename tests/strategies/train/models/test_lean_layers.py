"""Layers that keep only their inputs, against the same with torch's own operations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu, linear, rms_norm

from strategies.train.models.activated_linear import ActivatedPart, Activation, Down
from strategies.train.models.llama import gated
from strategies.train.models.norms import RMSNorm

WIDTH, INNER = 24, 40
TYPES = [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)]


def numbers(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def apart(found: Tensor, wanted: Tensor) -> float:
    """The relative L2 distance."""
    assert found.shape == wanted.shape
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


def after(layer: Down, activation: Activation, *given: Tensor) -> Tensor:
    """The layer behind an activation."""
    part = ActivatedPart()
    part.down = layer
    return part.finish(activation, *given)


def kept_bytes(run: Any) -> int:
    """What a forward pass keeps for its backward pass, without parameters."""
    kept: dict[int, int] = {}

    def watch(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(watch, lambda tensor: tensor):
        run()
    return sum(kept.values())


@pytest.mark.parametrize(("dtype", "band"), TYPES, ids=str)
def test_the_norm_and_its_gradients_are_torchs(dtype: torch.dtype, band: float) -> None:
    norm = RMSNorm(WIDTH, eps=1e-5, dtype=dtype)
    weight = numbers(WIDTH, dtype=dtype, seed=0)
    norm.weight = nn.Parameter(weight.detach())
    x, up = (numbers(3, 5, WIDTH, dtype=dtype, seed=seed) for seed in (1, 2))
    wanted = rms_norm(x.double(), (WIDTH,), weight.double(), 1e-5)
    found = norm(x)
    assert found.dtype == dtype
    assert apart(found, wanted) < band
    ours = torch.autograd.grad(found, (x, norm.weight), up)
    theirs = torch.autograd.grad(wanted, (x, weight), up.double())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert apart(mine, other) < band
    assert kept_bytes(lambda: norm(x)) == x.nbytes


@pytest.mark.parametrize(("dtype", "band"), TYPES, ids=str)
@pytest.mark.parametrize(("activation", "inputs"), [(gelu, 1), (gated, 2)])
def test_the_layer_behind_an_activation_and_its_gradients_are_torchs(
    activation: Activation, inputs: int, dtype: torch.dtype, band: float
) -> None:
    layer = Down(INNER, WIDTH, bias=False, dtype=dtype)
    given = [numbers(3, 5, INNER, dtype=dtype, seed=seed) for seed in range(inputs)]
    up = numbers(3, 5, WIDTH, dtype=dtype, seed=5)
    wanted = linear(activation(*(each.double() for each in given)), layer.weight.double())
    found = after(layer, activation, *given)
    assert apart(found, wanted) < band
    ours = torch.autograd.grad(found, (*given, layer.weight), up)
    theirs = torch.autograd.grad(wanted, (*given, layer.weight), up.double())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == dtype
        assert apart(mine, other) < band
    assert kept_bytes(lambda: after(layer, activation, *given)) == sum(
        each.nbytes for each in given
    )


def test_hooks_of_the_layer_see_its_input_and_its_output() -> None:
    layer = Down(INNER, WIDTH, bias=False)
    seen: list[Tensor] = []
    layer.register_forward_hook(lambda module, inputs, output: seen.extend((*inputs, output)))
    x = numbers(3, INNER, dtype=torch.float32, seed=0)
    found = after(layer, gelu, x)
    assert torch.equal(seen[0], gelu(x))
    assert seen[1] is found


def test_a_frozen_matrix_gets_no_gradient() -> None:
    layer = Down(INNER, WIDTH, bias=False).requires_grad_(False)
    x = numbers(3, INNER, dtype=torch.float32, seed=0)
    after(layer, gelu, x).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None
