"""A backward pass in halves, as zero-bubble schedules make it, computes nothing twice."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils._python_dispatch import TorchDispatchMode

from strategies.train.models import gpt, llama
from strategies.train.models.attention import rotary_table
from strategies.train.models.linear_cross_entropy import Words, linear_cross_entropy
from tests.strategies.support.training_runs import make_spec

SAMPLES, TOKENS, WIDTH, HEADS, WORDS = 2, 12, 16, 4, 40


class Products(TorchDispatchMode):
    """Counts multiplications of matrices."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.mm.out):
            self.count += args[0].numel() * args[1].shape[1]
        return func(*args, **(kwargs or {}))


class Layer(nn.Module):
    def __init__(self, family: Any, name: str) -> None:
        super().__init__()
        spec = make_spec(model={"name": name, "layers": 1, "width": WIDTH, "heads": HEADS})
        self.block = family.Block(spec.model, torch.float64)
        self.rotation = rotary_table(TOKENS, WIDTH // HEADS, dtype=torch.float64)

    def forward(self, x_BTC: Tensor) -> Tensor:
        found: Tensor = self.block(x_BTC, self.rotation, None)
        return found


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, WIDTH, dtype=torch.float64))

    def forward(self, x_BTC: Tensor) -> Tensor:
        labels_N = torch.arange(SAMPLES * TOKENS) % WORDS
        return linear_cross_entropy(
            x_BTC.flatten(0, 1),
            self.weight,
            labels_N,
            at_once=8,
            words=Words(),
            keeps_gradients=False,
        )


@pytest.mark.parametrize("family", [gpt, llama], ids=["gpt", "llama"])
def test_a_layer_multiplies_in_halves_as_much_as_at_once(family: Any) -> None:
    torch.manual_seed(0)
    layer = Layer(family, family.__name__.rpartition(".")[2])
    at_once, in_halves = products_of(layer)
    assert in_halves == at_once


def test_only_the_logits_are_computed_once_more() -> None:
    torch.manual_seed(0)
    at_once, in_halves = products_of(Loss())
    assert in_halves == at_once + SAMPLES * TOKENS * WIDTH * WORDS


def products_of(module: nn.Module) -> tuple[int, int]:
    """Multiplications of a backward pass at once and in halves, whose gradients are the same."""
    given = torch.randn(SAMPLES, TOKENS, WIDTH, dtype=torch.float64)
    parameters = list(module.parameters())

    x_BTC = given.clone().requires_grad_()
    found = module(x_BTC)
    gradient = torch.randn_like(found)
    with Products() as at_once:
        found.backward(gradient)
    expected = [x_BTC.grad, *(parameter.grad for parameter in parameters)]

    x_BTC = given.clone().requires_grad_()
    module.zero_grad()
    found = module(x_BTC)
    with Products() as in_halves:
        _, groups = stage_backward_input([found], [gradient], [x_BTC], iter(parameters))
        stage_backward_weight(iter(parameters), groups)
    torch.testing.assert_close([x_BTC.grad, *(p.grad for p in parameters)], expected)
    return at_once.count, in_halves.count
