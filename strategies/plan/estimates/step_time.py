"""Duration of a step on known hardware, from what its kernels do. Pure, torch-free.

A rank multiplies at a share of its GPU's peak. Between the products it reads and writes features,
logits and the optimizer's state as fast as its memory allows. Neither is faster than the host can
launch kernels. What it sends is hidden behind computing as far as it can be. So a large model on an
A100 comes near the peak, a small one does not, and an H100, whose products gained more than its
memory, reaches a smaller share of its own.

The constants hold for all GPUs, models and layouts; they were fitted to the published runs of
tests/strategies/plan/published, all together, with no constant for a single row.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from strategies.plan.catalog import BYTES_PER_FEATURE, BYTES_PER_WEIGHT, multiplies_in_tf32
from strategies.plan.estimates.flops import FLOPS_PER_ATTENTION, flops_per_step
from strategies.plan.estimates.timeline import bubble
from strategies.plan.estimates.traffic import Traffic, traffic
from strategies.plan.gpus import known_gpu, peak_tflops, speeds_of
from strategies.plan.hardware import GpuSpeeds, Hardware
from strategies.plan.layout import AXES
from strategies.plan.rules.problem import ResolvedSpec
from strategies.plan.shapes import (
    count_trained,
    matrices,
    query_width,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.plan.spec import ActivationCheckpointing, FrozenBase, Offload, TrainSpec

# Recomputed passes as a share of a forward pass (one third) plus a backward pass (two thirds).
RECOMPUTED = {
    ActivationCheckpointing.NONE: 0.0,
    ActivationCheckpointing.SELECTIVE: 0.03,
    ActivationCheckpointing.FULL: 1 / 3,
}
# Share of the dense peak in large products of 16 bits, by words of the GPU's name. Hopper lowers
# its clock under full load.
REACHED = {"A100": 0.80, "H100": 0.55, "H200": 0.55, "B200": 0.55}
REACHED_BY_OTHERS = 0.75
REACHED_OF_MEASURED = 0.9  # where the peak is itself the speed of a large product
REACHED_IN_FLOAT32 = 0.85  # without tensor cores
ATTENTION_SLOWER = 0.75  # attention reaches this share of what products reach
FEATURES_PASSED = 250  # numbers of a layer's width that a token reads or writes, both passes
FEATURES_PASSED_COMPILED = 150  # with fused kernels
LOGITS_PASSED = 6  # float32 numbers, read or written for each of a token's logits
UPDATE_PASSED = 10  # numbers for each trained weight: AdamW's 7, the norm's 1, clipping's 2
OPENED_BYTES = 8  # for each number of a quantised matrix, in each pass
KERNELS_OF_A_LAYER, COMPILED_KERNELS_OF_A_LAYER = 100, 40
LAUNCH_S = 6e-6  # of a kernel, by Python and torch
TYPICAL_FLOPS_PER_BYTE = 200  # peak over bandwidth, where the bandwidth is not known
REACHED_LINK = 0.7  # share of the data sheet's bandwidth that large messages reach
# Network of a GPU to other nodes in GB/s, by its link inside the node: what the published runs had
# (400 and 200 Gb/s for each GPU), and a card of 100 Gb/s for a node without NVLink.
NETWORKS = ((450.0, 50.0), (300.0, 25.0))
NETWORK_OF_A_NODE = 12.5
FASTEST, SLOWEST = 0.80, 1.40  # of the expected time: nine of ten published runs lie between


class StepTime(BaseModel):
    """Duration of one optimizer step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    expected_s: float
    low_s: float
    """Duration of the fastest runs of its kind, with all traffic hidden that can be, at the
    bandwidth of the data sheets."""
    high_s: float
    """Duration of the slowest runs of its kind, with no traffic hidden."""
    compute_s: float
    traffic_s: float
    """Duration of all traffic; the part hidden behind computing is not subtracted."""
    basis: str


def time_of_step(resolved: ResolvedSpec) -> StepTime | None:
    """Return the duration of a step; None if the GPU or its links are not known.

    None also for image models, of which no speeds were compared, and if the host updates the
    weights, whose speed and bus are not known. The network between nodes is assumed.
    """
    spec, gpu, peak = resolved.spec, speeds_of(resolved.hardware), peak_of(resolved)
    if spec.model.name.reads_images or gpu is None or peak is None:
        return None
    if spec.parallelism.offload_optimizer is not Offload.NONE:
        return None
    sent, links = traffic(resolved), links_of(resolved.hardware, gpu)
    if links.inside is None and any(not part.crosses_nodes for part in sent):
        return None
    behind, beside = [p for p in sent if p.overlaps], [p for p in sent if not p.overlaps]
    hidden, shown = (links.travels_s(resolved, parts) for parts in (behind, beside))
    at_best = links.at_best
    share = reached(resolved, gpu, peak)
    compute_s = computes_s(resolved, gpu, share * peak) / (1 - bubble_of(resolved))
    basis = f"{gpu.source}: {peak:g} TFLOP/s, of which products reach {share:.0%}"
    if any(part.crosses_nodes for part in sent):
        basis += f"; assumed: {links.across:.3g} GB/s from each GPU to other nodes"
    return StepTime(
        expected_s=max(compute_s, hidden) + shown,
        low_s=max(FASTEST * compute_s, at_best.travels_s(resolved, behind))
        + at_best.travels_s(resolved, beside),
        high_s=SLOWEST * compute_s + hidden + shown,
        compute_s=compute_s,
        traffic_s=hidden + shown,
        basis=basis,
    )


def computes_s(resolved: ResolvedSpec, gpu: GpuSpeeds, tflops: float) -> float:
    """Return the time that a rank computes in a step, at this speed of its products."""
    spec, ranks = resolved.spec, max(1, resolved.world_size)
    attention = FLOPS_PER_ATTENTION * spec.model.layers * query_width(spec.model)
    attention *= tokens_per_sample(spec.data) * tokens_of_step(spec)
    slower = (1 / ATTENTION_SLOWER - 1) * attention
    work = (flops_per_step(spec) + slower) / ranks * (1 + recomputed(spec))
    passed = (bytes_of_features(spec) + bytes_of_logits(spec)) / ranks
    passed += bytes_of_update(resolved) + bytes_opened(resolved)
    bandwidth = gpu.memory_gb_per_s or tflops * 1e3 / TYPICAL_FLOPS_PER_BYTE
    on_gpu = work / (tflops * 1e12) + passed / (bandwidth * 1e9)
    return max(on_gpu, launches_s(resolved))


def recomputed(spec: TrainSpec) -> float:
    """Return the share of the arithmetic that is done once more.

    A frozen weight has no gradient: its forward pass is a half, not a third.
    """
    again = RECOMPUTED[spec.activation_checkpointing]
    return again if spec.adapter is None else 1.5 * again


def tokens_of_step(spec: TrainSpec) -> int:
    return spec.training.global_batch_size * tokens_per_sample(spec.data)


def bytes_of_features(spec: TrainSpec) -> float:
    """Return the bytes of features that all layers read and write in a step, beside the products.

    Recomputed layers pass their forward pass's share once more.
    """
    passed = FEATURES_PASSED_COMPILED if spec.compile is True else FEATURES_PASSED
    numbers = tokens_of_step(spec) * spec.model.layers * spec.model.width * passed
    return numbers * BYTES_PER_FEATURE[spec.precision] * (1 + recomputed(spec))


def bytes_of_logits(spec: TrainSpec) -> float:
    """Return the bytes that the loss of a step reads and writes."""
    return tokens_of_step(spec) * vocabulary_size(spec.data) * LOGITS_PASSED * 4


def bytes_of_update(resolved: ResolvedSpec) -> float:
    """Return the bytes that a rank's clipping and update read and write."""
    spec, layout = resolved.spec, resolved.layout
    shards = layout.shard * (layout.context if layout.shard > 1 else 1)
    own = count_trained(spec) / (layout.tensor * layout.pipeline * shards)
    return own * UPDATE_PASSED * BYTES_PER_WEIGHT[spec.precision]


def bytes_opened(resolved: ResolvedSpec) -> float:
    """Return the bytes that a rank reads and writes to dequantise frozen matrices in a step."""
    spec, layout = resolved.spec, resolved.layout
    if spec.adapter is None or spec.adapter.base is FrozenBase.NONE:
        return 0.0
    numbers = sum(out * into for out, into in matrices(spec.model).values()) * spec.model.layers
    full = spec.activation_checkpointing is ActivationCheckpointing.FULL
    passes = (3 if full else 2) * resolved.gradient_accumulation_steps
    return passes * numbers / (layout.tensor * layout.pipeline) * OPENED_BYTES


def launches_s(resolved: ResolvedSpec) -> float:
    """Return the time that the host takes to launch a step's kernels."""
    spec = resolved.spec
    kernels = COMPILED_KERNELS_OF_A_LAYER if spec.compile is True else KERNELS_OF_A_LAYER
    layers = -(-spec.model.layers // resolved.layout.pipeline)
    in_step = kernels * layers * (1 + recomputed(spec)) * resolved.gradient_accumulation_steps
    return in_step * LAUNCH_S


def reached(resolved: ResolvedSpec, gpu: GpuSpeeds, peak: float) -> float:
    """Return the share of the peak that large products reach."""
    model = resolved.hardware.model
    if known_gpu(model) is None:
        return REACHED_OF_MEASURED
    if peak == gpu.float32:
        return REACHED_IN_FLOAT32
    return next((share for name, share in REACHED.items() if name in str(model)), REACHED_BY_OTHERS)


class Links(NamedTuple):
    """Speeds of large messages from one GPU, in GB/s."""

    inside: float | None
    """Speed to others of its node; None if it is not known."""
    across: float
    """Speed to other nodes, as assumed."""
    is_measured: bool
    """True if the speed inside the node is."""

    @property
    def at_best(self) -> "Links":
        """Speeds of the data sheets, where none was measured."""
        inside = self.inside
        if inside is not None and not self.is_measured:
            inside /= REACHED_LINK
        return self._replace(inside=inside, across=self.across / REACHED_LINK)

    def travels_s(self, resolved: ResolvedSpec, sent: Sequence[Traffic]) -> float:
        """Return the time that messages take one after the other.

        All ranks of a group on a node share what comes in from other nodes, and pass it on inside.
        """
        seconds = 0.0
        for part in sent:
            speed = self.inside or self.across
            if part.crosses_nodes:
                shared = self.across * ranks_on_a_node(resolved, part)
                speed = min(shared, self.inside or shared)
            seconds += part.num_bytes / (1e9 * speed)
        return seconds


def links_of(hardware: Hardware, gpu: GpuSpeeds) -> Links:
    """Return the links of a node's GPUs."""
    link = gpu.link_gb_per_s or 0.0
    own = (across for least, across in NETWORKS if link >= least)
    across = REACHED_LINK * next(own, NETWORK_OF_A_NODE / hardware.slots)
    measured = None if hardware.measured is None else hardware.measured.link_gb_per_s
    if measured is not None:
        return Links(measured, across, is_measured=True)
    inside = None if gpu.link_gb_per_s is None else REACHED_LINK * gpu.link_gb_per_s
    return Links(inside, across, is_measured=False)


def ranks_on_a_node(resolved: ResolvedSpec, part: Traffic) -> int:
    """Return how many ranks of a group are on one node; ranks fill node after node."""
    innermost = AXES.index(part.axis.split(" x ")[-1])
    apart = math.prod(resolved.layout.degrees[innermost + 1 :])
    return max(1, min(part.ranks, resolved.ranks_per_node // apart))


def peak_of(resolved: ResolvedSpec) -> float | None:
    """Return the peak of one GPU in TFLOP/s at the run's precision; None if it is not known."""
    hardware, spec = resolved.hardware, resolved.spec
    tf32 = multiplies_in_tf32(spec)
    return peak_tflops(hardware.model, spec.precision, tf32=tf32, measured=hardware.speeds)


def bubble_of(resolved: ResolvedSpec) -> float:
    """Return the share of a step in which a pipeline's rank waits, from 0 to 1."""
    if resolved.layout.pipeline == 1:
        return 0.0
    return bubble(
        resolved.strategy,
        resolved.spec.parallelism,
        ranks=resolved.layout.pipeline,
        micro_batches=resolved.gradient_accumulation_steps,
    )
