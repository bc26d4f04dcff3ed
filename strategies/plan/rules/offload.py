"""Rules about state in the host's memory or in files: who offloads what, and to where."""

from collections.abc import Iterator

from strategies.plan.rules.problem import Problem, ResolvedSpec
from strategies.plan.spec import ZERO_STAGES, FrozenBase, Offload, OptimizerName, Strategy

BY_TORCH = (Strategy.FSDP, Strategy.HSDP)
UPDATES_ON_HOST = (OptimizerName.ADAMW, OptimizerName.SGD)
LEAVE_OUT = "leave out offload_optimizer and offload_parameters"


def offload_needs_shards(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism, stage = resolved.spec.parallelism, ZERO_STAGES.get(resolved.strategy, 0)
    asked_for = {
        "offload_optimizer": (parallelism.offload_optimizer, 1),
        "offload_parameters": (parallelism.offload_parameters, 3),
    }
    for field, (device, least_stage) in asked_for.items():
        if device is Offload.NONE or (resolved.strategy in BY_TORCH and device is Offload.CPU):
            continue
        if stage < least_stage and resolved.strategy not in BY_TORCH:
            strategies = "zero3" if least_stage == 3 else "zero1, zero2 or zero3"
            yield Problem(
                code="offload_needs_shards",
                param=f"parallelism.{field}",
                message=f"{field} {device} needs strategy {strategies}, or for cpu fsdp or hsdp, "
                f"not {resolved.strategy}; take one of these, or leave it out",
            )
        elif device is Offload.NVME and stage < 3:
            why = "updates whole rows" if stage else "offloads to cpu only"
            yield Problem(
                code="offload_needs_shards",
                param=f"parallelism.{field}",
                message=f"{field} nvme needs strategy zero3, not {resolved.strategy}, which "
                f"{why}; take zero3, or cpu",
            )


def weights_follow_the_optimizer(resolved: ResolvedSpec) -> Iterator[Problem]:
    parallelism = resolved.spec.parallelism
    optimizer = parallelism.offload_optimizer
    if parallelism.offload_parameters is Offload.NVME and optimizer is not Offload.NVME:
        yield Problem(
            code="not_supported_together",
            param="parallelism.offload_parameters",
            message="offload_parameters nvme needs offload_optimizer nvme: the optimizer's copy "
            f"of the weights stays in memory with {optimizer}; take nvme for both, or "
            "offload_parameters cpu",
        )


def sharded_parts_move_together(resolved: ResolvedSpec) -> Iterator[Problem]:
    """fsdp and hsdp keep weights, gradients and optimizer state of a rank in one place."""
    if not _offloads_by_torch(resolved):
        return
    parallelism = resolved.spec.parallelism
    asked_for = {
        "offload_optimizer": parallelism.offload_optimizer,
        "offload_parameters": parallelism.offload_parameters,
    }
    given = [field for field, device in asked_for.items() if device is Offload.CPU]
    for field, device in asked_for.items():
        if device is Offload.NONE:
            yield Problem(
                code="not_supported_together",
                param=f"parallelism.{field}",
                message=f"{resolved.strategy} keeps weights, gradients and optimizer state in one "
                f"place, and {given[0]} is cpu; take cpu for {field} too, or leave both out",
            )


def one_rank_has_no_parts(resolved: ResolvedSpec) -> Iterator[Problem]:
    if _offloads_by_torch(resolved) and resolved.layout.shard == 1:
        yield Problem(
            code="not_supported_together",
            param="parallelism.offload_parameters",
            message=f"{resolved.strategy} offloads what ranks share, and 1 rank shares nothing; "
            "take zero3, which offloads the state of 1 rank too, or leave it out",
        )


def offloaded_layers_are_whole(resolved: ResolvedSpec) -> Iterator[Problem]:
    degrees = {
        "tensor_parallel_degree": resolved.layout.tensor,
        "pipeline_parallel_degree": resolved.layout.pipeline,
    }
    for name, degree in degrees.items():
        if _offloads_by_torch(resolved) and degree > 1:
            yield Problem(
                code="not_supported_together",
                param=f"parallelism.{name}",
                message=f"{resolved.strategy} offloads to the host only with {name} 1, not "
                f"{degree}; take 1, or {LEAVE_OUT}",
            )


def the_host_updates_by_torch(resolved: ResolvedSpec) -> Iterator[Problem]:
    optimizer = resolved.spec.training.optimizer
    if _offloads_by_torch(resolved) and optimizer not in UPDATES_ON_HOST:
        yield Problem(
            code="not_supported_together",
            param="training.optimizer",
            message=f"optimizer {optimizer} does not update weights in the host's memory; take "
            f"adamw or sgd, or {LEAVE_OUT}",
        )


def codes_stay_on_the_device(resolved: ResolvedSpec) -> Iterator[Problem]:
    adapter = resolved.spec.adapter
    if adapter is None or adapter.base is FrozenBase.NONE:
        return
    if _offloads_by_torch(resolved):
        yield Problem(
            code="not_supported_together",
            param="adapter.base",
            message=f"base {adapter.base} is opened on the device, to which {resolved.strategy} "
            f"brings no codes; take base none, or {LEAVE_OUT}",
        )


def offloaded_gradients_are_not_late(resolved: ResolvedSpec) -> Iterator[Problem]:
    delay = resolved.spec.parallelism.gradient_delay
    if _offloads_by_torch(resolved) and delay > 0:
        yield Problem(
            code="not_supported_together",
            param="parallelism.gradient_delay",
            message=f"gradients of {resolved.strategy} that are offloaded to the host cannot wait "
            f"{delay} steps; take 0, or {LEAVE_OUT}",
        )


def _offloads_by_torch(resolved: ResolvedSpec) -> bool:
    parallelism = resolved.spec.parallelism
    devices = (parallelism.offload_optimizer, parallelism.offload_parameters)
    return resolved.strategy in BY_TORCH and Offload.CPU in devices


def swapping_is_compiled(resolved: ResolvedSpec) -> Iterator[str]:
    """Warn about the packages a node needs for nvme, which is known only when the run begins
    there."""
    parallelism = resolved.spec.parallelism
    if Offload.NVME in (parallelism.offload_optimizer, parallelism.offload_parameters):
        yield (
            "offloading to nvme compiles DeepSpeed's async_io once on the node, which needs "
            "libaio-dev, g++ and ninja-build there; if one is missing, the run does not "
            "start and its error names the missing one"
        )
