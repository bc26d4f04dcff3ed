"""Copies that micro-batches share, against autocast's own, which each of them makes for itself."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from strategies.plan.spec import Precision, TrainSpec
from strategies.train.init import build_model
from strategies.train.models.network import Network
from strategies.train.models.transformer import Head
from strategies.train.parallel.step_copies import StepCopies
from strategies.train.precision import compute_in, feature_dtype_of
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")
MICRO_BATCHES, TOKENS = 4, 16
ADAPTER = {"rank": 4, "targets": ["query", "down"]}
CHANGES: list[dict[str, Any]] = [
    {"model__name": "gpt"},
    {"model__name": "llama"},
    {"model__name": "llama", "adapter": ADAPTER},
]


def model_of(spec: TrainSpec) -> Network:
    """The whole model, as a pipeline's rank would compute with it."""
    model = build_model(spec, device=CPU)
    compute_in(spec.precision, model, CPU)
    assert isinstance(model.head, Head)
    model.head.keeps_gradients = False
    return model


def losses_of(module: nn.Module) -> list[Tensor]:
    """Losses of several micro-batches, none of which has gone back yet."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(MICRO_BATCHES):
        tokens_BT = torch.randint(0, 250, (2, TOKENS), generator=generator)
        found.append(module(tokens_BT, labels_BT=tokens_BT.roll(-1, 1)))
    return found


def gradients_of(model: Network, losses: Iterable[Tensor]) -> dict[str, Tensor]:
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    return {name: weight.grad for name, weight in model.named_weights() if weight.grad is not None}


def kept_in_half(module: nn.Module, shapes: set[torch.Size]) -> int:
    """Bytes of half-precision matrices of these shapes that several forward passes keep."""
    kept: dict[int, int] = {}

    def watch(tensor: Tensor) -> Tensor:
        is_matrix = tensor.ndim == 2 and {tensor.shape, tensor.T.shape} & shapes
        if tensor.itemsize == 2 and is_matrix:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with saved_tensors_hooks(watch, lambda tensor: tensor):
        losses_of(module)
    return sum(kept.values())


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
@pytest.mark.parametrize("changes", CHANGES, ids=["gpt", "llama", "lora"])
def test_gradients_are_those_of_a_copy_for_each(
    changes: dict[str, Any], precision: Precision
) -> None:
    spec = make_spec(precision=precision, **changes)
    alone, shared = model_of(spec), model_of(spec)
    copies = StepCopies(shared, feature_dtype_of(precision))
    wanted = gradients_of(alone, losses_of(alone))
    with copies.step():
        found = gradients_of(shared, losses_of(copies))
    assert found.keys() == wanted.keys() != set()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("model", ["gpt", "llama"])
def test_one_copy_of_a_matrix_is_kept_and_none_after_the_step(model: str) -> None:
    spec = make_spec(model__name=model, precision="bfloat16")
    network = model_of(spec)
    copies = StepCopies(network, torch.bfloat16)
    embedding = network.get_parameter("embedding.weight")
    matrices = [p for p in network.parameters() if p.ndim > 1 and p is not embedding]
    shapes, one = {each.shape for each in matrices}, 2 * sum(map(Tensor.numel, matrices))
    assert kept_in_half(network, shapes) == MICRO_BATCHES * one
    with copies.step():
        assert kept_in_half(copies, shapes) == one
    assert copies.copies == {}
    with torch.no_grad():
        for own, other in zip(losses_of(copies), losses_of(network), strict=True):
            assert torch.equal(own, other), "beside a step the stage computes as ever"
