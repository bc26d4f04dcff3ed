"""Optimizer of a rank's parameters, and its state by parameter name."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from strategies.plan.spec import OptimizerName, TrainingSpec
from strategies.train.gradients import Weight
from strategies.train.optimizers.large_batch import Group, Lamb, Lars, parameters_of
from strategies.train.optimizers.sgd import Sgd


def build_optimizer(parameters: Iterable[nn.Parameter], training: TrainingSpec) -> Optimizer:
    """Return the optimizer of one rank's parameters; matrices decay, norms and biases do not.

    Its state is created at once, so that a checkpoint can be read into it before the first step.
    """
    together: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = {}
    for parameter in parameters:
        # One update takes whole tensors, or parts of tensors on the same ranks, at a time.
        ranks = parameter.device_mesh if isinstance(parameter, DTensor) else None
        together.setdefault((parameter.ndim > 1, ranks), []).append(parameter)
    groups: list[Group] = [
        {
            "params": group,
            "is_matrix": is_matrix,
            "weight_decay": training.weight_decay if is_matrix else 0.0,
        }
        for (is_matrix, _), group in together.items()
    ]
    rate, betas = training.learning_rate, (training.beta1, training.beta2)
    match training.optimizer:
        case OptimizerName.ADAMW:
            return adamw(groups, lr=rate, betas=betas)
        case OptimizerName.ADAMW_TRITON:
            from strategies.train.optimizers.triton_adamw import TritonAdamW

            return TritonAdamW(groups, lr=rate, betas=betas)
        case OptimizerName.ADAMW_8BIT:
            from strategies.train.optimizers.adamw_8bit import AdamW8bit

            return AdamW8bit(groups, lr=rate, betas=betas)
        case OptimizerName.SGD:
            return Sgd(groups, lr=rate, momentum=training.beta1)
        case OptimizerName.LARS:
            return Lars(groups, lr=rate, momentum=training.beta1)
        case OptimizerName.LAMB:
            return Lamb(groups, lr=rate, betas=betas)


def adamw(groups: list[Group], *, lr: float, betas: tuple[float, float]) -> AdamW:
    """Return AdamW of Loshchilov and Hutter (arXiv:1711.05101), in torch's fused form."""
    optimizer = AdamW(groups, lr=lr, betas=betas, fused=True)
    for parameter in parameters_of(optimizer):
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the rate of the next step for every parameter."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def optimizer_state(optimizer: Optimizer, weights: Sequence[Weight]) -> dict[str, Tensor]:
    """Return the live state tensors, named `<parameter>.<part>`."""
    return {
        f"{weight.name}.{part}": value
        for weight in weights
        for part, value in optimizer.state[weight.parameter].items()
    }
