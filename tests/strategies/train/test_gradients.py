"""The gradient norm, on one rank; the matrix has it for every layout."""

import math

import pytest
import torch
from torch import nn

from strategies.plan.layout import Layout
from strategies.train.gradients import clip_gradients, norm_of, weights_of
from strategies.train.mesh import Mesh

ALONE = Mesh(layout=Layout(), rank=0, device=torch.device("cpu"))


@pytest.mark.parametrize("shapes", [[(256, 160), (640, 160), (160,)], [(2048, 2048)]])
def test_the_gradient_norm_is_right_to_seven_digits(shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    exact = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    assert norm_of(gradients, ALONE.device).item() == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_scales_only_what_is_too_long(max_norm: float) -> None:
    linear = nn.Linear(3, 2, dtype=torch.float64)
    linear(torch.ones(1, 3, dtype=torch.float64)).sum().backward()
    before = [parameter.grad.clone() for parameter in linear.parameters()]
    length = math.sqrt(sum(float(grad.square().sum()) for grad in before))
    norm = clip_gradients(weights_of(list(linear.named_parameters()), ALONE), max_norm, ALONE)
    assert norm.item() == pytest.approx(length, rel=1e-15)
    scale = min(1.0, max_norm / (length + 1e-6))
    for parameter, grad in zip(linear.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.grad, grad * scale)
