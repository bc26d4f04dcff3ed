"""What a run costs: arithmetic, what ranks send, and the time that both take on known hardware.

Pure, torch-free. What is not known stays unknown: no time is told for a GPU that gpus.py does not
list, for ranks on several nodes, whose network nobody has measured, or where the host updates.
"""

from pydantic import BaseModel, ConfigDict

from strategies.planning.flops import flops_per_step, flops_per_token_of
from strategies.planning.gpus import known_gpu, peak_tflops
from strategies.planning.timeline import bubble
from strategies.planning.traffic import Traffic, traffic
from strategies.rules.problem import Asked
from strategies.shapes import tokens_per_sample
from strategies.spec import ActivationCheckpointing, Offload, Precision

CONVENTION = "6 per matrix weight and token, 12 x layers x width x tokens for attention (PaLM)"
CONVENTION_FOR_IMAGES = "6 per multiplication of an image's forward pass; tokens are images"
# Passes that are run again, as a share of a forward and a backward pass, which are a third and two.
RECOMPUTED = {
    ActivationCheckpointing.NONE: 0.0,
    ActivationCheckpointing.SELECTIVE: 0.03,
    ActivationCheckpointing.FULL: 1 / 3,
}
# The share of a GPU's dense peak that training reaches: lowest, usual, highest. In 16 bits, of
# published runs from 1B to 462B parameters on A100 and H100 (llm-foundry 41 to 46 %, torchtitan 34
# to 39 %, Megatron-core 41 to 48 %); small models lie far below, which the lowest is for. Products
# in float32 are slower, so that less of the rest shows.
REACHED = {16: (0.15, 0.40, 0.55), 32: (0.30, 0.60, 0.85)}
REACHED_LINK = 0.7  # of a link's data sheet, in large messages


class StepTime(BaseModel):
    """How long one optimizer step takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected_s: float
    low_s: float
    """At the highest share of the peak, with all traffic hidden that can be."""
    high_s: float
    """At the lowest, with nothing hidden."""
    compute_s: float
    traffic_s: float
    """All of it; what computing hides is not subtracted."""
    basis: str


class Cost(BaseModel):
    """What a run costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    flops_per_token: int
    flops_per_step: int
    convention: str = CONVENTION
    traffic: list[Traffic]
    bubble: float
    """The share of a step in which a pipeline's rank waits, from 0 to 1."""
    step_time: StepTime | None
    """None: the hardware's speed is not known."""
    tokens_per_s: float | None
    total_s: float | None
    gpu_hours: float | None


def cost(asked: Asked) -> Cost:
    """The cost of what was asked for; where its batch does not divide, of the nearest below."""
    spec = asked.spec
    step_time = time_of_step(asked)
    total_s = None if step_time is None else step_time.expected_s * spec.training.steps
    tokens = spec.training.global_batch_size * tokens_per_sample(spec.data)
    return Cost(
        flops_per_token=flops_per_token_of(spec),
        flops_per_step=flops_per_step(spec),
        convention=CONVENTION_FOR_IMAGES if spec.model.name.reads_images else CONVENTION,
        traffic=traffic(asked),
        bubble=bubble_of(asked),
        step_time=step_time,
        tokens_per_s=None if step_time is None else tokens / step_time.expected_s,
        total_s=total_s,
        gpu_hours=None if total_s is None else total_s * asked.world_size / 3600,
    )


def bubble_of(asked: Asked) -> float:
    if asked.layout.pipeline == 1:
        return 0.0
    return bubble(
        asked.strategy,
        asked.spec.parallelism,
        ranks=asked.layout.pipeline,
        micro_batches=asked.gradient_accumulation_steps,
    )


def time_of_step(asked: Asked) -> StepTime | None:
    """Arithmetic at a share of the peak, stretched by the bubble, and the traffic that it does not
    hide; None where the GPU or its links are not known, and of image models, whose share of the
    peak nobody has told."""
    spec, model = asked.spec, asked.hardware.model
    gpu, peak = known_gpu(model), peak_tflops(model, spec.precision)
    sent = traffic(asked)
    if spec.model.name.reads_images or gpu is None or peak is None:
        return None
    if any(part.crosses_nodes for part in sent):
        return None
    if sent and gpu.link_gb_per_s is None:
        return None
    if asked.spec.parallelism.offload_optimizer is not Offload.NONE:
        return None  # how fast the host updates, and its bus, nobody has said
    work = flops_per_step(spec) / max(1, asked.world_size)
    work *= 1 + RECOMPUTED[spec.activation_checkpointing]
    wide = spec.precision is Precision.FLOAT32 or gpu.bfloat16 is None
    lowest, usual, highest = REACHED[32 if wide else 16]
    busy = 1 - bubble_of(asked)
    link = REACHED_LINK * 1e9 * (gpu.link_gb_per_s or 1)
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
