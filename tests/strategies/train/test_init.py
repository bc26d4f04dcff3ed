"""First weights depend on seed and name only."""

import itertools
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


def drawn(name: str, *shape: int, region: Any = None, width: int | None = 160) -> Tensor:
    whole = tuple(slice(0, length) for length in shape)
    size = torch.Size(shape)
    return first_values(name, size, region or whole, seed=1, width=width, device=CPU)


def test_matrices_are_normal_and_norms_are_neutral() -> None:
    matrix = drawn("x.weight", 400, 500)
    assert float(matrix.std()) == pytest.approx(0.05, rel=0.01)
    assert abs(float(matrix.mean())) < 5 * 0.05 / math.sqrt(matrix.numel())
    assert drawn("norm.weight", 3).tolist() == [1, 1, 1]
    assert drawn("norm.bias", 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["x.weight", "layers.0.attention.lora.query.a", "x.lora.query.b"])
def test_a_region_is_a_part_of_the_whole(name: str) -> None:
    whole = drawn(name, 37, 5, 3)
    for rows, columns in itertools.product([(0, 37), (5, 6), (20, 37), (9, 9)], [(0, 5), (1, 3)]):
        region = (slice(*rows), slice(*columns), slice(0, 3))
        assert torch.equal(drawn(name, 37, 5, 3, region=region), whole[region])
    assert drawn("norm.weight", 5, region=(slice(1, 3),)).tolist() == [1, 1]


def test_only_the_rows_of_a_region_are_drawn() -> None:
    """The matrix has more numbers than any memory holds."""
    region = (slice(2**40, 2**40 + 2), slice(0, 512))
    assert drawn("x.weight", 2**41, 512, region=region).shape == (2, 512)


def test_the_numbers_are_pinned() -> None:
    """A change here would move every loss curve, and break resumed comparisons."""
    values = drawn("layers.0.attention.query.weight", 2, 2)
    assert values.flatten().tolist() == pytest.approx(PINNED, rel=1e-7)


PINNED = [
    0.07621029764413834,
    0.05221687629818916,
    -0.0025698402896523476,
    -0.07195939868688583,
]
