"""The loss of parts adds up to that of the whole, in value and in gradient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.train.models.loss import IGNORED, token_loss_sum


def test_it_is_the_negative_log_likelihood_of_the_valid_tokens() -> None:
    logits_BTV = torch.tensor([[[0.0, math.log(3)], [5.0, 5.0], [1.0, 2.0]]], dtype=torch.float64)
    labels_BT = torch.tensor([[1, 0, IGNORED]])
    expected = -math.log(3 / 4) - math.log(1 / 2)
    assert float(token_loss_sum(logits_BTV, labels_BT)) == pytest.approx(expected)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 99))
def test_ragged_parts_add_up_to_the_gradient_of_the_whole(lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(lengths), 6, 5, dtype=torch.float64, generator=generator)
    labels = torch.randint(5, (len(lengths), 6), generator=generator)
    for row, length in enumerate(lengths):
        labels[row, length:] = IGNORED
    valid = sum(lengths)
    whole, parts = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = token_loss_sum(whole, labels) / valid
    loss.backward()
    total = 0.0
    for row in range(len(lengths)):
        share = token_loss_sum(parts[row : row + 1], labels[row : row + 1]) / valid
        share.backward()
        total += share.item()
    assert total == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(parts.grad, whole.grad)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(mean.item(), rel=1e-12)
