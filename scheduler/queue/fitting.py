"""Node classes that a job fits. Specs never change, so each is planned once per class and kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.spec.planning import hardware_for, plan_on, with_ranks_of
from core.spec.spec import (
    AnyJobSpec,
    AnyPlan,
    ProgramJobSpec,
    WorkbenchJobSpec,
    may_start,
    stored_plan,
    stored_spec,
)
from core.tables.base import Document
from core.tables.jobs import Job
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan

CHUNK = 500  # ids in one query: SQLite's limit is 32,766 variables, PostgreSQL's planner likes less


@dataclass(frozen=True)
class Need:
    """Resources that a job asks for, as told to its owner when no node here has them."""

    node_class: str | None
    ranks: int
    needed_gib: float
    """Estimated memory per rank, in GiB; 0 for scripts, which have no estimate."""
    device: str
    nodes: int = 1
    checkpointable: bool = True
    """True if the job can be stopped with a checkpoint and go on later."""
    leases: tuple[str, ...] = ()
    """Ids of the leases that the job names."""
    is_script: bool = False
    """True for a program of its owner, False for a recipe."""
    is_workbench: bool = False
    """True for a program that its owner sits in front of."""
    brings_workspace: bool = False
    """True for a program that brings its owner's workspace."""
    readable: bool = True


@dataclass(frozen=True)
class _JobFit:
    need: Need
    spec: AnyJobSpec | None
    classes: tuple[str, ...]
    memory_slots: Mapping[str, int]


UNREADABLE = Need(node_class=None, ranks=0, needed_gib=0.0, device="", readable=False)


class Fitting:
    """Cache, in this process, of the needs and fitting node classes of the waiting jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobFit] = {}
        self._others: dict[str, tuple[str, ...]] = {}
        self._hardware: dict[str, tuple[int, Hardware]] = {}
        self._order: list[str] = []

    def offer(self, hardware: Mapping[str, tuple[int, Hardware]]) -> None:
        """Set the classes that have nodes now: name -> (version, hardware).

        After a change all known jobs are planned again.
        """
        if hardware == self._hardware:
            return
        self._hardware = dict(hardware)
        self._others = {}
        self._order = sorted(
            hardware, key=lambda name: (hardware[name][1].slots, hardware[name][1].memory_gib, name)
        )
        self._jobs = {
            job_id: self._fit(known.need, known.spec) for job_id, known in self._jobs.items()
        }

    def learn(self, session: Session, job_ids: Sequence[str]) -> None:
        """Read and plan the new jobs among these (mostly waiting ones), and forget all others."""
        waiting = set(job_ids)
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in waiting}
        self._others = {job_id: of for job_id, of in self._others.items() if job_id in waiting}
        new = [job_id for job_id in job_ids if job_id not in self._jobs]
        for first in range(0, len(new), CHUNK):
            chunk = new[first : first + CHUNK]
            for row in session.execute(select(Job.id, Job.spec, Job.plan).where(Job.id.in_(chunk))):
                need, spec = _read(row.spec, row.plan)
                self._jobs[row.id] = self._fit(need, spec)

    def classes_for(self, job_id: str) -> tuple[str, ...]:
        """Return the names of the classes that the job fits, smallest first."""
        return self._jobs[job_id].classes

    def memory_slots(self, job_id: str) -> Mapping[str, int]:
        """Map class -> slots whose share of a node's memory the job needs, where these are more
        than its ranks on the node."""
        return self._jobs[job_id].memory_slots

    def other_classes(self, job_id: str) -> tuple[str, ...]:
        """Return the names of the classes other than the one it names that the job would fit.

        Smallest first; empty if the job names no class.
        """
        if job_id not in self._others:  # planned once: every cycle asks for it
            self._others[job_id] = self._fitting_others(self._jobs[job_id])
        return self._others[job_id]

    def need_of(self, job_id: str) -> Need:
        """Return the resources that the job asks for."""
        return self._jobs[job_id].need

    def _fit(self, need: Need, spec: AnyJobSpec | None) -> _JobFit:
        if spec is None:
            return _JobFit(need, None, (), {})
        wanted = [name for name in self._order if need.node_class in (None, name)]
        plans = {name: plan for name in wanted if (plan := self._plan(name, need, spec))}
        # A job for the CPU leaves GPUs to others where it can.
        classes = sorted(plans, key=lambda name: self._hardware[name][1].device != need.device)
        slots = {
            name: slots_of_memory(plan, self._hardware[name][1]) for name, plan in plans.items()
        }
        more = {name: count for name, count in slots.items() if count > need.ranks}
        return _JobFit(need, spec, tuple(classes), more)

    def _fitting_others(self, known: _JobFit) -> tuple[str, ...]:
        if known.spec is None or known.need.node_class is None:
            return ()
        others = [name for name in self._order if name != known.need.node_class]
        return tuple(name for name in others if self._plan(name, known.need, known.spec))

    def _plan(self, class_name: str, need: Need, spec: AnyJobSpec) -> AnyPlan | None:
        """Return the job's plan on a class; None if it may not start there."""
        hardware = self._hardware[class_name][1]
        if hardware_for(spec, hardware).device != need.device:
            return None  # the node gets the plan that was made at submission
        planned = plan_on(spec, hardware)
        return planned if may_start(spec, planned) else None


def slots_of_memory(planned: AnyPlan, hardware: Hardware) -> int:
    """Return the slots whose share of a node's memory a job needs there; 0 if it has a GPU's own,
    or if its need is not known. Pure."""
    if not isinstance(planned, Plan) or planned.device != "cpu":
        return 0
    share = planned.needed_gib / planned.capacity_gib
    return min(hardware.slots, math.ceil(hardware.slots * share))


def _read(spec_document: Document, plan_document: Document) -> tuple[Need, AnyJobSpec | None]:
    spec, planned = stored_spec(spec_document), stored_plan(plan_document)
    if spec is None or planned is None:  # written by another version: its owner is told
        return UNREADABLE, None
    # Nor does the number of ranks change that `auto` stood for then.
    spec = with_ranks_of(spec, planned)
    saves = spec.resources.checkpointable
    need = Need(
        node_class=spec.resources.node_class,
        ranks=planned.ranks_per_node,
        needed_gib=planned.needed_gib if isinstance(planned, Plan) else 0.0,
        device=planned.device,
        nodes=spec.resources.nodes,
        checkpointable=not isinstance(spec, ProgramJobSpec) if saves is None else saves,
        leases=spec.named_leases,
        is_script=isinstance(spec, ProgramJobSpec),
        is_workbench=isinstance(spec, WorkbenchJobSpec),
        brings_workspace=isinstance(spec, ProgramJobSpec) and spec.workspace,
    )
    return need, spec
