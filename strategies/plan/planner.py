"""Plan of a spec on given hardware: layout, batch arithmetic, memory, and problems.

Pure: the same spec, ranks and hardware always give the same plan.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from strategies.plan import rules
from strategies.plan.attention_kernels import AttentionKernel, kernel_of, scores_are_kept
from strategies.plan.catalog import TECHNIQUES, ResultClass, promised
from strategies.plan.estimates.advice import Advice, ChangedPlan, advise
from strategies.plan.estimates.cost import Cost, cost
from strategies.plan.estimates.host import file_terms, host_capacity_gib, host_terms
from strategies.plan.estimates.memory import (
    MemoryPhase,
    MemoryTerm,
    memory_by_stage,
    multiplied,
    needed_by_phase,
    shares,
)
from strategies.plan.hardware import Hardware, digest_of
from strategies.plan.layout import AXES, Layout
from strategies.plan.learning_rate import scaling_policy
from strategies.plan.rules.adapters import assumed_dtype, nothing_to_adapt
from strategies.plan.rules.layout import DEGREE_FIELDS
from strategies.plan.rules.offload import swapping_is_compiled
from strategies.plan.rules.precision import emulated, slow_float32, unused_tf32
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.rules.zero import computed_in_float32
from strategies.plan.shapes import count_trained, parameters_of, tokens_per_sample
from strategies.plan.spec import (
    AUTO,
    Float32Matmul,
    ModelName,
    ParallelismSpec,
    Strategy,
    TrainSpec,
)
from strategies.plan.words import counted

DOES_NOT_FIT = "does_not_fit"
COMPILING_PAYS_S = 600.0  # compiling takes about a minute
MOST_REMEDIES = 3  # in a sentence; the plan's table has them all
TRIED_BY_AUTO = (Strategy.FSDP, Strategy.HSDP, Strategy.TENSOR, Strategy.PIPELINE)
MOST_CPU_RANKS = (
    8  # of `auto`: a node with more CPU slots has other users, and GPU nodes have 8 GPUs
)
USABLE_SHARE = 0.9  # the rest is for fragmentation and other programs on the machine


class KindOfRun(NamedTuple):
    """Runs whose plans have similar errors."""

    device: str
    model: ModelName
    strategy: Strategy


Learned = Mapping[KindOfRun, float]
"""Factors of estimated terms, at a site that has measured that runs need more."""
NOTHING_LEARNED: Learned = {}


class Plan(BaseModel):
    """All decisions made before a run; JSON both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    strategy: Strategy
    layout: Layout
    device: Literal["cpu", "cuda"]
    made_for: str | None = Field(default=None, exclude_if=lambda digest: digest is None)
    """Digest of the hardware that it was made for; None in plans of older versions."""
    compiles: bool = False
    """True if layers run as generated kernels."""
    float32_matmul: Float32Matmul = Float32Matmul.EXACT
    deterministic: bool = False
    attention: AttentionKernel | None = Field(
        default=None, exclude_if=lambda kernel: kernel is None
    )
    """Kernel of attention that torch takes; None on a CPU, in a ring, for images and in plans of
    older versions."""
    world_size: int
    nodes: int
    ranks_per_node: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    tokens_per_step: int
    parameters: int
    """Parameters of the whole model, with its adapters."""
    trainable_parameters: int | None = None
    """Trained parameters among them; None, from older versions: all."""
    memory: list[MemoryTerm]
    """Memory of each of the ranks that need the most, by term."""
    needed_gib: float
    """Memory of each of the ranks that need the most."""
    needed_by_stage_gib: list[float] = []
    """Memory per rank, by position along the pipeline."""
    needed_by_phase_gib: list[dict[MemoryPhase, float]] = []
    """Highest memory per rank in each phase, by position along the pipeline; without Python and its
    libraries."""
    learned_factor: float = 1.0
    """Factor of the estimated terms, above 1 if runs of this kind needed more here."""
    host_memory: list[MemoryTerm] = []
    """Memory that the host of each GPU node needs."""
    host_capacity_gib: float | None = None
    """Memory of that host for the job: nine tenths of its slots' share. None: not known, or on
    CPU."""
    files: list[MemoryTerm] = []
    """Disk space per node for state offloaded to files (nvme)."""
    capacity_gib: float
    """Memory available per rank: nine tenths of its GPU, or of its share of the host's RAM."""
    fits: bool
    cost: Cost | None = None
    """Cost of the run; None in plans made before costs were computed."""
    advice: list[Advice] = []
    """Changes that would make the job fit; empty if it fits."""
    problems: list[Problem]
    warnings: list[str]
    result_class: ResultClass
    unit: Literal["tokens", "images"] = "tokens"
    """Unit that the loss averages over, and that is meant where a name says tokens."""

    @property
    def runnable(self) -> bool:
        """True if the plan has no problems."""
        return not self.problems

    @property
    def step_s(self) -> float | None:
        """Expected seconds per step; None if the hardware's speed is not known."""
        time = None if self.cost is None else self.cost.step_time
        return None if time is None else time.expected_s


def plan(
    spec: TrainSpec,
    *,
    nodes: int,
    ranks_per_node: int | Literal["auto"],
    hardware: Hardware,
    learned: Learned = NOTHING_LEARNED,
) -> Plan:
    """Resolve `spec` on `nodes` nodes of `hardware`.

    Every reason why it cannot run is listed; if it needs too much memory, with changes that would
    make it fit. `auto` ranks are as many as `choose_ranks` says.
    """

    def planned(changed: TrainSpec, ranks: int) -> tuple[ResolvedSpec, Plan]:
        resolved = resolve(changed, nodes=nodes, ranks_per_node=ranks, hardware=hardware)
        return resolved, plan_of(resolved, learned)

    def settled_on(ranks: int) -> tuple[TrainSpec, list[str]]:
        return settle(spec, lambda changed: planned(changed, ranks)[1], nodes * ranks)

    def try_out(changed: TrainSpec, ranks: int) -> ChangedPlan:
        if spec.compile == AUTO:  # as it would be where a rule objects
            changed = changed.model_copy(update={"compile": False})
        found = planned(changed, ranks)[1]
        return ChangedPlan(
            legal=all(problem.code == DOES_NOT_FIT for problem in found.problems),
            fits=found.fits,
            needed_gib=found.needed_gib,
            step_s=found.step_s,
            result_class=found.result_class,
            micro_batch_size=found.micro_batch_size,
        )

    why_ranks: list[str] = []
    if isinstance(ranks_per_node, str):
        ranks_per_node, reason = choose_ranks(
            lambda ranks: planned(settled_on(ranks)[0], ranks)[1], hardware
        )
        why_ranks.append(reason)
    settled, why = settled_on(ranks_per_node)
    resolved, found = planned(settled, ranks_per_node)
    changes: dict[str, Any] = {
        "made_for": digest_of(hardware),
        "warnings": [*why_ranks, *why, *found.warnings],
    }
    if spec.verify is not None:
        alone = one_rank_fits(spec, found.micro_batch_size, spec.verify.steps, hardware, learned)
        changes["problems"] = [*found.problems, *alone]
    if not found.fits:
        advice = advise(resolved, try_out, needed_gib=found.needed_gib, step_s=found.step_s)
        remedy = remedy_of(found, advice, spec)
        changes["advice"] = advice
        changes["problems"] = [
            problem.model_copy(update={"message": f"{problem.message}; {remedy}"})
            if problem in found.problems and problem.code == DOES_NOT_FIT
            else problem
            for problem in changes.get("problems", found.problems)
        ]
    return found.model_copy(update=changes)


def settle(
    spec: TrainSpec, planned: Callable[[TrainSpec], Plan], world_size: int
) -> tuple[TrainSpec, list[str]]:
    """Return the spec with everything decided that it leaves to the planner, and the reasons."""
    why = []
    if spec.parallelism.strategy is Strategy.AUTO:
        spec, reason = choose_strategy(
            spec, lambda resolved: planned(with_micro_batch(resolved, planned)[0]), world_size
        )
        why.append(reason)
    for decide in (with_micro_batch, with_compile):
        spec, reason = decide(spec, planned)
        why += [reason] if reason else []
    return spec, why


def resolve(
    spec: TrainSpec, *, nodes: int, ranks_per_node: int, hardware: Hardware
) -> ResolvedSpec:
    """Return layout and batch of a settled spec."""
    strategy = spec.parallelism.strategy
    layout = resolve_layout(spec, strategy, nodes * ranks_per_node)
    micro, accumulation = resolve_batch(spec, layout.batch_degree, pipeline=layout.pipeline)
    return ResolvedSpec(
        spec=spec,
        strategy=strategy,
        layout=layout,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        hardware=hardware,
    )


def plan_of(resolved: ResolvedSpec, learned: Learned = NOTHING_LEARNED) -> Plan:
    """Return the plan of a settled spec, without advice."""
    spec, layout, hardware = resolved.spec, resolved.layout, resolved.hardware
    policy = scaling_policy(spec.training)
    warnings = [] if policy is None else [policy]
    warnings.extend(emulated(spec.precision, hardware))
    warnings.extend(unused_tf32(spec, hardware))
    warnings.extend(slow_float32(spec, hardware))
    warnings.extend(scores_are_kept(resolved))
    warnings.extend(computed_in_float32(resolved))
    warnings.extend(swapping_is_compiled(resolved))
    warnings.extend(nothing_to_adapt(spec))
    warnings.extend(assumed_dtype(spec))
    kind = KindOfRun(hardware.device, spec.model.name, resolved.strategy)
    factor, by_stage = learned.get(kind, 1.0), memory_by_stage(resolved)
    if factor != 1:
        by_stage = [multiplied(terms, factor) for terms in by_stage]
    needed_by_stage = [sum(term.gib for term in terms) for terms in by_stage]
    terms = by_stage[needed_by_stage.index(max(needed_by_stage))]
    needed_gib = max(needed_by_stage)
    ranks_sharing = max(1, resolved.ranks_per_node) if hardware.device == "cpu" else 1
    usable_gib = USABLE_SHARE * hardware.memory_gib
    if hardware.device == "cpu":
        usable_gib = hardware.for_one_job(usable_gib)
    capacity_gib = usable_gib / ranks_sharing
    problems = [problem for rule in rules.ALL for problem in rule(resolved)]
    host_memory = host_terms(resolved)
    host_gib = host_capacity_gib(hardware, resolved.ranks_per_node)
    fits_host = host_gib is None or sum(term.gib for term in host_memory) <= host_gib
    if needed_gib > capacity_gib:
        problems.append(too_big(terms, needed_gib, capacity_gib, hardware, ranks_sharing))
    if host_gib is not None and not fits_host:
        problems.append(too_big_for_host(host_memory, host_gib, hardware, resolved.ranks_per_node))
    return Plan(
        strategy=resolved.strategy,
        layout=layout,
        device=hardware.device,
        compiles=spec.compile is True,
        float32_matmul=spec.float32_matmul,
        deterministic=spec.deterministic,
        attention=kernel_of(resolved),
        world_size=resolved.world_size,
        nodes=resolved.nodes,
        ranks_per_node=resolved.ranks_per_node,
        micro_batch_size=resolved.micro_batch_size,
        gradient_accumulation_steps=resolved.gradient_accumulation_steps,
        global_batch_size=spec.training.global_batch_size,
        tokens_per_step=spec.training.global_batch_size * tokens_per_sample(spec.data),
        parameters=parameters_of(spec) + (0 if spec.adapter is None else count_trained(spec)),
        trainable_parameters=count_trained(spec),
        unit="images" if spec.model.name.reads_images else "tokens",
        memory=terms,
        needed_gib=needed_gib,
        needed_by_stage_gib=needed_by_stage,
        needed_by_phase_gib=[
            needed_by_phase(resolved, share, terms, factor)
            for share, terms in zip(shares(resolved), by_stage, strict=True)
        ],
        learned_factor=factor,
        host_memory=host_memory,
        host_capacity_gib=host_gib,
        files=file_terms(resolved),
        capacity_gib=capacity_gib,
        fits=needed_gib <= capacity_gib and fits_host,
        cost=cost(resolved),
        problems=problems,
        warnings=warnings,
        result_class=promised(resolved.strategy, spec),
    )


def choose_ranks(planned: Callable[[int], Plan], hardware: Hardware) -> tuple[int, str]:
    """Return the ranks per node that `auto` stands for, and the reason.

    As many as there are slots, or the most with which the job can run. If no number can, the one
    with the fewest problems.
    """
    most = slots_for_auto(hardware)
    slot = "GPU" if hardware.device == "cuda" else "CPU slot"
    on = f"{counted(hardware.slots, slot)} of class {hardware.class_name}"
    plans: dict[int, Plan] = {}
    for ranks in range(most, 0, -1):
        plans[ranks] = planned(ranks)
        if plans[ranks].runnable:
            chose = f"auto chose {counted(ranks, 'rank')} per node"
            if ranks == hardware.slots:
                return ranks, f"{chose}: one for each of the {on}"
            if ranks == most:
                return ranks, f"{chose}: it takes at most {most} of the {on}"
            return ranks, f"{chose}: with more of the {on} the job cannot run"
    best = min(plans, key=lambda ranks: (len(plans[ranks].problems), -ranks))
    return best, f"auto chose {counted(best, 'rank')} per node, but no number of ranks can run"


def slots_for_auto(hardware: Hardware) -> int:
    """Return the slots of a node that `auto` may take."""
    return hardware.slots if hardware.device == "cuda" else min(hardware.slots, MOST_CPU_RANKS)


def choose_strategy(
    spec: TrainSpec, planned: Callable[[TrainSpec], Plan], world_size: int
) -> tuple[TrainSpec, str]:
    """Return the spec with the strategy that `auto` stands for on this many ranks, and the reason.

    Given degrees are kept. Of the strategies that can run, the one expected to be fastest is
    chosen; if no time is known, the first, in the order of the amount of traffic.
    """
    asked = spec.parallelism

    def taking(strategy: Strategy, **degrees: int) -> TrainSpec:
        update = {"parallelism": asked.model_copy(update={"strategy": strategy, **degrees})}
        return spec.model_copy(update=update)

    if asked.data_parallel_shard_degree not in (None, 1):
        if asked.data_parallel_replicate_degree in (None, 1):
            return taking(Strategy.FSDP), "auto chose fsdp: a shard degree was given"
        why = "auto chose hsdp: a shard and a replicate degree were given"
        return taking(Strategy.HSDP), why
    if world_size == 1:
        why = "auto chose single: there is only one rank"
        return taking(Strategy.SINGLE), why
    first = planned(taking(Strategy.DDP))
    if first.fits:
        return taking(Strategy.DDP), (
            f"auto chose ddp: the whole model on each of {world_size} ranks, each with its own "
            "samples"
        )
    short = f"ddp needs {first.needed_gib:.2f} GiB per rank of {first.capacity_gib:.2f}"
    fitting = runnable({str(name): taking(name) for name in TRIED_BY_AUTO}, planned)
    if not fitting and asked.tensor_parallel_degree in (None, 1):
        # The number of heads limits how far matrices can be split; the remaining ranks shard.
        degrees = [degree for degree in powers_of_two_in(world_size) if 1 < degree < world_size]
        fitting = runnable(
            {
                f"fsdp with tensor degree {degree}": taking(
                    Strategy.FSDP, tensor_parallel_degree=degree
                )
                for degree in degrees
            },
            planned,
        )
    if not fitting:
        return taking(Strategy.FSDP), f"auto chose fsdp: {short}, and no other layout fits either"
    known = [one for one in fitting if one.step_s is not None]
    best = min(known, key=lambda one: one.step_s or math.inf) if known else fitting[0]
    how = (
        "the one with the shortest expected step"
        if known
        else "the one with the least traffic in each layer"
    )
    return best.spec, f"auto chose {best.name}: {short}; of the layouts that fit, it is {how}"


class Candidate(NamedTuple):
    """Possible meaning of `auto`."""

    name: str
    spec: TrainSpec
    step_s: float | None


def runnable(
    candidates: Mapping[str, TrainSpec], planned: Callable[[TrainSpec], Plan]
) -> list[Candidate]:
    """Return the candidates that can run, in their order."""
    plans = {name: planned(spec) for name, spec in candidates.items()}
    return [
        Candidate(name, candidates[name], found.step_s)
        for name, found in plans.items()
        if found.runnable
    ]


def powers_of_two_in(number: int) -> list[int]:
    """Return the powers of two that divide the number, ascending from 1."""
    return [1 << bits for bits in range(number.bit_length()) if number % (1 << bits) == 0]


def with_micro_batch(
    spec: TrainSpec, planned: Callable[[TrainSpec], Plan]
) -> tuple[TrainSpec, str]:
    """Return the spec with a micro-batch size, and the reason for a size that was left open.

    It is the largest power of two that divides a rank's samples and fits.
    """
    training = spec.training
    if training.micro_batch_size != AUTO:
        return spec, ""

    def taking(size: int | None) -> TrainSpec:
        update = {"training": training.model_copy(update={"micro_batch_size": size})}
        return spec.model_copy(update=update)

    degree = planned(taking(None)).layout.batch_degree
    samples = training.global_batch_size // (degree * (training.gradient_accumulation_steps or 1))
    sizes = reversed(powers_of_two_in(samples))
    fitting = next((size for size in sizes if planned(taking(size)).runnable), None)
    if fitting is None:
        return taking(1), "auto chose micro_batch_size 1, but even that cannot run"
    return taking(fitting), (
        f"auto chose micro_batch_size {fitting}: the largest power of two that divides a rank's "
        f"{samples} samples and fits"
    )


def with_compile(spec: TrainSpec, planned: Callable[[TrainSpec], Plan]) -> tuple[TrainSpec, str]:
    """Return the spec with or without compiled layers, and the reason if a GPU could use them.

    They are compiled where no rule objects, if the run is long enough to pay for it. The layers of
    an image model differ, and would be compiled one by one.
    """
    if spec.compile != AUTO:
        return spec, ""
    off = spec.model_copy(update={"compile": False})
    compiled = spec.model_copy(update={"compile": True})
    found = planned(compiled)
    if found.device == "cpu" or spec.model.name.reads_images:
        return off, ""
    why = [problem.message for problem in found.problems if problem.param == "compile"]
    if why:
        return off, f"auto left compile off: {why[0]}"
    if found.step_s is not None and found.step_s * spec.training.steps < COMPILING_PAYS_S:
        return off, ""
    return compiled, "auto chose compile: kernels are generated for each layer in the first steps"


def resolve_layout(spec: TrainSpec, strategy: Strategy, world_size: int) -> Layout:
    """Return the degrees asked for; the strategy's open axis takes the remaining ranks."""
    technique = TECHNIQUES.get(strategy)
    given = {axis: getattr(spec.parallelism, DEGREE_FIELDS[axis]) for axis in AXES}
    degrees = {axis: degree or 1 for axis, degree in given.items()}
    if technique is not None and technique.open_axis and given[technique.open_axis] is None:
        degrees[technique.open_axis] = max(1, world_size // Layout(**degrees).world_size)
    return Layout(**degrees)


def resolve_batch(spec: TrainSpec, batch_degree: int, *, pipeline: int = 1) -> tuple[int, int]:
    """Return micro-batch size and accumulation steps; if nothing divides, the nearest below.

    A pipeline whose accumulation is left open gets two micro-batches per rank, or one, so that it
    can be filled.
    """
    training = spec.training
    micro, accumulation = training.micro_batch_size, training.gradient_accumulation_steps
    if isinstance(micro, int):
        return micro, accumulation or max(1, training.global_batch_size // (micro * batch_degree))
    samples = max(1, training.global_batch_size // batch_degree)
    if accumulation is None:
        wanted = (2 * pipeline, pipeline) if pipeline > 1 else (1,)
        accumulation = next((count for count in wanted if samples % count == 0), 1)
    return max(1, samples // accumulation), accumulation


def one_rank_fits(
    spec: TrainSpec, micro_batch_size: int, steps: int, hardware: Hardware, learned: Learned
) -> Iterator[Problem]:
    """Yield a problem if one rank alone, which a certificate trains first, has too little memory.

    The other ranks hold nothing while they wait.
    """
    batch = {"micro_batch_size": micro_batch_size, "gradient_accumulation_steps": None}
    changes = {
        "parallelism": ParallelismSpec(strategy=Strategy.SINGLE),
        "training": spec.training.model_copy(update=batch),
        "verify": None,
    }
    alone = plan(
        spec.model_copy(update=changes),
        nodes=1,
        ranks_per_node=1,
        hardware=hardware,
        learned=learned,
    )
    if not alone.fits:
        yield Problem(
            code=DOES_NOT_FIT,
            param="verify",
            message=f"verify first trains {steps} steps on one rank alone, which needs "
            f"{alone.needed_gib:.2f} GiB, but class {hardware.class_name} leaves "
            f"{alone.capacity_gib:.2f} GiB; leave verify out, or verify this layout with a smaller "
            "model",
        )


def too_big(
    terms: list[MemoryTerm],
    needed_gib: float,
    capacity_gib: float,
    hardware: Hardware,
    ranks_sharing: int,
) -> Problem:
    """Return the problem of a plan that does not fit; `remedy_of` adds the advice."""
    table = ", ".join(f"{term.name} {term.gib:.2f}" for term in terms)
    owner, told = "a GPU", f"{hardware.memory_gib:.2f} GiB"
    if hardware.device == "cpu":
        owner, told = f"a host shared by {ranks_sharing} ranks", hardware.host_text
    return Problem(
        code=DOES_NOT_FIT,
        param="model.width" if is_state_bound(terms) else "training.micro_batch_size",
        message=f"needs {needed_gib:.2f} GiB per rank ({table}), but {owner} of class "
        f"{hardware.class_name} ({told}) leaves {capacity_gib:.2f} GiB",
    )


def too_big_for_host(
    terms: list[MemoryTerm], capacity_gib: float, hardware: Hardware, ranks: int
) -> Problem:
    """Return the problem of a plan whose hosts have too little memory."""
    table = ", ".join(f"{term.name} {term.gib:.2f}" for term in terms)
    return Problem(
        code=DOES_NOT_FIT,
        param="parallelism.offload_optimizer",
        message=f"needs {sum(term.gib for term in terms):.2f} GiB of each host's memory ({table}), "
        f"but {ranks} of the {hardware.slots} slots of class {hardware.class_name} "
        f"({hardware.host_text}) leave {capacity_gib:.2f} GiB",
    )


def is_state_bound(terms: list[MemoryTerm]) -> bool:
    """Return True if the model itself is too large, rather than its activations."""
    return max(terms, key=lambda term: term.gib).name in ("weights", "gradients", "optimizer")


def remedy_of(found: Plan, advice: Sequence[Advice], spec: TrainSpec) -> str:
    """Return advice about a plan that does not fit: changes found to make it fit, else a guess."""
    fitting = [f"{one.title} ({one.needed_gib:.2f} GiB)" for one in advice if one.fits]
    if fitting:
        return f"changes that would make it fit: {'; '.join(fitting[:MOST_REMEDIES])}"
    if is_state_bound(found.memory):
        return "take a smaller model"
    if spec.data.sequence_length is None:
        return "take a smaller micro_batch_size"
    return f"take a smaller micro_batch_size or sequence_length (now {spec.data.sequence_length})"
