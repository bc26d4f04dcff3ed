"""Rules about adapters: the matrices they fit, and the splits that quantised matrices allow."""

from collections.abc import Iterator

from strategies.plan.catalog import COMPUTED_IN_HALF
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.shapes import matrices
from strategies.plan.spec import ZERO_STAGES, FrozenBase, Strategy, TrainSpec


def targets_exist(resolved: ResolvedSpec) -> Iterator[Problem]:
    adapter, model = resolved.spec.adapter, resolved.spec.model
    if adapter is None:
        return
    there = matrices(model)
    if not there:
        yield Problem(
            code="not_supported_by_model",
            param="adapter",
            message=f"adapters are for the matrices of gpt and llama, which {model.name} does "
            "not have; leave adapter out",
        )
        return
    missing = [target for target in adapter.targets if target not in there]
    if missing:
        yield Problem(
            code="no_such_matrix",
            param="adapter.targets",
            message=f"a layer of {model.name} has no {', '.join(missing)}; choose from its "
            f"{len(there)} matrices: {', '.join(there)}",
        )
    if len(set(adapter.targets)) < len(adapter.targets):
        yield Problem(
            code="named_twice",
            param="adapter.targets",
            message=f"adapter.targets has {len(adapter.targets)} names, but only "
            f"{len(set(adapter.targets))} of them differ; name each matrix once",
        )
    narrowest = min(min(there.get(target, (adapter.rank,))) for target in adapter.targets)
    if adapter.rank > narrowest:
        yield Problem(
            code="out_of_range",
            param="adapter.rank",
            message=f"an adapter of rank {adapter.rank} is not smaller than its matrix, whose "
            f"narrow side is {narrowest}; take {narrowest} or less",
        )


def quantised_bases_stay_whole(resolved: ResolvedSpec) -> Iterator[Problem]:
    adapter, spec = resolved.spec.adapter, resolved.spec
    if adapter is None or adapter.base is FrozenBase.NONE:
        return
    if resolved.layout.tensor > 1:
        yield Problem(
            code="not_supported_together",
            param="adapter.base",
            message=f"base {adapter.base} keeps numbers in blocks that tensor degree "
            f"{resolved.layout.tensor} would cut through; take base none, or strategy fsdp, which "
            "splits the codes",
        )
    if spec.compile is True:
        yield Problem(
            code="not_supported_together",
            param="compile",
            message=f"compile cannot trace the kernels that read base {adapter.base}; leave "
            "it out, or take base none",
        )


def zero_trains_all(resolved: ResolvedSpec) -> Iterator[Problem]:
    if resolved.spec.adapter is not None and resolved.strategy in ZERO_STAGES:
        nearest = "fsdp" if resolved.strategy is Strategy.ZERO3 else "ddp"
        yield Problem(
            code="not_supported_together",
            param="parallelism.strategy",
            message=f"{resolved.strategy} shares out what is trained, which beside a frozen model "
            f"is little (rank {resolved.spec.adapter.rank}); take strategy {nearest}",
        )


def assumed_dtype(spec: TrainSpec) -> Iterator[str]:
    """Warn if the type of the checkpoint's numbers is assumed."""
    adapter, checkpoint = spec.adapter, spec.model.checkpoint
    if adapter is None or checkpoint is None or adapter.frozen_dtype is not None:
        return
    if spec.precision in COMPUTED_IN_HALF:
        yield (
            f"the plan assumes that {checkpoint} has 16 bits a number, as most checkpoints do. If "
            "its config.json says float32, frozen weights take twice as much: set "
            "adapter.frozen_dtype to float32 to plan for that, or to bfloat16 to round them once"
        )


def nothing_to_adapt(spec: TrainSpec) -> Iterator[str]:
    """Warn if the frozen weights are untrained."""
    if spec.adapter is not None and spec.model.checkpoint is None:
        yield (
            f"the frozen weights are random numbers (seed {spec.training.seed}): adapters on "
            "top of them learn little. Name a model.checkpoint, unless this is an exercise"
        )
