"""Guards that stop a run before the weights of a broken step are used, evaluated or saved."""

import math
from collections.abc import Sequence
from statistics import median

from torch import Tensor

from strategies.plan.spec import GuardSpec
from strategies.train.engine import Engine
from strategies.train.mesh import Mesh
from strategies.train.precision import LossScale

UNSCALED = LossScale()
ADVICE = "Try a lower learning_rate or a longer warm-up"


class Diverged(Exception):
    """Stop because the loss or the gradient is broken; the weights are still the last good ones."""

    def __init__(self, what: str, *, step: int) -> None:
        super().__init__(f"step {step}: {what}; the weights of step {step - 1} were kept. {ADVICE}")
        self.step = step


def require_finite_loss(loss: float, *, own_share: Tensor, step: int, mesh: Mesh) -> None:
    """Raise Diverged, on every rank alike and naming the rank, unless the loss is finite.

    `loss` is the value that all ranks agreed on, `own_share` this rank's part of it. The ranks
    communicate only if something is wrong.
    """
    if math.isfinite(loss):
        return
    shares = mesh.gather(float(own_share))
    broken = [(rank, share) for rank, share in enumerate(shares) if not math.isfinite(share)]
    named = ", ".join(f"{share} on rank {rank}" for rank, share in broken)
    raise Diverged(f"the loss is {named or loss}", step=step)


def require_finite_gradient(
    norm: float,
    *,
    engine: Engine,
    step: int,
    mesh: Mesh,
    scale: LossScale = UNSCALED,
    updated: bool = False,
) -> None:
    """Raise Diverged, on every rank alike, unless the gradient norm is finite.

    The message names the weights and the ranks that hold them; with `updated` the gradient has been
    used already. If several ranks hold the same
    weight, it is too late to tell whose gradient broke first.
    """
    if math.isfinite(norm):
        return
    own = shortened(engine.broken_weights(updated=updated))
    named = [f"{text} on rank {rank}" for rank, text in enumerate(mesh.gather_texts(own)) if text]
    skipped = scale.skipped_in_a_row
    after = f" after {skipped} skipped steps, at loss scale {scale.value:g}" if skipped else ""
    raise Diverged(
        f"the loss is finite, but the gradient norm is {norm}{after}: broken is the gradient of "
        f"{', '.join(named) or 'no single weight'}",
        step=step,
    )


def shortened(names: Sequence[str]) -> str:
    """Return the first name, and how many more."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return names[0] + more if names else ""


def require_no_spike(
    loss: float, recent_losses: Sequence[float], *, guards: GuardSpec, step: int
) -> None:
    """Raise Diverged if the loss is far above the median of the previous steps."""
    factor = guards.loss_spike_factor
    if factor is None or len(recent_losses) < guards.loss_spike_window:
        return
    usual = median(recent_losses)
    if loss > factor * usual:
        raise Diverged(
            f"the loss jumped to {loss:.4g}, {loss / usual:.3g} times the median of the "
            f"{len(recent_losses)} steps before ({usual:.4g}); guards.loss_spike_factor allows "
            f"{factor:g} times",
            step=step,
        )


def remember(recent_losses: Sequence[float], loss: float, guards: GuardSpec) -> tuple[float, ...]:
    """Return the losses that the next step is compared with; none if spikes are not looked for."""
    if guards.loss_spike_factor is None:
        return ()
    return (*recent_losses, loss)[-guards.loss_spike_window :]
