"""What the API says of agendas."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class AgendaJob(View):
    """A job of an agenda against the lease; its wall time is its budget.

    `planned_*` is where every job before it uses its whole wall time; `start` and `end` are real
    where they are past, else at the latest.
    """

    position: int
    job: str | None
    name: str
    nodes: int
    slots: int
    wall_time_s: int
    expected_s: float | None
    standing: str
    """waiting, paused, running, done, cut (its wall time was used up), failed or cancelled."""
    reason: str
    step: int
    steps: int
    planned_start: datetime
    planned_end: datetime
    start: datetime | None
    end: datetime | None
    likely_end: datetime | None
    late_s: int
    fits: bool


@dataclass(frozen=True, kw_only=True)
class AgendaPlan(View):
    """Whether jobs fit into a lease or block; `spare_s` is negative where they are over."""

    name: str
    lease: str | None
    leases: tuple[str, ...]
    """It and those that were booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Of each node."""
    side_by_side: bool
    on_failure: str
    rules: str
    begins: datetime
    usable_end: datetime
    fits: bool
    spare_s: int
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time."""
    summary: str
    jobs: tuple[AgendaJob, ...]


@dataclass(frozen=True, kw_only=True)
class Agenda(AgendaPlan):
    """An agenda as it stands now."""

    id: str
    user: str
    node: str
    is_final: bool
    created_at: datetime
