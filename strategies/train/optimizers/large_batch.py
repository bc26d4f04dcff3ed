"""LARS and LAMB: every matrix takes a step in proportion to its own size.

Large batches want large steps, which would ruin layers whose gradients are large relative to their
weights. The proportion comes from two norms of the whole matrix, whichever part of it a rank holds.
Norms and biases take the plain step without decay, as in MoCo v3 (arXiv:2104.02057) for LARS and in
the BERT runs of the LAMB paper.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from strategies.train.gradients import norm_of, num_shards, own_part
from strategies.train.transfer import to_device

TRUST = 0.001  # LARS's coefficient: at rate 1, a matrix moves by a thousandth of its norm
LAMB_EPSILON = 1e-6

Group = dict[str, Any]  # torch's own: "params", "lr" and what the optimizer adds


class Lars(Optimizer):
    """Optimizer of You, Gitman and Ginsburg (arXiv:1708.03888), algorithm 1.

    v = momentum v + rate trust (gradient + decay w), w = w - v, where
    trust = TRUST |w| / (|gradient| + decay |w|). Groups carry `is_matrix` and `weight_decay`.
    Without momentum there is no state.
    """

    def __init__(self, groups: list[Group], *, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})
        if momentum > 0:
            for parameter in parameters_of(self):
                self.state[parameter] = {"momentum": torch.zeros_like(parameter)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights; the gradients are used up."""
        for group in self.param_groups:
            parameters = with_gradient(group)
            weights = [own_part(parameter) for parameter in parameters]
            gradients = [gradient_part(parameter) for parameter in parameters]
            rates = [group["lr"]] * len(parameters)
            if group["is_matrix"] and parameters:
                weight_norms, gradient_norms = whole_norms(parameters, weights, gradients)
                ratios = (
                    TRUST * weight_norms / (gradient_norms + group["weight_decay"] * weight_norms)
                )
                rates = list(group["lr"] * trusted(ratios))
            for parameter, w, gradient, rate in zip(
                parameters, weights, gradients, rates, strict=True
            ):
                change = gradient.add_(w, alpha=group["weight_decay"]).mul_(rate)
                if group["momentum"] > 0:
                    v = own_part(self.state[parameter]["momentum"])
                    change = v.mul_(group["momentum"]).add_(change)
                w.sub_(change)


class Lamb(Optimizer):
    """Optimizer of You et al. (arXiv:1904.00962), algorithm 2, with phi(x) = x.

    update = Adam's step + decay w, w = w - rate (|w| / |update|) update. Groups carry `is_matrix`
    and `weight_decay`.
    """

    def __init__(self, groups: list[Group], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})
        for parameter in parameters_of(self):
            self.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights; the gradients are used up."""
        for group in self.param_groups:
            parameters = with_gradient(group)
            weights = [own_part(parameter) for parameter in parameters]
            updates = [
                self.adam_step(parameter, group["betas"]).add_(w, alpha=group["weight_decay"])
                for parameter, w in zip(parameters, weights, strict=True)
            ]
            rates = [group["lr"]] * len(parameters)
            if group["is_matrix"] and parameters:
                weight_norms, update_norms = whole_norms(parameters, weights, updates)
                rates = list(group["lr"] * trusted(weight_norms / update_norms))
            for w, update, rate in zip(weights, updates, rates, strict=True):
                w.sub_(update.mul_(rate))

    def adam_step(self, parameter: nn.Parameter, betas: tuple[float, float]) -> Tensor:
        """Put Adam's direction in the place of this rank's part of the gradient; return it."""
        state, gradient = self.state[parameter], gradient_part(parameter)
        state["step"] += 1
        step = float(state["step"])
        mean, square = own_part(state["exp_avg"]), own_part(state["exp_avg_sq"])
        mean.lerp_(gradient, 1 - betas[0])
        square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        deviation = (square / (1 - betas[1] ** step)).sqrt_().add_(LAMB_EPSILON)
        torch.div(mean, 1 - betas[0] ** step, out=gradient)
        return gradient.div_(deviation)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return every parameter, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def with_gradient(group: Group) -> list[nn.Parameter]:
    """Return the parameters of a group that have a gradient in this step."""
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def gradient_part(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, laid out like its parameter."""
    assert parameter.grad is not None
    return own_part(parameter.grad)


def whole_norms(
    parameters: Sequence[nn.Parameter], first: Sequence[Tensor], second: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return norms of two sets of whole tensors, (N,) and float64, from this rank's parts.

    The layout of the parameters, which all lie on the same ranks, tells which of them hold the
    rest. Ranks add up their squares, each divided by the number of ranks that hold the same
    numbers.
    """
    squares = torch.stack([norm_of([part], part.device).square() for part in (*first, *second)])
    if isinstance(parameters[0], DTensor):
        ranks = parameters[0].device_mesh
        copies = [ranks.size() // num_shards(parameter) for parameter in parameters]
        squares /= to_device(torch.tensor(copies + copies), squares.device)
        for axis in range(ranks.ndim):
            dist.all_reduce(squares, group=ranks.get_group(axis))
    norms = squares.sqrt()
    return norms[: len(first)], norms[len(first) :]


def trusted(ratios: Tensor) -> Tensor:
    """Return the ratios, with 1 where a norm was zero: a matrix of zeros could not change
    otherwise."""
    return torch.where(torch.isfinite(ratios) & (ratios > 0), ratios, 1.0)
