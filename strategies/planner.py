"""A spec resolved against hardware: layout, batch arithmetic, memory, and what stands in the way.

Pure: the same spec, ranks and hardware always give the same plan.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from strategies.catalog import SUPPORTED_PRECISIONS, TECHNIQUES, VOCABULARY
from strategies.layout import AXES, Layout
from strategies.memory import MemoryTerm, count_parameters, memory_terms
from strategies.spec import ModelName, ModelSpec, Strategy, TrainSpec

USABLE_SHARE = 0.9  # the rest is for fragmentation and for whatever else the machine runs

DEGREE_FIELDS = {
    "pipeline": "pipeline_parallel_degree",
    "replicate": "data_parallel_replicate_degree",
    "shard": "data_parallel_shard_degree",
    "context": "context_parallel_degree",
    "tensor": "tensor_parallel_degree",
}


class PlanPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Hardware(PlanPart):
    """One node of a class. `memory_gib` is per GPU, or the whole host's RAM on CPU."""

    class_name: str
    device: Literal["cpu", "cuda"]
    slots: int = Field(ge=1)
    memory_gib: float = Field(gt=0)
    model: str | None = None


class Problem(PlanPart):
    """Why a spec cannot run. `param` is a dotted field of the spec; numbers are in the message."""

    code: str
    param: str
    message: str


class Plan(PlanPart):
    """Everything decided before a run; JSON both ways."""

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
    problems: list[Problem]
    warnings: list[str]
    result_class: Literal["exact", "band", "exempt"]

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
        strategy, why = choose_strategy(world_size)
        warnings.append(why)
    layout = resolve_layout(spec, world_size)
    micro, accumulation = resolve_batch(spec, layout.batch_degree)
    technique = TECHNIQUES.get(strategy)
    terms = memory_terms(spec, micro_batch_size=micro, device=hardware.device)
    needed_gib = sum(term.gib for term in terms)
    ranks_sharing = max(1, ranks_per_node) if hardware.device == "cpu" else 1
    capacity_gib = USABLE_SHARE * hardware.memory_gib / ranks_sharing
    problems = [
        *strategy_problems(spec, strategy, layout, world_size),
        *rank_problems(nodes, ranks_per_node, hardware),
        *model_problems(spec.model),
        *batch_problems(spec, layout.batch_degree),
        *schedule_problems(spec),
    ]
    fits = needed_gib <= capacity_gib
    if not fits:
        problems.append(too_big(spec, terms, needed_gib, capacity_gib, hardware, ranks_sharing))
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
        parameters=count_parameters(spec.model, vocabulary=VOCABULARY[spec.data.tokenizer]),
        memory=terms,
        needed_gib=needed_gib,
        capacity_gib=capacity_gib,
        fits=fits,
        problems=problems,
        warnings=warnings,
        result_class="exact" if technique is None else technique.result_class,
    )


def choose_strategy(world_size: int) -> tuple[Strategy, str]:
    """What `auto` means on this many ranks, and why."""
    if world_size == 1:
        return Strategy.SINGLE, "auto chose single: there is one rank, so nothing to split"
    return Strategy.DDP, (
        f"auto chose ddp: the whole model on each of {world_size} ranks, each with its own samples"
    )


def resolve_layout(spec: TrainSpec, world_size: int) -> Layout:
    """The degrees asked for; replicate, when left open, takes the ranks that remain."""
    asked = spec.parallelism
    others = Layout(
        pipeline=asked.pipeline_parallel_degree,
        shard=asked.data_parallel_shard_degree,
        context=asked.context_parallel_degree,
        tensor=asked.tensor_parallel_degree,
    )
    replicate = asked.data_parallel_replicate_degree
    if replicate is None:
        open_axis = asked.strategy in (Strategy.AUTO, Strategy.DDP)
        replicate = max(1, world_size // others.world_size) if open_axis else 1
    return others.model_copy(update={"replicate": replicate})


def resolve_batch(spec: TrainSpec, batch_degree: int) -> tuple[int, int]:
    """Micro-batch size and accumulation steps; where nothing divides, the nearest below."""
    training = spec.training
    micro, accumulation = training.micro_batch_size, training.gradient_accumulation_steps
    if micro is None:
        accumulation = accumulation or 1
        return max(1, training.global_batch_size // (accumulation * batch_degree)), accumulation
    return micro, accumulation or max(1, training.global_batch_size // (micro * batch_degree))


def strategy_problems(
    spec: TrainSpec, strategy: Strategy, layout: Layout, world_size: int
) -> Iterator[Problem]:
    technique = TECHNIQUES.get(strategy)
    if technique is None:
        known = ", ".join(sorted(name.value for name in TECHNIQUES))
        yield Problem(
            code="strategy_not_supported",
            param="parallelism.strategy",
            message=f"strategy {strategy} cannot run yet; this version trains with: {known}",
        )
    else:
        for axis, degree in zip(AXES, layout.degrees, strict=True):
            if degree > 1 and axis not in technique.axes:
                yield Problem(
                    code="degree_not_supported",
                    param=f"parallelism.{DEGREE_FIELDS[axis]}",
                    message=f"strategy {strategy} keeps this degree at 1, not {degree}",
                )
    if layout.world_size != world_size:
        factors = " x ".join(
            f"{axis} {degree}" for axis, degree in zip(AXES, layout.degrees, strict=True)
        )
        if strategy is Strategy.SINGLE and layout.world_size == 1:
            param = "parallelism.strategy"
            advice = "ask for 1 rank, or for strategy ddp"
        else:
            param = "parallelism.data_parallel_replicate_degree"
            advice = "make the degrees multiply to the number of ranks"
        yield Problem(
            code="world_size_mismatch",
            param=param,
            message=f"the degrees multiply to {layout.world_size} ({factors}), but the job has "
            f"{world_size} ranks; {advice}",
        )
    if spec.precision not in SUPPORTED_PRECISIONS:
        known = ", ".join(SUPPORTED_PRECISIONS)
        yield Problem(
            code="precision_not_supported",
            param="precision",
            message=f"precision {spec.precision} cannot run yet; this version trains in: {known}",
        )


def rank_problems(nodes: int, ranks_per_node: int, hardware: Hardware) -> Iterator[Problem]:
    if nodes < 1:
        yield Problem(
            code="out_of_range",
            param="resources.nodes",
            message=f"a job needs at least 1 node, not {nodes}",
        )
    if not 1 <= ranks_per_node <= hardware.slots:
        slot = "GPU" if hardware.device == "cuda" else "CPU slot"
        yield Problem(
            code="too_many_ranks",
            param="resources.ranks_per_node",
            message=f"{ranks_per_node} ranks per node, but a node of class {hardware.class_name} "
            f"has 1 to {hardware.slots} to give (one per {slot})",
        )


def model_problems(model: ModelSpec) -> Iterator[Problem]:
    if model.width % model.heads:
        yield Problem(
            code="not_divisible",
            param="model.heads",
            message=f"width {model.width} is not divisible by {model.heads} heads",
        )
    elif model.width // model.heads % 2:
        yield Problem(
            code="odd_head_width",
            param="model.heads",
            message=f"width {model.width} / {model.heads} heads = {model.width // model.heads} "
            "features per head; rotary positions need an even number",
        )
    if model.kv_heads is None:
        return
    if model.name is ModelName.GPT and model.kv_heads != model.heads:
        yield Problem(
            code="not_supported_by_model",
            param="model.kv_heads",
            message=f"gpt gives each of its {model.heads} heads its own keys, so kv_heads cannot "
            f"be {model.kv_heads}; leave it out, or take llama",
        )
    elif model.heads % model.kv_heads:
        yield Problem(
            code="not_divisible",
            param="model.kv_heads",
            message=f"{model.heads} heads are not divisible by {model.kv_heads} kv_heads",
        )


def batch_problems(spec: TrainSpec, batch_degree: int) -> Iterator[Problem]:
    training = spec.training
    total, micro = training.global_batch_size, training.micro_batch_size
    accumulation = training.gradient_accumulation_steps
    parts = [(batch_degree, f"{batch_degree} data-parallel ranks")]
    if micro is not None:
        parts.append((micro, f"micro_batch_size {micro}"))
    if accumulation is not None:
        parts.append((accumulation, f"gradient_accumulation_steps {accumulation}"))
    product = 1
    for number, _ in parts:
        product *= number
    named = " x ".join(text for _, text in parts)
    if micro is not None and accumulation is not None:
        if product != total:
            yield Problem(
                code="batch_mismatch",
                param="training.global_batch_size",
                message=f"{named} = {product} samples per step, not {total}",
            )
    elif total % product:
        yield Problem(
            code="not_divisible",
            param="training.global_batch_size",
            message=f"{total} samples per step are not divisible by {product} ({named})",
        )


def schedule_problems(spec: TrainSpec) -> Iterator[Problem]:
    training = spec.training
    if training.warmup_steps > training.steps:
        yield Problem(
            code="out_of_range",
            param="training.warmup_steps",
            message=f"a warm-up of {training.warmup_steps} steps is longer than the whole run of "
            f"{training.steps}",
        )
    if training.eval_every_steps is not None and spec.data.held_out == 0:
        yield Problem(
            code="nothing_held_out",
            param="training.eval_every_steps",
            message=f"evaluation every {training.eval_every_steps} steps needs held-out text, but "
            "data.held_out is 0",
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
