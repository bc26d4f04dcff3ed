"""Kernels of adapters and optimizers on this device, against plain arithmetic.

Each figure is an error that a right kernel keeps below a bound that its caller knows.
"""

import torch
from torch import Tensor, nn

from strategies.plan.spec import OptimizerName, TrainingSpec
from strategies.train.adapters.quantised import Int8Linear, Nf4Linear
from strategies.train.optimizers.optimizer import build_optimizer
from strategies.train.proving.written import out_path, write

STEPS, SHAPE = 20, (512, 384)

Form = type[Nf4Linear] | type[Int8Linear]


def measure(device: torch.device) -> dict[str, object]:
    """Return the errors by name; Triton's kernel only runs on a GPU."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(SHAPE, generator=generator) / 20
    found: dict[str, object] = {
        "nf4_error": stored_error(Nf4Linear, weight, device),
        "nf4_same_as_on_cpu": stored_difference(Nf4Linear, weight, device),
        "int8_error": stored_error(Int8Linear, weight, device),
        "int8_same_as_on_cpu": stored_difference(Int8Linear, weight, device),
        "adamw_8bit_error": update_error(OptimizerName.ADAMW_8BIT, device),
    }
    if device.type == "cuda":
        found["adamw_triton_error"] = update_error(OptimizerName.ADAMW_TRITON, device)
    return found


def stored(form: Form, weight: Tensor, device: torch.device) -> Tensor:
    """Return the numbers that the codes of a matrix represent."""
    with torch.device("meta"):
        frozen = form(nn.Linear(weight.shape[1], weight.shape[0], bias=False))
    matrix = frozen.to_empty(device=device)
    matrix.take(weight.to(device))
    return matrix.whole(torch.float32).cpu()


def stored_error(form: Form, weight: Tensor, device: torch.device) -> float:
    """Return the norm of the rounding of a stored matrix, relative to its own."""
    return float((stored(form, weight, device) - weight).norm() / weight.norm())


def stored_difference(form: Form, weight: Tensor, device: torch.device) -> float:
    """Return the norm of the difference from the same matrix stored on the CPU."""
    here, there = (stored(form, weight, where) for where in (device, torch.device("cpu")))
    return float((here - there).norm() / weight.norm())


def update_error(name: OptimizerName, device: torch.device) -> float:
    """Return how far 20 updates lead from torch's AdamW, relative to the way of its weights."""
    ends = {}
    for optimizer in (name, OptimizerName.ADAMW):
        torch.manual_seed(0)
        start = torch.randn(SHAPE)
        parameter = nn.Parameter(start.clone().to(device))
        built = build_optimizer([parameter], training_of(optimizer))
        for _ in range(STEPS):
            parameter.grad = torch.randn(SHAPE).to(device)
            built.step()
        ends[optimizer] = parameter.detach().cpu()
    way = (ends[OptimizerName.ADAMW] - start).norm()
    return float((ends[name] - ends[OptimizerName.ADAMW]).norm() / way)


def training_of(optimizer: OptimizerName) -> TrainingSpec:
    """Return a training of this optimizer."""
    return TrainingSpec(steps=STEPS, global_batch_size=1, learning_rate=1e-3, optimizer=optimizer)


if __name__ == "__main__":
    out = out_path("strategies.train.proving.kernels")
    write(out, measure(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
