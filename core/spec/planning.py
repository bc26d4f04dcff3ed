"""Plan of a job on a node class: the one reader of a job's resources for the planner. Pure."""

from hashlib import sha256

from core.spec.script import plan_script
from core.spec.spec import AnyJobSpec, AnyPlan, JobSpec, WorkbenchJobSpec
from core.spec.workbench import plan_workbench
from strategies.plan.hardware import Hardware
from strategies.plan.planner import NOTHING_LEARNED, Learned, Plan, plan
from strategies.plan.spec import TrainSpec


def plan_on(spec: AnyJobSpec, hardware: Hardware) -> AnyPlan:
    """Plan a job on nodes of `hardware`, with the ranks that `auto` stands for there."""
    if isinstance(spec, JobSpec):
        return plan_training(spec, hardware)
    if isinstance(spec, WorkbenchJobSpec):
        return plan_workbench(
            nodes=spec.resources.nodes,
            ranks_per_node=spec.resources.ranks_per_node,
            hardware=hardware_for(spec, hardware),
        )
    return plan_script(
        spec.script,
        nodes=spec.resources.nodes,
        ranks_per_node=spec.resources.ranks_per_node,
        hardware=hardware_for(spec, hardware),
    )


def plan_training(spec: JobSpec, hardware: Hardware, *, learned: Learned = NOTHING_LEARNED) -> Plan:
    """Plan a job that trains by a recipe."""
    return plan(
        spec,
        nodes=spec.resources.nodes,
        ranks_per_node=spec.resources.ranks_per_node,
        hardware=hardware_for(spec, hardware),
        learned=learned,
    )


def training_key(spec: JobSpec) -> str:
    """Return a hash of all that a plan depends on: training, ranks and device, but not name or wall
    time."""
    fields, resources = set(TrainSpec.model_fields), spec.resources
    ranks = f"{resources.nodes} {resources.ranks_per_node} {resources.device} "
    return sha256((ranks + spec.model_dump_json(include=fields)).encode()).hexdigest()


def hardware_for(spec: AnyJobSpec, hardware: Hardware) -> Hardware:
    """Return a node as the job's ranks see it: without its GPUs if they compute on the CPU."""
    return hardware.without_gpus() if spec.resources.device == "cpu" else hardware


def with_ranks_of(spec: AnyJobSpec, planned: AnyPlan) -> AnyJobSpec:
    """Return the job with the number of ranks that its plan has decided on."""
    resources = spec.resources.model_copy(update={"ranks_per_node": planned.ranks_per_node})
    return spec.model_copy(update={"resources": resources})
