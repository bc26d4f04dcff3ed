"""Cost of a run: arithmetic, traffic between ranks, and the time of both on known hardware.

Unknown values stay unknown: there is no time for a GPU that gpus.py does not list and nobody has
measured. Pure, torch-free.
"""

from pydantic import BaseModel, ConfigDict

from strategies.plan.estimates.flops import flops_per_step, flops_per_token_of
from strategies.plan.estimates.step_time import StepTime, bubble_of, peak_of, time_of_step
from strategies.plan.estimates.traffic import Traffic, traffic
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import tokens_per_sample

CONVENTION = "6 per matrix weight and token, 12 x layers x width x tokens for attention (PaLM)"
CONVENTION_FOR_IMAGES = "6 per multiplication of an image's forward pass; tokens are images"


class Cost(BaseModel):
    """Cost of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flops_per_token: int
    flops_per_step: int
    convention: str = CONVENTION
    peak_tflops: float | None = None
    """Peak of one GPU at the run's precision; None: not known."""
    traffic: list[Traffic]
    bubble: float
    """Share of a step in which a pipeline's rank waits, from 0 to 1."""
    step_time: StepTime | None
    """Duration of a step; None: the hardware's speed is not known."""
    tokens_per_s: float | None
    total_s: float | None
    gpu_hours: float | None


def cost(resolved: ResolvedSpec) -> Cost:
    """Return the cost of a request; if its batch does not divide, that of the nearest below."""
    spec = resolved.spec
    step_time = time_of_step(resolved)
    total_s = None if step_time is None else step_time.expected_s * spec.training.steps
    tokens = spec.training.global_batch_size * tokens_per_sample(spec.data)
    return Cost(
        flops_per_token=flops_per_token_of(spec),
        flops_per_step=flops_per_step(spec),
        convention=CONVENTION_FOR_IMAGES if spec.model.name.reads_images else CONVENTION,
        peak_tflops=peak_of(resolved),
        traffic=traffic(resolved),
        bubble=bubble_of(resolved),
        step_time=step_time,
        tokens_per_s=None if step_time is None else tokens / step_time.expected_s,
        total_s=total_s,
        gpu_hours=None if total_s is None else total_s * resolved.world_size / 3600,
    )
