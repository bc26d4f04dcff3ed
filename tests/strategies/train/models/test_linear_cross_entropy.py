"""The loss of a head in runs of tokens, against torch's own of whole logits in float64."""

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy

from strategies.plan.loss_runs import BYTES_AT_ONCE, tokens_at_once
from strategies.train.models import linear_cross_entropy as tested
from strategies.train.models.linear_cross_entropy import HALF, Words, linear_cross_entropy
from strategies.train.models.loss import IGNORED

TOKENS, WIDTH, WORDS = 50, 16, 300


def features_and_matrix(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x_NC = torch.randn(TOKENS, WIDTH, generator=generator).to(dtype)
    weight_VC = torch.randn(WORDS, WIDTH, generator=generator).to(dtype)
    labels_N = torch.randint(WORDS, (TOKENS,), generator=generator)
    labels_N[::7] = IGNORED
    return x_NC.requires_grad_(), weight_VC.requires_grad_(), labels_N


def apart(found: Tensor | None, wanted: Tensor | None) -> float:
    """The relative L2 distance."""
    assert found is not None
    assert wanted is not None
    return float((found.double() - wanted).norm() / wanted.norm())


def fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a GPU's kernels for 16-bit logits, which a CPU has too."""
    monkeypatch.setattr(tested, "may_be_fused", lambda logits_nV, _: logits_nV.dtype in HALF)


@pytest.mark.parametrize("keeps_gradients", [True, False])
@pytest.mark.parametrize("at_once", [1, 7, TOKENS, 64])
@pytest.mark.parametrize(
    ("dtype", "is_fused", "loss_band", "band"),
    [
        (torch.float64, False, 1e-15, 1e-14),
        (torch.float32, False, 1e-6, 1e-6),
        # One rounding of each logit, of its gradient, and of what is added up from it.
        (torch.bfloat16, False, 1e-3, 1e-2),
        (torch.float16, False, 1e-4, 2e-3),
        (torch.bfloat16, True, 1e-3, 1e-2),
        (torch.float16, True, 1e-4, 2e-3),
    ],
    ids=str,
)
def test_it_and_its_gradient_are_torchs(
    dtype: torch.dtype,
    loss_band: float,
    band: float,
    at_once: int,
    keeps_gradients: bool,
    is_fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_fused:
        fuse(monkeypatch)
    x_NC, weight_VC, labels_N = features_and_matrix(dtype)
    loss = linear_cross_entropy(
        x_NC,
        weight_VC,
        labels_N,
        at_once=at_once,
        words=Words(),
        keeps_gradients=keeps_gradients,
    )
    (loss * 0.3).backward()
    true_x, true_weight = (t.detach().double().requires_grad_() for t in (x_NC, weight_VC))
    true = cross_entropy(true_x @ true_weight.T, labels_N, ignore_index=IGNORED, reduction="sum")
    (true * 0.3).backward()
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    assert apart(loss.detach(), true.detach()) < loss_band
    assert apart(x_NC.grad, true_x.grad) < band
    assert apart(weight_VC.grad, true_weight.grad) < band
    assert x_NC.grad is not None
    assert not x_NC.grad[::7].any()


def test_a_frozen_matrix_gets_no_gradient_and_features_the_same() -> None:
    x_NC, weight_VC, labels_N = features_and_matrix(torch.float64)
    found = []
    for matrix in (weight_VC, weight_VC.detach()):
        loss = linear_cross_entropy(
            x_NC, matrix, labels_N, at_once=8, words=Words(), keeps_gradients=True
        )
        found.append(torch.autograd.grad(loss, x_NC)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("keeps_gradients", [True, False])
def test_no_logits_are_kept_for_the_backward_pass(keeps_gradients: bool) -> None:
    x_NC, weight_VC, labels_N = features_and_matrix(torch.float32)
    kept: list[int] = []

    def watch(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(watch, lambda tensor: tensor):
        linear_cross_entropy(
            x_NC,
            weight_VC,
            labels_N,
            at_once=8,
            words=Words(),
            keeps_gradients=keeps_gradients,
        )
    assert max(kept, default=0) == (0 if keeps_gradients else WORDS * WIDTH) < TOKENS * WORDS


def test_without_labels_it_is_zero() -> None:
    x_NC, weight_VC, labels_N = features_and_matrix(torch.float32)
    labels_N.fill_(IGNORED)
    loss = linear_cross_entropy(
        x_NC, weight_VC, labels_N, at_once=8, words=Words(), keeps_gradients=True
    )
    loss.backward()
    assert float(loss.detach()) == 0
    assert weight_VC.grad is not None
    assert not weight_VC.grad.any()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("words", [256, 32_000, 128_256, 2**31])
@pytest.mark.parametrize("parts", [1, 3, 1000])
def test_runs_cover_all_tokens_and_none_is_too_large(device: str, words: int, parts: int) -> None:
    for tokens in (1, 96, 8192, 65_536):
        at_once = tokens_at_once(device, tokens=tokens, words=words, parts=parts)
        assert 1 <= at_once <= tokens
        assert at_once == 1 or 4 * words * at_once <= BYTES_AT_ONCE[device]
        assert -(-tokens // at_once) >= min(parts, tokens) // 2
