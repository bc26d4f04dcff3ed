"""Pipeline stages: their layers, and the ranks that hold them. Pure, torch-free.

Stages are numbered along the model. A rank may hold several: ranks take stages in turn, round after
round; ZBVZeroBubble reverses every second round, so that the first rank holds both ends.
"""

from strategies.plan import image_shapes
from strategies.plan.shapes import (
    ffn_width,
    kv_width,
    query_width,
    tokens_per_sample,
    vocabulary_size,
)
from strategies.plan.spec import ModelName, ParallelismSpec, PipelineSchedule, Strategy, TrainSpec

SINGLE_STAGE = (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
ZERO_BUBBLE = (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, PipelineSchedule.ZBV)


def schedule_of(strategy: Strategy, parallelism: ParallelismSpec) -> PipelineSchedule:
    """Return the schedule of the passes. Naive is GPipe, one micro-batch at a time."""
    if strategy is Strategy.NAIVE:
        return PipelineSchedule.GPIPE
    return parallelism.pipeline_schedule


def stages_per_rank(schedule: PipelineSchedule, parallelism: ParallelismSpec) -> int:
    """Return the number asked for, or the default: 2 if a rank may hold several, else 1."""
    default = 1 if schedule in SINGLE_STAGE else 2
    return parallelism.pipeline_stages_per_rank or default


def can_order(schedule: PipelineSchedule, *, ranks: int, micro_batches: int) -> bool:
    """Return True if torch's schedule supports this number of micro-batches.

    1F1B keeps one in flight for each rank. Interleaved ones go round by round, each of as many
    micro-batches as there are ranks or more.
    """
    match schedule:
        case PipelineSchedule.ONE_F_ONE_B:
            return micro_batches >= ranks
        case PipelineSchedule.INTERLEAVED | PipelineSchedule.INTERLEAVED_ZERO_BUBBLE:
            return micro_batches % max(1, micro_batches // ranks) == 0
        case PipelineSchedule.GPIPE | PipelineSchedule.ZBV:
            return True


def rank_of(stage: int, *, ranks: int, schedule: PipelineSchedule) -> int:
    """Return the rank along the pipeline that holds a stage."""
    turn, place = divmod(stage, ranks)
    backwards = schedule is PipelineSchedule.ZBV and turn % 2 == 1
    return ranks - 1 - place if backwards else place


def layers_of(spec: TrainSpec, num_stages: int) -> list[range]:
    """Return the layers of each stage, cut so that the slowest takes as little time as possible.

    Time is counted in products per token, or per image; loss and norms are left out.
    """
    if spec.model.name.reads_images:
        return cut(
            spec.model.layers,
            num_stages,
            layer_cost=image_shapes.layer_weights(spec.model),
            first_cost=image_shapes.first_weights(spec.model, spec.data),
            last_cost=image_shapes.head_weights(spec.model, spec.data),
        )
    vocabulary, width = vocabulary_size(spec.data), spec.model.width
    return cut(
        spec.model.layers,
        num_stages,
        layer_cost=layer_products(spec),
        first_cost=width,  # reads one row, and writes its gradient
        last_cost=vocabulary * width,
    )


def layer_products(spec: TrainSpec) -> int:
    """Return the multiplications of one layer's forward pass, per token."""
    model = spec.model
    attention = 2 * model.width * (query_width(model) + kv_width(model))
    # Scores: two products, half of each is masked.
    scores = tokens_per_sample(spec.data) * query_width(model)
    matrices = 2 if model.name is ModelName.GPT else 3
    return attention + scores + matrices * model.width * ffn_width(model)


def cut(
    layers: int, num_stages: int, *, layer_cost: float, first_cost: float, last_cost: float
) -> list[range]:
    """Return neighbouring layers for each stage, at least one; the ends' additional costs are
    given.

    Layers are alike, so giving each to the stage with the lowest cost minimises the largest cost of
    a stage.
    """
    counts, costs = [1] * num_stages, [layer_cost] * num_stages
    costs[0] += first_cost
    costs[-1] += last_cost
    for _ in range(layers - num_stages):
        # Among equals the later one: early stages keep more micro-batches in memory.
        lightest = min(range(num_stages), key=lambda stage: (costs[stage], -stage))
        counts[lightest] += 1
        costs[lightest] += layer_cost
    ends = [sum(counts[: stage + 1]) for stage in range(num_stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
