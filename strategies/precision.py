"""Precisions as torch sees them, and the loss scale that float16 needs."""

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from strategies.spec import Precision

WEIGHTS = {
    Precision.FLOAT64: torch.float64,
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.float32,
    Precision.FLOAT16: torch.float32,
    Precision.PURE_BFLOAT16: torch.bfloat16,
}
AUTOCAST = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}

# The constants of torch.amp.GradScaler; it has no smallest scale and never gives up.
FIRST_SCALE, SMALLEST_SCALE, GOOD_STEPS_TO_DOUBLE = 2.0**16, 1.0, 2000
MOST_SKIPS_IN_A_ROW = 32  # 16 to come down from the first scale, and as many at the smallest


def dtype_of(precision: Precision) -> torch.dtype:
    """The type of weights, gradients and optimizer state."""
    return WEIGHTS[precision]


def compute_in(precision: Precision, model: nn.Module, device: torch.device) -> None:
    """Let a model's forward pass take matrix products and attention in half precision, where that
    is asked for. Norms, residuals and weights stay as they are.
    """
    if precision in AUTOCAST:
        # No cache: a pass uses every weight once, and a sharded one's copy must not outlive it.
        half = torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
        model.forward = half(model.forward)


class LossScale(BaseModel):
    """What the loss is multiplied by before its backward pass, so that small gradients do not
    vanish in float16: halved whenever a gradient overflows, doubled after many that did not. Every
    other precision keeps it at 1.

    Micikevicius et al., arXiv:1710.03740, section 3.2. What an overflow is, the norm of the whole
    model's gradient says, which is the same on all ranks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = 1.0
    dynamic: bool = False
    good_steps: int = 0
    """Since the scale last changed."""
    skipped_steps: int = 0
    skipped_in_a_row: int = 0

    @property
    def may_skip(self) -> bool:
        """Whether a gradient that is not finite is the scale's fault, as far as one can tell."""
        exhausted = self.value == SMALLEST_SCALE and self.skipped_in_a_row >= MOST_SKIPS_IN_A_ROW
        return self.dynamic and not exhausted

    def after(self, *, skipped: bool) -> "LossScale":
        """The scale of the next step."""
        if not self.dynamic:
            return self
        if skipped:
            return LossScale(
                dynamic=True,
                value=max(SMALLEST_SCALE, self.value / 2),
                skipped_steps=self.skipped_steps + 1,
                skipped_in_a_row=self.skipped_in_a_row + 1,
            )
        doubled = self.good_steps + 1 == GOOD_STEPS_TO_DOUBLE
        return LossScale(
            dynamic=True,
            value=self.value * 2 if doubled else self.value,
            good_steps=0 if doubled else self.good_steps + 1,
            skipped_steps=self.skipped_steps,
        )

    def metrics(self) -> dict[str, float]:
        """What there is to tell."""
        if not self.dynamic:
            return {}
        return {"loss_scale": self.value, "skipped_steps": self.skipped_steps}


def first_loss_scale(precision: Precision) -> LossScale:
    """The loss scale that a run begins with."""
    if precision is Precision.FLOAT16:
        return LossScale(value=FIRST_SCALE, dynamic=True)
    return LossScale()
