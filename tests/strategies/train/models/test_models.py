"""The networks do what their papers say, whatever fills their weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from strategies.plan.spec import ModelName, ModelSpec
from strategies.train.init import build_model
from strategies.train.models.attention import Attention, rotary_table, rotate
from strategies.train.models.transformer import Transformer
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")
KINDS = [
    pytest.param({}, id="gpt"),
    pytest.param({"model__name": "llama"}, id="llama"),
    pytest.param({"model__name": "llama", "model__kv_heads": 2}, id="llama-grouped"),
]


def built(**changes: Any) -> Transformer:
    model = build_model(make_spec(precision="float64", **changes), device=CPU)
    return model.requires_grad_(False)


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("changes", KINDS)
def test_no_position_sees_a_later_one(changes: dict[str, Any]) -> None:
    model, inputs_BT = built(**changes), tokens(2, 48)
    logits_BTV = model(inputs_BT)
    assert logits_BTV.shape == (2, 48, 256)
    changed_BT = inputs_BT.clone()
    changed_BT[:, 30:] = (changed_BT[:, 30:] + 1) % 256
    difference_BT = (model(changed_BT) - logits_BTV).abs().amax(dim=-1)
    assert float(difference_BT[:, :30].max()) < 1e-12
    assert float(difference_BT[:, 30:].min()) > 1e-6


@pytest.mark.parametrize("changes", KINDS)
def test_a_short_text_gives_the_logits_of_the_same_beginning(changes: dict[str, Any]) -> None:
    model, inputs_BT = built(**changes), tokens(1, 48)
    torch.testing.assert_close(model(inputs_BT[:, :7]), model(inputs_BT)[:, :7])


def test_rotary_scores_depend_on_distance_only() -> None:
    """RoFormer (arXiv:2104.09864), equation 11."""
    rotation = rotary_table(64, 8, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 8, dtype=torch.float64, generator=generator)
    turned = [rotate(x.expand(1, 64, 1, 8), rotation)[0, :, 0] for x in (query, key)]
    scores_TT = turned[0] @ turned[1].T
    for distance in (0, 1, 5, 40):
        diagonal = scores_TT.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert float(scores_TT[0, 0] - scores_TT[40, 0]) != 0
    torch.testing.assert_close(scores_TT[0, 0], query @ key)


def test_rotary_table_is_the_papers() -> None:
    table = rotary_table(10, 4, dtype=torch.float64)[:, 0]
    angles = torch.tensor([[t, t / 100.0] for t in range(10)], dtype=torch.float64)
    torch.testing.assert_close(table[..., 0], angles.cos())
    torch.testing.assert_close(table[..., 1], angles.sin())


@pytest.mark.parametrize(("kv_heads", "head_width"), [(1, 8), (2, 8), (4, 8), (2, 12), (4, 6)])
def test_attention_equals_its_definition(kv_heads: int, head_width: int) -> None:
    """Softmax of scaled scores, head by head, with keys shared by groups of heads."""
    torch.manual_seed(1)
    model = ModelSpec(
        name=ModelName.LLAMA, layers=1, width=32, heads=4, kv_heads=kv_heads, head_width=head_width
    )
    attention = Attention(model, torch.float64).requires_grad_(False)
    rotation = rotary_table(12, head_width, dtype=torch.float64)
    x_BTC = torch.randn(2, 12, 32, dtype=torch.float64)
    query = rotate(attention.query(x_BTC).view(2, 12, 4, head_width), rotation)
    key = rotate(attention.key(x_BTC).view(2, 12, kv_heads, head_width), rotation)
    value = attention.value(x_BTC).view(2, 12, kv_heads, head_width)
    later = torch.ones(12, 12, dtype=torch.bool).triu(1)
    heads = []
    for head in range(4):
        group = head // (4 // kv_heads)
        scores = query[:, :, head] @ key[:, :, group].transpose(1, 2) / head_width**0.5
        odds = scores.masked_fill(later, float("-inf")).softmax(dim=-1)
        heads.append(odds @ value[:, :, group])
    expected = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x_BTC, rotation, None), expected)


@pytest.mark.parametrize("changes", KINDS)
def test_names_are_global_and_no_key_has_a_bias(changes: dict[str, Any]) -> None:
    names = [name for name, _ in built(**changes).named_parameters()]
    assert {name.split(".")[1] for name in names if name.startswith("layers.")} == set("0123")
    assert not any("key" in name and "bias" in name for name in names)
    assert {"embedding.weight", "norm.weight", "head.weight"} <= set(names)
