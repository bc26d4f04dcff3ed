"""Shapes of /v1/agendas."""

from typing import Annotated, Any

from pydantic import Field

from api.web.schemas import Body, Moment, View
from core.agendas.agenda import (
    Standing,
)
from core.spec.spec import NAME
from core.tables.kinds import OnFailure

MOST_JOBS = 50


class NewAgenda(Body):
    """Jobs in their order. `common` is laid under each job; a job's own field wins, null removes
    the field."""

    name: Annotated[str, Field(pattern=NAME)]
    side_by_side: bool = False
    """True: a job may start beside those before it if slots are free. False: one job runs after the
    other."""
    on_failure: OnFailure = OnFailure.GO_ON
    """Effect of a failed job on the rest. `stop`: jobs that have not begun are cancelled. A used-up
    wall time is not a failure."""
    common: dict[str, Any] = Field(default_factory=dict)
    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_JOBS)]


class AgendaJobView(View):
    """One job of an agenda, with its times in the lease. The wall time is its budget."""

    position: int
    """Position in the agenda, counted from 1."""
    job: str | None
    """Id of the job; null until the agenda is submitted."""
    name: str
    nodes: int
    slots: int
    """Slots on each node."""
    wall_time_s: int
    expected_s: float | None
    """Duration in seconds that its plan expects; null if the speed of the hardware is not known."""
    standing: Standing
    """State within the agenda. `cut`: the wall time was used up, so the job was saved and ended."""
    reason: str
    step: int
    steps: int
    planned_start: Moment
    planned_end: Moment
    """Planned end, if this job and every job before it use their whole wall time."""
    start: Moment | None
    """Real start; before it, the latest expected one. Null if the job will not run."""
    end: Moment | None
    """Real end; before it, the latest expected one. Null if the job will not run."""
    likely_end: Moment | None
    """Expected end at the measured speed, or at the planned one; null if neither is known."""
    late_s: int
    """Delay behind the planned end, in seconds; a delay of less than a minute is 0."""
    fits: bool
    """True if the job, even at the latest, ends before jobs of the lease are stopped."""


class AgendaPlanView(View):
    """Timetable of an agenda in a lease or a block of hours, and whether all jobs fit."""

    name: str
    lease: str | None
    """Id of the lease; null for a block that is not booked, which begins at the next full hour
    here."""
    leases: list[str]
    """Ids of the lease and of those booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Slots of each node."""
    side_by_side: bool
    on_failure: OnFailure
    rules: str
    """Rules by which the agenda runs, in a sentence."""
    begins: Moment
    usable_end: Moment
    """Moment at which jobs in the lease are stopped."""
    fits: bool
    """True if every job ends in time, even if all use up their wall times."""
    spare_s: int
    """Seconds of the lease that are left after the latest end; negative if the jobs take longer
    than it."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time; null if all fit."""
    summary: str
    jobs: list[AgendaJobView]


class AgendaView(AgendaPlanView):
    """An agenda in its present state."""

    id: str
    user: str
    """Name of the agenda's owner."""
    node: str
    """Name of the lease's node; of several leases, the node of the one that was named."""
    is_final: bool
    """True once all jobs of the agenda have ended."""
    created_at: Moment
