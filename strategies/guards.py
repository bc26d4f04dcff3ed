"""Stop before a broken number reaches the weights."""

import math

from torch import Tensor

from strategies.mesh import Mesh


class Diverged(Exception):
    """The loss or the gradient is not a number any more; the weights are still the last good."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


def require_finite(
    loss: float, grad_norm: float, *, own_share: Tensor, step: int, mesh: Mesh
) -> None:
    """Raise Diverged, on every rank alike and naming the rank, unless loss and norm are finite.

    `loss` and `grad_norm` are what all ranks agreed on; `own_share` is this rank's part of the
    loss. The ranks talk to each other only when something is wrong.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return
    shares = mesh.gather(float(own_share))
    broken = [(rank, share) for rank, share in enumerate(shares) if not math.isfinite(share)]
    if broken:
        named = ", ".join(f"{share} on rank {rank}" for rank, share in broken)
        what = f"the loss is {named}"
    else:
        what = f"the loss is finite on every rank, but the gradient norm is {grad_norm}"
    raise Diverged(
        f"step {step}: {what}; the weights of step {step - 1} were kept. Try a lower "
        "learning_rate or a longer warm-up",
        step=step,
    )
