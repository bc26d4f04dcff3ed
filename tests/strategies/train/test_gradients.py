"""The gradient norm, on one rank; the matrix has it for every layout."""

import math

import pytest
import torch
from torch import nn

from strategies.plan.layout import Layout
from strategies.plan.planner import plan
from strategies.train.gradients import clip_gradients, norm_of, weights_of
from strategies.train.mesh import Mesh
from tests.strategies.support.fake_ranks import collectives_of_a_step
from tests.strategies.support.training_runs import HARDWARE, make_spec

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


def test_the_norms_of_tensor_ranks_are_added_up_in_one_message() -> None:
    layers, width, tokens = 3, 32, 16
    spec = make_spec(
        model={"name": "gpt", "layers": layers, "width": width, "heads": 4},
        data={"dataset": "ragged", "tokenizer": "bytes", "sequence_length": tokens},
        parallelism={"strategy": "tensor", "sequence_parallel": True},
        training__global_batch_size=2,
    )
    planned = plan(spec, nodes=1, ranks_per_node=2, hardware=HARDWARE)
    assert planned.runnable, planned.problems
    calls = collectives_of_a_step(spec, planned)
    sums = [call.numel for call in calls if call.kind == "all_reduce"]
    of_the_loss, all_norms = [2 * tokens, 2 * 2 * tokens], 2 * (2 * layers + 1) * width
    assert sums == [*of_the_loss, all_norms, 1]
