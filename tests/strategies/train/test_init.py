"""First weights depend on seed and name only."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from strategies.train.init import build_model, first_values
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")


def weights(**changes: Any) -> dict[str, Tensor]:
    model = build_model(make_spec(**changes), device=CPU)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_neither_torchs_seed_nor_other_layers_matter() -> None:
    torch.manual_seed(1)
    first = weights()
    torch.manual_seed(2)
    second = weights(model__layers=2)
    for name in second:
        assert torch.equal(first[name], second[name])


def test_seeds_and_names_give_different_numbers() -> None:
    first, second = weights(), weights(training__seed=2)
    assert not torch.equal(first["head.weight"], second["head.weight"])
    assert not torch.equal(first["head.weight"], first["embedding.weight"])
    query = "layers.{}.attention.query.weight"
    assert not torch.equal(first[query.format(0)], first[query.format(1)])


def test_precision_only_rounds() -> None:
    single, double = weights(), weights(precision="float64")
    for name in single:
        assert torch.equal(single[name], double[name].float())


def test_matrices_are_normal_and_norms_are_neutral() -> None:
    matrix = first_values("x.weight", torch.Size([400, 500]), seed=1, width=160)
    assert float(matrix.std()) == pytest.approx(0.05, rel=0.01)
    assert abs(float(matrix.mean())) < 5 * 0.05 / math.sqrt(matrix.numel())
    assert first_values("norm.weight", torch.Size([3]), seed=1, width=160).tolist() == [1, 1, 1]
    assert first_values("norm.bias", torch.Size([3]), seed=1, width=160).tolist() == [0, 0, 0]


def test_the_numbers_are_pinned() -> None:
    """A change here would move every loss curve, and break resumed comparisons."""
    values = first_values("layers.0.attention.query.weight", torch.Size([2, 2]), seed=1, width=160)
    assert values.flatten().tolist() == pytest.approx(PINNED, rel=1e-12)


PINNED = [
    -0.012945705519256482,
    -0.07898196708659821,
    -0.03775547576034289,
    0.09371557470500641,
]
