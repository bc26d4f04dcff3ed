"""Cost of a run: arithmetic, traffic between ranks, and the time of both on known hardware.

Unknown values stay unknown: there is no time for a GPU that gpus.py does not list and nobody has
measured, for ranks on several nodes, whose network nobody has measured, or if the host updates the
weights. Pure, torch-free.
"""

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import multiplies_in_tf32
from strategies.plan.estimates.flops import flops_per_step, flops_per_token_of
from strategies.plan.estimates.timeline import bubble
from strategies.plan.estimates.traffic import Traffic, traffic
from strategies.plan.gpus import peak_tflops, speeds_of
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import tokens_per_sample
from strategies.plan.spec import ActivationCheckpointing, Offload

CONVENTION = "6 per matrix weight and token, 12 x layers x width x tokens for attention (PaLM)"
CONVENTION_FOR_IMAGES = "6 per multiplication of an image's forward pass; tokens are images"
# Recomputed passes as a share of a forward pass (one third) plus a backward pass (two thirds).
RECOMPUTED = {
    ActivationCheckpointing.NONE: 0.0,
    ActivationCheckpointing.SELECTIVE: 0.03,
    ActivationCheckpointing.FULL: 1 / 3,
}
# The share of a GPU's dense peak that training reaches: lowest, usual, highest. In 16 bits, from
# published runs from 1B to 462B parameters on A100 and H100 (llm-foundry 41 to 46 %, torchtitan 34
# to 39 %, Megatron-core 41 to 48 %); the lowest is for small models, which are far below. Products
# in float32 are slower, so that the rest weighs less.
REACHED = {16: (0.15, 0.40, 0.55), 32: (0.30, 0.60, 0.85)}
REACHED_LINK = 0.7  # share of the data sheet's bandwidth that large messages reach


class StepTime(BaseModel):
    """Duration of one optimizer step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected_s: float
    low_s: float
    """Duration at the highest share of the peak, with all traffic hidden that can be."""
    high_s: float
    """Duration at the lowest share of the peak, with no traffic hidden."""
    compute_s: float
    traffic_s: float
    """Duration of all traffic; the part hidden behind computing is not subtracted."""
    basis: str


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


def peak_of(resolved: ResolvedSpec) -> float | None:
    """Return the peak of one GPU in TFLOP/s at the run's precision; None if it is not known."""
    hardware, spec = resolved.hardware, resolved.spec
    tf32 = multiplies_in_tf32(spec)
    return peak_tflops(hardware.model, spec.precision, tf32=tf32, measured=hardware.speeds)


def bubble_of(resolved: ResolvedSpec) -> float:
    if resolved.layout.pipeline == 1:
        return 0.0
    return bubble(
        resolved.strategy,
        resolved.spec.parallelism,
        ranks=resolved.layout.pipeline,
        micro_batches=resolved.gradient_accumulation_steps,
    )


def time_of_step(resolved: ResolvedSpec) -> StepTime | None:
    """Return the duration of a step; None if the GPU or its links are not known.

    It is the arithmetic at a share of the peak, stretched by the bubble, and the traffic that the
    arithmetic does not hide. None also for image models, for which no share of the peak has been
    published.
    """
    spec, gpu, peak = resolved.spec, speeds_of(resolved.hardware), peak_of(resolved)
    sent = traffic(resolved)
    if spec.model.name.reads_images or gpu is None or peak is None:
        return None
    if any(part.crosses_nodes for part in sent):
        return None
    constants = resolved.hardware.measured
    measured = None if constants is None else constants.link_gb_per_s
    if sent and gpu.link_gb_per_s is None and measured is None:
        return None
    if resolved.spec.parallelism.offload_optimizer is not Offload.NONE:
        return None  # the speed of the host's update and bus is not known
    work = flops_per_step(spec) / max(1, resolved.world_size)
    work *= 1 + RECOMPUTED[spec.activation_checkpointing]
    lowest, usual, highest = REACHED[32 if peak == gpu.float32 else 16]
    busy = 1 - bubble_of(resolved)
    link = 1e9 * (measured or REACHED_LINK * (gpu.link_gb_per_s or 1))
    hidden = sum(part.num_bytes for part in sent if part.overlaps) / link
    shown = sum(part.num_bytes for part in sent if not part.overlaps) / link

    def compute_s(share: float) -> float:
        return work / (share * peak * 1e12) / busy

    usually = compute_s(usual)
    return StepTime(
        expected_s=max(usually, hidden) + shown,
        low_s=max(compute_s(highest), hidden) + shown,
        high_s=compute_s(lowest) + hidden + shown,
        compute_s=usually,
        traffic_s=hidden + shown,
        basis=f"{gpu.source}: {peak:g} TFLOP/s, of which {usual:.0%} ({lowest:.0%} to "
        f"{highest:.0%}) are reached",
    )
