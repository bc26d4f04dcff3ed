"""Cross-entropy of a linear layer's outputs that never exist all at once.

A vocabulary is large: for 8,192 tokens and 128,256 words the logits take 4 GiB in float32, and so
do their log-probabilities and their gradient. Here head and loss take a run of tokens at a time.
The gradient of a run's logits is known as soon as its loss is, so both products of the backward
pass are made in the forward pass, and the backward pass only scales them. Where several forward
passes come before the first backward pass, as in pipelines, each would keep a gradient of the head:
there the backward pass computes the logits of each run again.

Ranks may have a part of the vocabulary each: they agree on three numbers for every token. The
method: Hsu et al., Liger Kernel (arXiv:2410.10989), section 3.2.

N tokens, n of a run, C features, V words of this rank.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup
from torch.nn.functional import log_softmax

from strategies.train.models.autocast import without_autocast
from strategies.train.models.wanted import wanted

HALF = (torch.bfloat16, torch.float16)


class Words(NamedTuple):
    """Part of the vocabulary that this rank has."""

    first: int = 0
    group: ProcessGroup | None = None
    """Ranks that have the others; None: this rank has all."""


def linear_cross_entropy(
    x_NC: Tensor,
    weight_VC: Tensor,
    labels_N: Tensor,
    *,
    at_once: int,
    words: Words,
    keeps_gradients: bool,
) -> Tensor:
    """Return the cross-entropy of x W^T in nats, summed over tokens with a label, 0-d.

    It is computed in float32 at least, `at_once` tokens at a time. A label below 0 is none. The
    gradient of x is this rank's part of a sum over ranks.
    """
    keeps_gradients = keeps_gradients and torch.is_grad_enabled()
    loss: Tensor = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        x_NC, weight_VC.to(x_NC.dtype), labels_N, at_once, words, keeps_gradients
    )
    return loss


class LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of `linear_cross_entropy`."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_VC: Tensor,
        labels_N: Tensor,
        at_once: int,
        words: Words,
        keeps_gradients: bool,
    ) -> Tensor:
        ctx.at_once, ctx.words = at_once, words
        wide = torch.promote_types(x_NC.dtype, torch.float32)
        loss, agreed = torch.zeros((), dtype=wide, device=x_NC.device), []
        gradients = Gradients(x_NC, weight_VC, ctx.needs_input_grad) if keeps_gradients else None
        with without_autocast(x_NC):
            for run in runs(len(x_NC), at_once):
                logits_nV, labels_n = x_NC[run] @ weight_VC.T, labels_N[run]
                if may_be_fused(logits_nV, words):
                    losses_n = fused_losses_of(
                        logits_nV, labels_n, makes_gradient=gradients is not None
                    )
                else:
                    logits_nV = widened(logits_nV)
                    losses_n, agreed_2n = losses_of(logits_nV, labels_n, words)
                    agreed.append(agreed_2n)
                    if gradients is not None:
                        to_gradient_(logits_nV, labels_n, words)
                if gradients is not None:
                    gradients.add(run, logits_nV, labels_n)
                loss += losses_n.sum()
                del logits_nV  # before the next ones are made
        ctx.gradients = gradients
        if gradients is None:
            ctx.save_for_backward(x_NC, weight_VC, labels_N, *agreed)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            x_NC, weight_VC, labels_N, *agreed = ctx.saved_tensors
            gradients = Gradients(x_NC, weight_VC, wanted(ctx))
            with without_autocast(x_NC):
                for number, run in enumerate(runs(len(x_NC), ctx.at_once)):
                    logits_nV, labels_n = x_NC[run] @ weight_VC.T, labels_N[run]
                    if may_be_fused(logits_nV, ctx.words):
                        fused_losses_of(logits_nV, labels_n, makes_gradient=True)
                    else:
                        largest_n1, sums_n1 = agreed[number][:, :, None]
                        logits_nV = widened(logits_nV)
                        logits_nV.sub_(largest_n1).exp_().div_(sums_n1)
                        to_gradient_(logits_nV, labels_n, ctx.words)
                    gradients.add(run, logits_nV, labels_n)
                    del logits_nV
        return *gradients.scaled(gradient), None, None, None, None


class Gradients:
    """Gradients of features and matrix, added up run by run."""

    def __init__(self, x_NC: Tensor, weight_VC: Tensor, needed: tuple[bool, ...]) -> None:
        self.x_NC, self.weight_VC = x_NC, weight_VC
        self.of_x = torch.empty_like(x_NC) if needed[0] else None
        self.needs_weight = needed[1]
        self.of_weight: Tensor | None = None

    def add(self, run: slice, of_logits_nV: Tensor, labels_n: Tensor) -> None:
        """Add the gradients of a run of tokens, given that of their logits.

        A token without a label has none, whatever its logits' says.
        """
        x_nC, has_label_n1 = self.x_NC[run], (labels_n >= 0)[:, None]
        rounded_nV = of_logits_nV.to(x_nC.dtype)
        if self.of_x is not None:
            torch.mm(rounded_nV, self.weight_VC, out=self.of_x[run]).mul_(has_label_n1)
        if not self.needs_weight:
            return
        labelled_nC = x_nC * has_label_n1
        if self.of_weight is None:
            found_VC = rounded_nV.T @ labelled_nC
            is_whole = len(x_nC) == len(self.x_NC)
            self.of_weight = found_VC if is_whole else widened(found_VC)
        elif self.of_weight.dtype == rounded_nV.dtype:
            self.of_weight.addmm_(rounded_nV.T, labelled_nC)
        else:
            self.of_weight += rounded_nV.T @ labelled_nC

    def scaled(self, factor: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return both times a factor, 0-d, in the types of features and matrix."""
        of_x, of_weight = self.of_x, self.of_weight
        self.of_x = self.of_weight = None
        if of_x is not None:
            of_x.mul_(factor)
        if of_weight is not None:
            of_weight = of_weight.mul_(factor).to(self.weight_VC.dtype)
        return of_x, of_weight


def runs(num_tokens: int, at_once: int) -> Iterator[slice]:
    """Yield runs of at most `at_once` tokens."""
    for start in range(0, num_tokens, at_once):
        yield slice(start, min(start + at_once, num_tokens))


def widened(rounded: Tensor) -> Tensor:
    """Return what a product has rounded in float32 at least."""
    return rounded.to(torch.promote_types(rounded.dtype, torch.float32))


def may_be_fused(logits_nV: Tensor, words: Words) -> bool:
    """Return whether one rank has all logits, in 16 bits, on a GPU.

    A CPU's kernels would make float32 copies of what they read and write.
    """
    return words.group is None and logits_nV.is_cuda and logits_nV.dtype in HALF


def fused_losses_of(logits_nV: Tensor, labels_n: Tensor, *, makes_gradient: bool) -> Tensor:
    """Return each token's cross-entropy (n,), in float32, 0 without a label.

    The logits may become their gradient, in place: by kernels that read and write as little as they
    can, because to move these numbers takes a GPU longer than to compute with them.
    """
    columns_n1 = labels_n.clamp(min=0)[:, None]
    logs_nV = log_softmax(logits_nV, dim=-1, dtype=torch.float32)
    own_n1 = logs_nV.gather(1, columns_n1)
    if makes_gradient:
        torch.exp(logs_nV, out=logits_nV)
        logits_nV.scatter_(1, columns_n1, own_n1.expm1().to(logits_nV.dtype))
    return torch.where(labels_n >= 0, -own_n1[:, 0], 0.0)


def losses_of(logits_nV: Tensor, labels_n: Tensor, words: Words) -> tuple[Tensor, Tensor]:
    """Return each token's cross-entropy (n,), 0 without a label, and two numbers of it (2, n).

    These are its largest logit, and the sum of exponentials of the differences from that one. The
    logits become probabilities, in place.
    """
    largest_n = logits_nV.amax(dim=-1)
    if words.group is not None:
        dist.all_reduce(largest_n, dist.ReduceOp.MAX, group=words.group)
    columns_n1, is_own_n = places(labels_n, words, logits_nV.shape[1])
    logits_nV.sub_(largest_n[:, None])
    own_n = torch.where(is_own_n, logits_nV.gather(1, columns_n1)[:, 0], 0.0)
    sums_n = logits_nV.exp_().sum(dim=-1)
    if words.group is not None:
        both = torch.stack([sums_n, own_n])
        dist.all_reduce(both, group=words.group)
        sums_n, own_n = both
    logits_nV.div_(sums_n[:, None])
    losses_n = torch.where(labels_n >= 0, sums_n.log() - own_n, 0.0)
    return losses_n, torch.stack([largest_n, sums_n])


def to_gradient_(shares_nV: Tensor, labels_n: Tensor, words: Words) -> None:
    """Turn the probability of every word into the gradient of its logit, in place."""
    columns_n1, is_own_n = places(labels_n, words, shares_nV.shape[1])
    shares_nV.scatter_add_(1, columns_n1, -is_own_n.to(shares_nV.dtype)[:, None])


def places(labels_n: Tensor, words: Words, num_words: int) -> tuple[Tensor, Tensor]:
    """Return the column of each token's label, (n, 1), and True where this rank has it, (n,)."""
    columns_n = labels_n - words.first
    is_own_n = (labels_n >= 0) & (columns_n >= 0) & (columns_n < num_words)
    return columns_n.where(is_own_n, 0)[:, None], is_own_n
