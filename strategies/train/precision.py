"""Precisions as torch types, and the loss scale that float16 needs."""

import os

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from strategies.plan import catalog
from strategies.plan.spec import Float32Matmul, Precision, TrainSpec

WEIGHTS = {
    Precision.FLOAT64: torch.float64,
    Precision.FLOAT32: torch.float32,
    Precision.BFLOAT16: torch.float32,
    Precision.FLOAT16: torch.float32,
    Precision.PURE_BFLOAT16: torch.bfloat16,
}
AUTOCAST = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}

# The constants of torch.amp.GradScaler, which has no smallest scale and never gives up.
FIRST_SCALE, SMALLEST_SCALE, GOOD_STEPS_TO_DOUBLE = 2.0**16, 1.0, 2000
MOST_SKIPS_IN_A_ROW = 32  # 16 from the first scale to the smallest, and as many at the smallest


def dtype_of(precision: Precision) -> torch.dtype:
    """Return the type of weights, gradients and optimizer state."""
    return WEIGHTS[precision]


def frozen_dtype_of(spec: TrainSpec) -> torch.dtype:
    """Return the type of frozen matrices; the type of a checkpoint must be in the spec already."""
    kind = catalog.frozen_dtype(spec)
    found: torch.dtype = dtype_of(spec.precision) if kind is None else getattr(torch, kind)
    return found


def feature_dtype_of(precision: Precision) -> torch.dtype:
    """Return the type of a text model's features."""
    return AUTOCAST.get(precision, dtype_of(precision))


def compute_in(precision: Precision, model: nn.Module, device: torch.device) -> None:
    """Run a model in half precision, if the precision asks for it; its weights keep their type.

    Matrix products and attention are torch's autocast; embedding and norms of text models round
    their weights themselves, so that features between layers are in half precision too.
    """
    if precision in AUTOCAST:
        # No cache: a pass uses every weight once, and a sharded one's copy must not outlive it.
        half = torch.autocast(device.type, AUTOCAST[precision], cache_enabled=False)
        model.forward = half(model.forward)


def choose_kernels(spec: TrainSpec) -> None:
    """Set torch's switches for this process: TF32 in float32 products, deterministic kernels.

    torch's own default is TF32 in convolutions but not in matrix products.
    """
    tf32 = spec.float32_matmul is Float32Matmul.TF32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    if spec.deterministic:  # cuBLAS reads it at its first product
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if torch.are_deterministic_algorithms_enabled() != spec.deterministic:  # the call is slow
        torch.use_deterministic_algorithms(spec.deterministic)


class LossScale(BaseModel):
    """Factor of the loss before its backward pass, so that small gradients do not vanish in
    float16.

    Halved whenever a gradient overflows, doubled after many that did not. All other precisions keep
    it at 1. An overflow is seen in the norm of the whole model's gradient, which is the same on all
    ranks. Source: Micikevicius et al., arXiv:1710.03740, section 3.2.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = 1.0
    dynamic: bool = False
    good_steps: int = 0
    """Steps since the scale last changed."""
    skipped_steps: int = 0
    skipped_in_a_row: int = 0

    @property
    def may_skip(self) -> bool:
        """True if a gradient that is not finite may be due to the scale."""
        exhausted = self.value == SMALLEST_SCALE and self.skipped_in_a_row >= MOST_SKIPS_IN_A_ROW
        return self.dynamic and not exhausted

    def after(self, *, skipped: bool) -> "LossScale":
        """Return the scale of the next step."""
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
        """Return the scale and the number of skipped steps; empty for other precisions than
        float16."""
        if not self.dynamic:
            return {}
        return {"loss_scale": self.value, "skipped_steps": self.skipped_steps}


def first_loss_scale(precision: Precision) -> LossScale:
    """Return the loss scale that a run begins with."""
    if precision is Precision.FLOAT16:
        return LossScale(value=FIRST_SCALE, dynamic=True)
    return LossScale()
