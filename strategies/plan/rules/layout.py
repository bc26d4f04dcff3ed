"""Rules about degrees: those a strategy takes, and their product, the number of ranks."""

from collections.abc import Iterator

from strategies.plan.catalog import TECHNIQUES
from strategies.plan.layout import AXES
from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import Strategy

DEGREE_FIELDS = {
    "pipeline": "pipeline_parallel_degree",
    "replicate": "data_parallel_replicate_degree",
    "shard": "data_parallel_shard_degree",
    "context": "context_parallel_degree",
    "tensor": "tensor_parallel_degree",
}


def degrees_fit(resolved: ResolvedSpec) -> Iterator[Problem]:
    strategy, layout, world_size = resolved.strategy, resolved.layout, resolved.world_size
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
                    message=f"strategy {strategy} keeps this degree at 1, not {degree}"
                    + (f"; it takes {', '.join(technique.axes)}" if technique.axes else ""),
                )
    if strategy is Strategy.HSDP and layout.shard == 1:
        yield Problem(
            code="degree_missing",
            param=f"parallelism.{DEGREE_FIELDS['shard']}",
            message="hsdp shards within groups of ranks and replicates across them, and a group "
            "of 1 shards nothing; give the size of a group (often the "
            f"{resolved.ranks_per_node} ranks of a node), or take fsdp to shard over all ranks",
        )
    if layout.world_size != world_size:
        factors = " x ".join(
            f"{axis} {degree}" for axis, degree in zip(AXES, layout.degrees, strict=True)
        )
        if strategy is Strategy.SINGLE and layout.world_size == 1:
            param = "parallelism.strategy"
            advice = "request 1 rank, or use strategy ddp"
        else:
            axis = (technique and technique.open_axis) or "replicate"
            param = f"parallelism.{DEGREE_FIELDS[axis]}"
            others = layout.world_size // getattr(layout, axis)
            advice = "make the degrees multiply to the number of ranks"
            if technique is not None and axis in technique.axes and world_size % others == 0:
                advice = f"take {DEGREE_FIELDS[axis]} {world_size // others}"
        yield Problem(
            code="world_size_mismatch",
            param=param,
            message=f"the degrees multiply to {layout.world_size} ({factors}), but the job has "
            f"{world_size} ranks; {advice}",
        )


def instances_are_alone(resolved: ResolvedSpec) -> Iterator[Problem]:
    """Refuse several ranks on MIG instances: NCCL connects none, and a process sees one alone."""
    ranks = resolved.nodes * resolved.ranks_per_node
    if ranks > 1 and " MIG " in (resolved.hardware.model or ""):
        yield Problem(
            code="mig_has_one_rank",
            param="resources.ranks_per_node",
            message=f"{ranks} ranks on MIG instances ({resolved.hardware.model}): NCCL cannot "
            "connect them. Ask for one rank (strategy: single), or for a class of whole GPUs",
        )


def ranks_exist(resolved: ResolvedSpec) -> Iterator[Problem]:
    nodes, ranks_per_node, hardware = resolved.nodes, resolved.ranks_per_node, resolved.hardware
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
            message=f"{ranks_per_node} ranks per node, but a node of class "
            f"{hardware.class_name} has only {hardware.slots} (one per {slot})",
        )
