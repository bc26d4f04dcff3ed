"""Shapes of /v1/agendas."""

from typing import Annotated, Any

from pydantic import Field

from api.schema_base import Body, Moment, View
from core.agendas.agenda import OnFailure, Standing
from core.spec.spec import NAME

MOST_JOBS = 50


class NewAgenda(Body):
    """Jobs in their order. `common` is laid under each; a job's own field wins, null removes it."""

    name: Annotated[str, Field(pattern=NAME)]
    side_by_side: bool = False
    """Let a job start beside those before it where slots are free. Else one after the other."""
    on_failure: OnFailure = OnFailure.GO_ON
    """`stop`: when one has failed, those that have not begun are cancelled. A used-up wall time is
    no failure."""
    common: dict[str, Any] = Field(default_factory=dict)
    jobs: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_JOBS)]


class AgendaJobView(View):
    """A job of an agenda against the lease. The wall time is its budget."""

    position: int
    """From 1."""
    job: str | None
    """Its id, once submitted."""
    name: str
    nodes: int
    slots: int
    """On each of them."""
    wall_time_s: int
    expected_s: float | None
    """By its plan; null where the speed of the hardware is not known."""
    standing: Standing
    """`cut`: its wall time was used up, so it was saved and ended."""
    reason: str
    step: int
    steps: int
    planned_start: Moment
    planned_end: Moment
    """Where every job before it uses its whole wall time."""
    start: Moment | None
    """When it began; else when it will, at the latest. Null where it is not to run."""
    end: Moment | None
    """When it ended; else when it will, at the latest."""
    likely_end: Moment | None
    """At the speed that it has, or that its plan expects; null where that is not known."""
    late_s: int
    """Behind what was planned; less than a minute is 0."""
    fits: bool
    """It ends before the jobs of the lease are stopped, even at the latest."""


class AgendaPlanView(View):
    """Whether the jobs fit into a lease, or into a block of hours."""

    name: str
    lease: str | None
    """Null: a block that is not booked, here from the next full hour on."""
    leases: list[str]
    """It and those that were booked together with it: one for each node."""
    node_class: str
    nodes: int
    slots: int
    """Of each node."""
    side_by_side: bool
    on_failure: OnFailure
    rules: str
    """How it is run, in a sentence."""
    begins: Moment
    usable_end: Moment
    """When jobs in the lease are stopped."""
    fits: bool
    """Whether every job ends in time, even if all use up their wall times."""
    spare_s: int
    """What is left of the lease then; negative: it is over by so much."""
    likely_spare_s: int | None
    first_cut: int | None
    """Position of the first job that would not end in time."""
    summary: str
    jobs: list[AgendaJobView]


class AgendaView(AgendaPlanView):
    """An agenda as it stands now."""

    id: str
    user: str
    """Name of its owner."""
    node: str
    """Of its lease; of several the node of the one that was named."""
    is_final: bool
    """Whether all of its jobs have ended."""
    created_at: Moment
