"""Node classes that a job fits. Specs never change, so each is planned at most once per class.

For the hardware that a job was planned on at its submission that plan is the answer: to plan ten
thousand waiting jobs anew would take a scheduler that starts 7 s of a core. On other hardware jobs
of the same training share one: of a course, or of a person who submits all night.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.spec.planning import hardware_for, plan_on, training_key, with_ranks_of
from core.spec.spec import (
    AnyJobSpec,
    AnyPlan,
    JobSpec,
    ProgramJobSpec,
    WorkbenchJobSpec,
    may_start,
    stored_plan,
    stored_spec,
)
from core.tables.base import Document
from core.tables.jobs import Job
from strategies.plan.hardware import Hardware, digest_of
from strategies.plan.planner import Plan

CHUNK = 500  # ids in one query: SQLite's limit is 32,766 variables, PostgreSQL's planner likes less
MOST_SHARES = 10_000  # of some 200 bytes each


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
class _Ask:
    """All of a job that decides on which classes it may start."""

    need: Need
    spec: AnyJobSpec | None = None
    """None if it is unreadable."""
    made_for: str | None = None
    """Digest of the hardware that its plan was made for."""
    memory_share: float = 0.0
    """Share of that hardware's memory that it needs."""


@dataclass(frozen=True)
class _JobFit:
    ask: _Ask
    classes: tuple[str, ...]
    memory_slots: Mapping[str, int]


UNREADABLE = Need(node_class=None, ranks=0, needed_gib=0.0, device="", readable=False)


class Fitting:
    """Cache, in this process, of the needs and fitting node classes of the waiting jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobFit] = {}
        self._others: dict[str, tuple[str, ...]] = {}
        self._shares: dict[tuple[str, bool, str], float | None] = {}
        """By training, `allow_oom` and class."""
        self._hardware: dict[str, tuple[int, Hardware]] = {}
        self._order: list[str] = []

    def offer(self, hardware: Mapping[str, tuple[int, Hardware]]) -> None:
        """Set the classes that have nodes now: name -> (version, hardware).

        After a change all known jobs are planned again.
        """
        if hardware == self._hardware:
            return
        self._hardware = dict(hardware)
        self._others, self._shares = {}, {}
        self._order = sorted(
            hardware, key=lambda name: (hardware[name][1].slots, hardware[name][1].memory_gib, name)
        )
        self._jobs = {job_id: self._fit(known.ask) for job_id, known in self._jobs.items()}

    def learn(self, session: Session, job_ids: Sequence[str]) -> None:
        """Read and plan the new jobs among these (mostly waiting ones), and forget all others."""
        waiting = set(job_ids)
        self._jobs = {job_id: known for job_id, known in self._jobs.items() if job_id in waiting}
        self._others = {job_id: of for job_id, of in self._others.items() if job_id in waiting}
        new = [job_id for job_id in job_ids if job_id not in self._jobs]
        for first in range(0, len(new), CHUNK):
            chunk = new[first : first + CHUNK]
            for row in session.execute(select(Job.id, Job.spec, Job.plan).where(Job.id.in_(chunk))):
                self._jobs[row.id] = self._fit(_read(row.spec, row.plan))

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
        if job_id not in self._others:  # planned once, and only for jobs that are near their start
            self._others[job_id] = self._fitting_others(self._jobs[job_id].ask)
        return self._others[job_id]

    def need_of(self, job_id: str) -> Need:
        """Return the resources that the job asks for."""
        return self._jobs[job_id].ask.need

    def _fit(self, ask: _Ask) -> _JobFit:
        need = ask.need
        wanted = [name for name in self._order if need.node_class in (None, name)]
        shares = {name: share for name in wanted if (share := self._share(name, ask)) is not None}
        # A job for the CPU leaves GPUs to others where it can.
        classes = sorted(shares, key=lambda name: self._hardware[name][1].device != need.device)
        slots = {
            name: slots_of_memory(share, self._hardware[name][1]) for name, share in shares.items()
        }
        more = {name: count for name, count in slots.items() if count > need.ranks}
        return _JobFit(ask, tuple(classes), more)

    def _fitting_others(self, ask: _Ask) -> tuple[str, ...]:
        if ask.need.node_class is None:
            return ()
        others = [name for name in self._order if name != ask.need.node_class]
        return tuple(name for name in others if self._share(name, ask) is not None)

    def _share(self, class_name: str, ask: _Ask) -> float | None:
        """Return the share of a class's memory that a job needs; None if it may not start there."""
        if ask.spec is None:
            return None
        hardware = hardware_for(ask.spec, self._hardware[class_name][1])
        if hardware.device != ask.need.device:
            return None  # the node gets the plan that was made at submission
        if digest_of(hardware) == ask.made_for:
            return ask.memory_share  # it was accepted with this plan
        if not isinstance(ask.spec, JobSpec):
            return _planned_share(ask.spec, hardware)
        key = (training_key(ask.spec), ask.spec.resources.allow_oom, class_name)
        if key not in self._shares:
            if len(self._shares) == MOST_SHARES:
                self._shares.clear()
            self._shares[key] = _planned_share(ask.spec, hardware)
        return self._shares[key]


def _planned_share(spec: AnyJobSpec, hardware: Hardware) -> float | None:
    planned = plan_on(spec, hardware)
    return memory_share(planned) if may_start(spec, planned) else None


def memory_share(planned: AnyPlan) -> float:
    """Return the share of a node's memory that a job needs; 0 if its ranks have a GPU's own, or if
    its need is not known. Pure."""
    if not isinstance(planned, Plan) or planned.device != "cpu":
        return 0.0
    return planned.needed_gib / planned.capacity_gib


def slots_of_memory(share: float, hardware: Hardware) -> int:
    """Return the slots of a node that have this share of its memory. Pure."""
    return min(hardware.slots, math.ceil(hardware.slots * share))


def _read(spec_document: Document, plan_document: Document) -> _Ask:
    spec, planned = stored_spec(spec_document), stored_plan(plan_document)
    if spec is None or planned is None:  # written by another version: its owner is told
        return _Ask(UNREADABLE)
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
    made_for = planned.made_for if isinstance(planned, Plan) else None
    return _Ask(need, spec, made_for, memory_share(planned))
