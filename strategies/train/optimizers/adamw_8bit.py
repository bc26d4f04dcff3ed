"""AdamW whose two averages are kept in eight bits, by bitsandbytes' kernel.

Dettmers et al., arXiv:2110.02861: every 256 numbers share a scale, and codes are denser near zero.
Small tensors keep 32 bits. Blocks of codes span whole tensors, and a part of a tensor would be cut
into other blocks, so no rank may hold parts.
"""

from functools import cache

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from strategies.plan.shapes import ADAM_8BIT_BLOCK, ADAM_8BIT_LEAST
from strategies.train.adapters.bnb import kernels
from strategies.train.gradients import own_part
from strategies.train.optimizers.large_batch import (
    Group,
    gradient_part,
    parameters_of,
    with_gradient,
)

EPSILON = 1e-8


class AdamW8bit(Optimizer):
    """Loshchilov and Hutter's update (arXiv:1711.05101). Groups carry `weight_decay`."""

    def __init__(self, groups: list[Group], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})
        for parameter in parameters_of(self):
            whole = own_part(parameter.detach())
            self.state[parameter] = {"step": torch.zeros(()), **averages_of(whole)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in with_gradient(group):
                if "exp_avg_scales" in self.state[parameter]:
                    self.update_codes(parameter, group)
                else:
                    self.update_numbers(parameter, group)

    def update_codes(self, parameter: nn.Parameter, group: Group) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        state["step"] += 1
        weight = own_part(parameter)
        kernels.optimizer_update_8bit_blockwise(
            "adam",
            gradient_part(parameter),
            weight,
            state["exp_avg"],
            state["exp_avg_sq"],
            beta1,
            beta2,
            0.0,  # parameters of optimizers with a third average
            0.0,
            EPSILON,
            int(state["step"]),
            group["lr"],
            signed_values(weight.device),
            positive_values(weight.device),
            state["exp_avg_scales"],
            state["exp_avg_sq_scales"],
            group["weight_decay"],
        )

    def update_numbers(self, parameter: nn.Parameter, group: Group) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        adamw(
            [own_part(parameter)],
            [gradient_part(parameter)],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=EPSILON,
            maximize=False,
        )


def averages_of(weight: Tensor) -> dict[str, Tensor]:
    """Return both averages at zero: as codes and scales, or for a small tensor as plain numbers."""
    names = ("exp_avg", "exp_avg_sq")
    if weight.numel() < ADAM_8BIT_LEAST:
        return {name: torch.zeros_like(weight) for name in names}
    blocks = -(-weight.numel() // ADAM_8BIT_BLOCK)
    codes = {name: torch.zeros_like(weight, dtype=torch.uint8) for name in names}
    scales = {f"{name}_scales": torch.zeros(blocks, device=weight.device) for name in names}
    return codes | scales


@cache
def signed_values(device: torch.device) -> Tensor:
    """Return the numbers that the first average's 256 codes represent, before scaling."""
    values: Tensor = kernels.create_dynamic_map(signed=True).to(device)
    return values


@cache
def positive_values(device: torch.device) -> Tensor:
    """Return the numbers that the codes of the second average represent; they have no sign."""
    values: Tensor = kernels.create_dynamic_map(signed=False).to(device)
    return values
