"""A workbench as a job: an interactive program in a lease, and its plan. Pure."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from core.spec.script import ScriptPlan, sandbox_problems, slot_problems
from strategies.plan.hardware import Hardware
from strategies.plan.planner import slots_for_auto
from strategies.plan.rules.problem import Problem
from strategies.plan.spec import SpecPart
from strategies.plan.words import counted

MAX_REQUIREMENTS = 64 << 10
MOST_HELD_GIB = 1.5  # of a GPU's memory, by an idle workbench that is lent: driver and contexts


class WorkbenchKind(StrEnum):
    """Program that one sits in front of."""

    TERMINAL = "terminal"
    JUPYTER = "jupyter"


class WhenIdle(StrEnum):
    """Use of a workbench's slots while nobody is in front of it and nothing runs in it."""

    KEEP = "keep"
    """No use: they wait for their owner."""
    LEND = "lend"
    """Jobs of its owner in the lease may have them, then guests, if no GPU memory is held."""
    RELEASE = "release"
    """The same as `lend`, after its kernels were shut down, which gives back the GPU memory."""


class Workbench(SpecPart):
    """An interactive program: its kind, and the packages that it finds."""

    kind: WorkbenchKind
    """terminal: shells that outlive the connection to them. jupyter: these, and JupyterLab in the
    browser."""
    requirements: (
        Annotated[str, Field(min_length=1, max_length=MAX_REQUIREMENTS, pattern=r"^[^\x00]*$")]
        | None
    ) = None
    """Text of a requirements.txt, whose packages are put over those of the node. Default: the
    node's own."""
    when_idle: WhenIdle = Field(
        default=WhenIdle.KEEP, exclude_if=lambda choice: choice is WhenIdle.KEEP
    )
    """Use of its slots while it is idle, on nodes whose policy sets `scheduling.idle_after_min`."""


def plan_workbench(
    *, nodes: int, ranks_per_node: int | Literal["auto"], hardware: Hardware
) -> ScriptPlan:
    """Plan a workbench on nodes of `hardware`, with every reason why it can't run there.

    Its ranks are the slots that it gets; it is one program, and `auto` stands for all of a node's.
    """
    warnings = []
    if isinstance(ranks_per_node, str):
        ranks_per_node = slots_for_auto(hardware)
        warnings.append(f"auto chose {counted(ranks_per_node, 'slot')}")
    problems = [
        *slot_problems(ranks_per_node, hardware),
        *sandbox_problems(hardware, nodes=1, param="workbench"),
    ]
    if nodes > 1:
        problems.append(
            Problem(
                code="workbench_needs_one_node",
                param="resources.nodes",
                message=f"a workbench is on one node, not on {nodes}; start one on each",
            )
        )
    return ScriptPlan(
        device=hardware.device,
        world_size=nodes * ranks_per_node,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        problems=problems,
        warnings=warnings,
    )
