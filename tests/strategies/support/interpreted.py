"""Triton kernels run by Triton's interpreter, against torch. A script, not a test: the interpreter
has to be asked for before triton is imported.

Prints a JSON object: of each case null, or what went wrong in it.
"""

import json
import math
import os
import sys
import traceback

os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import AdamW

from strategies.plan.spec import TrainingSpec
from strategies.train.optimizers.delayed_gradients import delay_gradients
from strategies.train.optimizers.optimizer import build_optimizer, set_learning_rate
from strategies.train.optimizers.triton_adamw import BLOCK, TritonAdamW
from tests.strategies.support.training_runs import make_spec

ODD_SIZES = [(3, 700), (BLOCK,), (5,), (2, 2 * BLOCK), (1,), (7, BLOCK + 1), (0, 4)]


def training(optimizer: str) -> TrainingSpec:
    return make_spec(training__optimizer=optimizer).training


def gradients(parameters: list[nn.Parameter], step: int) -> list[Tensor]:
    """Of many sizes, so that averages lose and gain digits."""
    chance = torch.Generator().manual_seed(step)
    size = 10.0 ** (-step % 4)
    return [size * torch.randn(each.shape, generator=chance) for each in parameters]


def copies(parameters: list[nn.Parameter], dtype: torch.dtype) -> list[nn.Parameter]:
    return [nn.Parameter(each.detach().to(dtype, copy=True).contiguous()) for each in parameters]


def distance(found: list[nn.Parameter], wanted: list[nn.Parameter]) -> float:
    """Relative L2, as one vector."""
    apart = sum(
        float((a.detach().double() - b.detach().double()).square().sum())
        for a, b in zip(found, wanted, strict=True)
    )
    size = sum(float(each.detach().double().square().sum()) for each in wanted)
    return math.sqrt(apart / size)


def the_update_is_adamw_but_for_rounding() -> None:
    """20 steps at many rates, beside torch's fused AdamW and the same in float64."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ODD_SIZES]
    torchs, exact = copies(ours, torch.float32), copies(ours, torch.float64)
    kernel = build_optimizer(ours, training("adamw_triton"))
    fused = build_optimizer(torchs, training("adamw"))
    reference = build_optimizer(exact, training("adamw"))
    assert isinstance(kernel, TritonAdamW)
    assert isinstance(fused, AdamW)
    for step in range(1, 21):
        for each, other, precise, gradient in zip(
            ours, torchs, exact, gradients(ours, step), strict=True
        ):
            each.grad, other.grad, precise.grad = gradient, gradient.clone(), gradient.double()
        for optimizer in (kernel, fused, reference):
            set_learning_rate(optimizer, 1e-3 * (1 + step % 3))
            optimizer.step()
    assert distance(ours, exact) < 5e-7, distance(ours, exact)
    assert distance(ours, exact) <= 1.1 * distance(torchs, exact), "worse than torch's own"
    for name in ("exp_avg", "exp_avg_sq", "step"):
        averages, torchs_averages = (
            [nn.Parameter(optimizer.state[each][name]) for each in parameters]
            for optimizer, parameters in ((kernel, ours), (fused, torchs))
        )
        assert distance(averages, torchs_averages) < 1e-6


def state_has_the_names_of_torchs_adamw() -> None:
    parameter = nn.Parameter(torch.ones(3))
    kernel, fused = (
        build_optimizer([parameter], training(name)) for name in ("adamw_triton", "adamw")
    )
    ours, torchs = kernel.state[parameter], fused.state[parameter]
    assert {name: (value.shape, value.dtype) for name, value in ours.items()} == {
        name: (value.shape, value.dtype) for name, value in torchs.items()
    }


def a_training_may_change_from_one_to_the_other() -> None:
    parameter = nn.Parameter(torch.ones(6))
    moving = copies([parameter], torch.float32)
    steady = build_optimizer([parameter], training("adamw"))
    mover = build_optimizer(moving, training("adamw_triton"))
    for step in range(1, 9):
        if step == 4:
            before = mover.state[moving[0]]
            mover = build_optimizer(moving, training("adamw"))
            for name, value in mover.state[moving[0]].items():
                value.copy_(before[name])
        (gradient,) = gradients([parameter], step)
        parameter.grad, moving[0].grad = gradient, gradient.clone()
        steady.step()
        mover.step()
    assert distance(moving, [parameter]) < 1e-6


def parts_that_are_not_contiguous_are_updated_in_place() -> None:
    """A transposed weight, a column of a wider one, and gradients laid out in another way."""
    torch.manual_seed(0)
    wide = torch.randn(8, 6)
    ours = [nn.Parameter(torch.randn(5, 7).t()), nn.Parameter(wide[:, 1:4])]
    torchs = copies(ours, torch.float32)
    kernel, fused = (
        build_optimizer(each, training(name))
        for each, name in ((ours, "adamw_triton"), (torchs, "adamw"))
    )
    assert not any(each.is_contiguous() for each in ours)
    before = wide.clone()
    for step in range(1, 6):
        for each, other, gradient in zip(ours, torchs, gradients(ours, step), strict=True):
            each.grad, other.grad = gradient.t().contiguous().t(), gradient
        kernel.step()
        fused.step()
    assert distance(ours, torchs) < 1e-6
    assert not torch.equal(wide[:, 1:4], before[:, 1:4])
    assert torch.equal(wide[:, 4:], before[:, 4:])


def a_rank_updates_its_part_of_a_dtensor() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    mesh = init_device_mesh("cpu", (1,))
    torch.manual_seed(0)
    whole = torch.randn(6, 10)
    parts = [nn.Parameter(distribute_tensor(whole.clone(), mesh, [Shard(dim)])) for dim in (0, 1)]
    plain = [nn.Parameter(whole.clone()) for _ in parts]
    kernel = build_optimizer(parts, training("adamw_triton"))
    fused = build_optimizer(plain, training("adamw"))
    for step in range(1, 6):
        for part, other, gradient in zip(parts, plain, gradients(plain, step), strict=True):
            assert isinstance(part, DTensor)
            part.grad = distribute_tensor(gradient, mesh, part.placements)
            other.grad = gradient
        kernel.step()
        fused.step()
    local = [nn.Parameter(part.to_local()) for part in parts if isinstance(part, DTensor)]
    dist.destroy_process_group()
    assert distance(local, plain) < 1e-6


def late_gradients_and_missing_ones_count_their_own_steps() -> None:
    ours = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(3))]
    torchs = copies(ours, torch.float32)
    kernel, fused = (
        build_optimizer(each, training(name))
        for each, name in ((ours, "adamw_triton"), (torchs, "adamw"))
    )
    for optimizer in (kernel, fused):
        delay_gradients(optimizer, steps=1)
    for step in range(1, 7):
        for i, gradient in enumerate(gradients(ours, step)):
            given = i == 0 or step != 3  # the second weight has no gradient in step 3
            ours[i].grad = gradient if given else None
            torchs[i].grad = gradient.clone() if given else None
        kernel.step()
        fused.step()
    assert distance(ours, torchs) < 1e-6
    assert [int(kernel.state[each]["step"]) for each in ours] == [5, 4]


CASES = [
    the_update_is_adamw_but_for_rounding,
    state_has_the_names_of_torchs_adamw,
    a_training_may_change_from_one_to_the_other,
    parts_that_are_not_contiguous_are_updated_in_place,
    a_rank_updates_its_part_of_a_dtensor,
    late_gradients_and_missing_ones_count_their_own_steps,
]


def main() -> None:
    found = {}
    for case in CASES:
        try:
            case()
            found[case.__name__] = None
        except Exception:
            found[case.__name__] = traceback.format_exc()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
