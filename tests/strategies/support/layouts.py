"""Every way to split a run over some ranks that the planner calls legal, and what a run may vary
beside that. Nothing is picked by hand: what the catalog lists takes part.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from strategies.plan import rules
from strategies.plan.catalog import SPMD, TECHNIQUES, engine_path
from strategies.plan.layout import AXES, Layout
from strategies.plan.planner import Plan, plan, resolve
from strategies.plan.rules.layout import DEGREE_FIELDS
from strategies.plan.spec import (
    ZERO_STAGES,
    ActivationCheckpointing,
    ModelName,
    PipelineSchedule,
    Precision,
    Strategy,
    TrainSpec,
)
from tests.strategies.support.training_runs import HARDWARE, make_spec

SEQUENCE_LENGTH = 32
TEXT_MODELS = (ModelName.GPT, ModelName.LLAMA)


class Variant(NamedTuple):
    """What must not change the curve of a layout's one-rank twin, beside the layout itself."""

    model: ModelName = ModelName.GPT
    tied: bool = False
    packed: bool = False
    accumulation: int = 1
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE

    @property
    def twin(self) -> "Variant":
        """The same numbers, computed in the plainest way."""
        return Variant(self.model, self.tied, self.packed)

    def __str__(self) -> str:
        words = [self.model.value]
        words += ["tied"] * self.tied + ["packed"] * self.packed
        words += [f"accumulate{self.accumulation}"] * (self.accumulation > 1)
        if self.checkpointing is not ActivationCheckpointing.NONE:
            words.append(f"checkpoint-{self.checkpointing}")
        return "-".join(words)


VARIANTS = [
    Variant(*values)
    for values in itertools.product(
        TEXT_MODELS, (False, True), (False, True), (1, 4), ActivationCheckpointing
    )
]


@dataclass(frozen=True)
class Split:
    """How a run is split over its ranks."""

    strategy: Strategy
    layout: Layout
    sequence_parallel: bool = False
    ulysses_degree: int = 1
    schedule: PipelineSchedule | None = None  # None where there is no choice
    layers: int = 2
    global_batch_size: int = 16

    @property
    def ranks(self) -> int:
        return self.layout.world_size

    @property
    def alone(self) -> "Split":
        """The same model and batch on one rank."""
        one = Split(Strategy.SINGLE, Layout())
        return replace(one, layers=self.layers, global_batch_size=self.global_batch_size)

    @property
    def features(self) -> list[str]:
        """What is in use, one word each."""
        words = [axis for axis, d in zip(AXES, self.layout.degrees, strict=True) if d > 1]
        words += ["sequence_parallel"] * self.sequence_parallel
        words += ["ulysses"] * (self.ulysses_degree > 1)
        words += [] if self.schedule is None else [self.schedule.value]
        return words + [self.strategy.value] * (not is_torch(self.strategy))

    def __str__(self) -> str:
        words = [] if is_torch(self.strategy) else [self.strategy.value]
        words += [
            f"{axis}{degree}"
            for axis, degree in zip(AXES, self.layout.degrees, strict=True)
            if degree > 1
        ]
        words += [] if self.schedule is None else [self.schedule.value]
        words += ["sequence"] * self.sequence_parallel
        words += [f"ulysses{self.ulysses_degree}"] * (self.ulysses_degree > 1)
        return "-".join(words) or "single"

    def spec(
        self,
        variant: Variant,
        *,
        precision: Precision = Precision.FLOAT64,
        steps: int = 8,
        **changes: Any,
    ) -> TrainSpec:
        """The run of a variant that is split so; `changes` as in make_spec come last."""
        degrees = dict(zip(AXES, self.layout.degrees, strict=True))
        parallelism: dict[str, Any] = {
            f"parallelism__{DEGREE_FIELDS[axis]}": degree for axis, degree in degrees.items()
        }
        if self.schedule is not None:
            parallelism["parallelism__pipeline_schedule"] = self.schedule
        return make_spec(
            **{
                "model__name": variant.model,
                "model__layers": self.layers,
                "model__width": 32,
                "model__heads": 8,
                "model__kv_heads": 4 if variant.model is ModelName.LLAMA else None,
                "model__tied_embeddings": variant.tied,
                "data__sequence_length": SEQUENCE_LENGTH,
                "data__packing": variant.packed,
                "training__steps": steps,
                "training__warmup_steps": min(5, steps),
                "training__global_batch_size": self.global_batch_size,
                "training__gradient_accumulation_steps": variant.accumulation,
                "parallelism__strategy": self.strategy,
                "parallelism__sequence_parallel": self.sequence_parallel,
                "parallelism__ulysses_degree": self.ulysses_degree,
                "precision": precision,
                "activation_checkpointing": variant.checkpointing,
                **parallelism,
                **changes,
            }
        )

    def plan(self, variant: Variant, **changes: Any) -> Plan:
        """What the planner says to it; `changes` as in make_spec."""
        spec = self.spec(variant, **changes)
        return plan(spec, nodes=1, ranks_per_node=self.ranks, hardware=HARDWARE)

    def problems(self, variant: Variant, **changes: Any) -> set[str]:
        """Codes of the planner's rules that forbid it: without estimates, which take longer."""
        spec = self.spec(variant, compile=False, **changes)
        asked = resolve(spec, nodes=1, ranks_per_node=self.ranks, hardware=HARDWARE)
        return {problem.code for rule in rules.ALL for problem in rule(asked)}

    @cached_property
    def legal_variants(self) -> list[Variant]:
        return [variant for variant in VARIANTS if not self.problems(variant)]


def is_torch(strategy: Strategy) -> bool:
    """Whether a strategy is but a name for degrees: those torch runs differ in nothing else."""
    return TECHNIQUES[strategy].engine == SPMD and strategy is not Strategy.NAIVE


def layouts(ranks: int) -> Iterator[Layout]:
    """Every way to write a number as a product of five degrees."""
    divisors = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    for degrees in itertools.product(divisors, repeat=len(AXES)):
        layout = Layout(**dict(zip(AXES, degrees, strict=True)))
        if layout.world_size == ranks:
            yield layout


def legal_splits(among: Iterable[Split]) -> list[Split]:
    """Those that the planner lets through, each once."""
    found: dict[tuple[object, ...], Split] = {}
    for split in among:
        runs_as = (
            engine_path(split.strategy, split.layout)
            if is_torch(split.strategy)
            else split.strategy,
            split.layout,
            split.sequence_parallel,
            split.ulysses_degree,
            split.schedule,
        )
        if runs_as not in found and takes_degrees(split) and split.legal_variants:
            found[runs_as] = split
    return list(found.values())


def all_splits(among: Iterable[Layout]) -> Iterator[Split]:
    """All that can be asked for, legal or not; the names that fit a layout best come first."""
    for layout in among:
        for strategy in sorted(TECHNIQUES, key=lambda name: fit(name, layout)):
            yield from choices(strategy, layout)


def takes_degrees(split: Split) -> bool:
    """Whether its strategy has all the axes in use; most have not, and no variant changes it."""
    return "degree_not_supported" not in split.problems(Variant())


def fit(strategy: Strategy, layout: Layout) -> tuple[bool, int]:
    """Sorts first the name that a user would give to a layout."""
    technique = TECHNIQUES[strategy]
    open_axis = technique.open_axis
    return open_axis is not None and getattr(layout, open_axis) == 1, len(technique.axes)


def choices(strategy: Strategy, layout: Layout) -> Iterator[Split]:
    """What is left to choose once the degrees are."""
    tensor, context, pipeline = layout.tensor > 1, layout.context > 1, layout.pipeline > 1
    degrees = [d for d in range(1, layout.context + 1) if layout.context % d == 0]
    has_schedule = pipeline and strategy is not Strategy.NAIVE
    for sequence_parallel, ulysses_degree, schedule, layers in itertools.product(
        (False, True) if tensor else (False,),
        degrees if context else (1,),
        tuple(PipelineSchedule) if has_schedule else (None,),
        (2, 4, 8) if pipeline else (2,),  # a stage takes at least one, and a rank may have two
    ):
        yield Split(
            strategy,
            layout,
            sequence_parallel,
            ulysses_degree,
            schedule,
            layers,
            global_batch_size=4 * max(4, layout.batch_degree),  # accumulating 4 times is legal
        )


def cover(splits: Iterable[Split]) -> dict[Split, Variant]:
    """A legal variant for each split, so that together they meet every pair that can be met: two
    choices of a variant, or one of them and one feature of a split. Greedy: a pair counts less the
    more often it was met."""
    met: Counter[frozenset[str]] = Counter()
    chosen = {}
    for split in splits:
        best = max(
            split.legal_variants, key=lambda v: sum(0.25 ** met[pair] for pair in pairs(split, v))
        )
        chosen[split] = best
        met.update(pairs(split, best))
    return chosen


def words(split: Split, variant: Variant) -> set[str]:
    """What is in use in a run, and what follows from it."""
    layout, found = split.layout, {*split.features, *values_of(variant)}
    if split.strategy in ZERO_STAGES:
        return found - {*AXES} | {"zero"}
    if layout.replicate > 1 and layout.shard * layout.tensor * layout.pipeline == 1:
        found.add("ddp")  # beside the other axes fully_shard replicates
    facts = {
        "split": split.ranks > 1,
        "batch": layout.batch_degree > 1,
        "parts": layout.shard * layout.tensor > 1,
        "copies": layout.replicate * layout.tensor > 1,
        "ring": layout.context > split.ulysses_degree,
    }
    return found | {word for word, holds in facts.items() if holds}


def values_of(variant: Variant) -> list[str]:
    return [f"{name}={value}" for name, value in variant._asdict().items()]


def pairs(split: Split, variant: Variant) -> set[frozenset[str]]:
    """What meets in a run."""
    values = values_of(variant)
    together = [frozenset(pair) for pair in itertools.combinations(values, 2)]
    together += [frozenset((feature, value)) for feature in split.features for value in values]
    return set(together)
