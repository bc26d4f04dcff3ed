"""Node classes that a job fits. Specs never change, so each is planned once per class and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.spec.planning import hardware_for, plan_on, with_ranks_of
from core.spec.spec import AnyJobSpec, ScriptJobSpec, may_start, stored_plan, stored_spec
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
    readable: bool = True


@dataclass(frozen=True)
class _JobFit:
    need: Need
    spec: AnyJobSpec | None
    classes: tuple[str, ...]


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
            job_id: _JobFit(known.need, known.spec, self._fitting_classes(known.need, known.spec))
            for job_id, known in self._jobs.items()
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
                self._jobs[row.id] = _JobFit(need, spec, self._fitting_classes(need, spec))

    def classes_for(self, job_id: str) -> tuple[str, ...]:
        """Return the names of the classes that the job fits, smallest first."""
        return self._jobs[job_id].classes

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

    def _fitting_classes(self, need: Need, spec: AnyJobSpec | None) -> tuple[str, ...]:
        if spec is None:
            return ()
        wanted = [name for name in self._order if need.node_class in (None, name)]
        fitting = [name for name in wanted if self._fits(name, need, spec)]
        # A job for the CPU leaves GPUs to others where it can.
        return tuple(
            sorted(fitting, key=lambda name: self._hardware[name][1].device != need.device)
        )

    def _fitting_others(self, known: _JobFit) -> tuple[str, ...]:
        if known.spec is None or known.need.node_class is None:
            return ()
        others = [name for name in self._order if name != known.need.node_class]
        return tuple(name for name in others if self._fits(name, known.need, known.spec))

    def _fits(self, class_name: str, need: Need, spec: AnyJobSpec) -> bool:
        hardware = self._hardware[class_name][1]
        if hardware_for(spec, hardware).device != need.device:
            return False  # the node gets the plan that was made at submission
        return may_start(spec, plan_on(spec, hardware))


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
        checkpointable=not isinstance(spec, ScriptJobSpec) if saves is None else saves,
        leases=spec.named_leases,
        is_script=isinstance(spec, ScriptJobSpec),
    )
    return need, spec
