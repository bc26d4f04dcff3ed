"""A spec resolved against hardware: layout, batch arithmetic, memory, and what stands in the way.

Pure: the same spec, ranks and hardware always give the same plan.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from strategies import rules
from strategies.catalog import TECHNIQUES, ResultClass, promised
from strategies.cost import Cost, cost
from strategies.hardware import Hardware
from strategies.layout import AXES, Layout
from strategies.learning_rate import scaling_policy
from strategies.memory import MemoryTerm, memory_terms
from strategies.rules.layout import DEGREE_FIELDS
from strategies.rules.precision import emulated
from strategies.rules.problem import Asked, Problem
from strategies.rules.zero import computed_in_float32
from strategies.shapes import count_parameters, vocabulary_size
from strategies.spec import ParallelismSpec, Strategy, TrainSpec

USABLE_SHARE = 0.9  # the rest is for fragmentation and for whatever else the machine runs


class Plan(BaseModel):
    """Everything decided before a run; JSON both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    strategy: Strategy
    layout: Layout
    device: Literal["cpu", "cuda"]
    world_size: int
    nodes: int
    ranks_per_node: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    tokens_per_step: int
    parameters: int
    memory: list[MemoryTerm]
    needed_gib: float
    """Per rank."""
    capacity_gib: float
    """Per rank: nine tenths of its GPU, or of its share of the host's RAM."""
    fits: bool
    cost: Cost | None = None
    """None in plans that were made before costs were told."""
    problems: list[Problem]
    warnings: list[str]
    result_class: ResultClass

    @property
    def runnable(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems


def plan(spec: TrainSpec, *, nodes: int, ranks_per_node: int, hardware: Hardware) -> Plan:
    """Resolve `spec` on `nodes` nodes of `hardware`; every reason why it cannot run is listed."""
    world_size = nodes * ranks_per_node
    strategy = spec.parallelism.strategy
    warnings = []
    if strategy is Strategy.AUTO:
        strategy, why = choose_strategy(spec, world_size)
        warnings.append(why)
    if (policy := scaling_policy(spec.training)) is not None:
        warnings.append(policy)
    warnings.extend(emulated(spec.precision, hardware))
    layout = resolve_layout(spec, strategy, world_size)
    micro, accumulation = resolve_batch(spec, layout.batch_degree, pipeline=layout.pipeline)
    asked = Asked(
        spec=spec,
        strategy=strategy,
        layout=layout,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        hardware=hardware,
    )
    warnings.extend(computed_in_float32(asked))
    terms = memory_terms(asked)
    needed_gib = sum(term.gib for term in terms)
    ranks_sharing = max(1, ranks_per_node) if hardware.device == "cpu" else 1
    capacity_gib = USABLE_SHARE * hardware.memory_gib / ranks_sharing
    problems = [problem for rule in rules.ALL for problem in rule(asked)]
    fits = needed_gib <= capacity_gib
    if not fits:
        problems.append(too_big(spec, terms, needed_gib, capacity_gib, hardware, ranks_sharing))
    if spec.verify is not None:
        problems += one_rank_fits(spec, micro, spec.verify.steps, hardware)
    return Plan(
        strategy=strategy,
        layout=layout,
        device=hardware.device,
        world_size=world_size,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        global_batch_size=spec.training.global_batch_size,
        tokens_per_step=spec.training.global_batch_size * spec.data.sequence_length,
        parameters=count_parameters(spec.model, vocabulary=vocabulary_size(spec.data)),
        memory=terms,
        needed_gib=needed_gib,
        capacity_gib=capacity_gib,
        fits=fits,
        cost=cost(asked),
        problems=problems,
        warnings=warnings,
        result_class=promised(strategy, spec),
    )


def choose_strategy(spec: TrainSpec, world_size: int) -> tuple[Strategy, str]:
    """What `auto` means on this many ranks beside the given degrees, and why."""
    asked = spec.parallelism
    if asked.data_parallel_shard_degree not in (None, 1):
        if asked.data_parallel_replicate_degree in (None, 1):
            return Strategy.FSDP, "auto chose fsdp: a shard degree was given"
        return Strategy.HSDP, "auto chose hsdp: a shard and a replicate degree were given"
    if world_size == 1:
        return Strategy.SINGLE, "auto chose single: there is one rank, so nothing to split"
    return Strategy.DDP, (
        f"auto chose ddp: the whole model on each of {world_size} ranks, each with its own samples"
    )


def resolve_layout(spec: TrainSpec, strategy: Strategy, world_size: int) -> Layout:
    """The degrees asked for; the strategy's own axis, when left open, takes the ranks left."""
    technique = TECHNIQUES.get(strategy)
    given = {axis: getattr(spec.parallelism, DEGREE_FIELDS[axis]) for axis in AXES}
    degrees = {axis: degree or 1 for axis, degree in given.items()}
    if technique is not None and technique.open_axis and given[technique.open_axis] is None:
        degrees[technique.open_axis] = max(1, world_size // Layout(**degrees).world_size)
    return Layout(**degrees)


def resolve_batch(spec: TrainSpec, batch_degree: int, *, pipeline: int = 1) -> tuple[int, int]:
    """Micro-batch size and accumulation steps; where nothing divides, the nearest below.

    A pipeline that is left free gets two micro-batches per rank, or one, so that it can be filled.
    """
    training = spec.training
    micro, accumulation = training.micro_batch_size, training.gradient_accumulation_steps
    if micro is not None:
        return micro, accumulation or max(1, training.global_batch_size // (micro * batch_degree))
    samples = max(1, training.global_batch_size // batch_degree)
    if accumulation is None:
        wanted = (2 * pipeline, pipeline) if pipeline > 1 else (1,)
        accumulation = next((count for count in wanted if samples % count == 0), 1)
    return max(1, samples // accumulation), accumulation


def one_rank_fits(
    spec: TrainSpec, micro_batch_size: int, steps: int, hardware: Hardware
) -> Iterator[Problem]:
    """For a certificate one rank trains alone first; the others hold nothing while they wait."""
    batch = {"micro_batch_size": micro_batch_size, "gradient_accumulation_steps": None}
    changes = {
        "parallelism": ParallelismSpec(strategy=Strategy.SINGLE),
        "training": spec.training.model_copy(update=batch),
        "verify": None,
    }
    alone = plan(spec.model_copy(update=changes), nodes=1, ranks_per_node=1, hardware=hardware)
    if not alone.fits:
        yield Problem(
            code="does_not_fit",
            param="verify",
            message=f"verify first trains {steps} steps on one rank alone, which needs "
            f"{alone.needed_gib:.2f} GiB, but class {hardware.class_name} leaves "
            f"{alone.capacity_gib:.2f} GiB; leave verify out, or verify this layout with a smaller "
            "model",
        )


def too_big(
    spec: TrainSpec,
    terms: list[MemoryTerm],
    needed_gib: float,
    capacity_gib: float,
    hardware: Hardware,
    ranks_sharing: int,
) -> Problem:
    largest = max(terms, key=lambda term: term.gib)
    table = ", ".join(f"{term.name} {term.gib:.2f}" for term in terms)
    owner = "a GPU" if hardware.device == "cuda" else f"a host shared by {ranks_sharing} ranks"
    state_bound = largest.name in ("weights", "gradients", "optimizer")
    return Problem(
        code="does_not_fit",
        param="model.width" if state_bound else "training.micro_batch_size",
        message=f"needs {needed_gib:.2f} GiB per rank ({table}), but {owner} of class "
        f"{hardware.class_name} ({hardware.memory_gib:.2f} GiB) leaves {capacity_gib:.2f} GiB; "
        + (
            "take a smaller model"
            if state_bound
            else f"take a smaller micro_batch_size or sequence_length "
            f"(now {spec.data.sequence_length})"
        ),
    )
