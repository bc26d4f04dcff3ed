"""Shapes of /v1/leases, /v1/waitlist, /v1/maintenance and of calendar feeds."""

from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from api.web.schemas import Body, Moment, View
from core.base.node_names import LONGEST
from core.states import LeaseState
from core.tables.kinds import LeaseKind, OfferState, WaitState

Name = Annotated[str, Field(max_length=63)]
NodeAsked = Annotated[str, Field(max_length=LONGEST, description="Name or id, in either case.")]
Zone = Annotated[str, Field(max_length=63, description="IANA name, such as Europe/Berlin.")]
Hours = Annotated[int, Field(ge=1, le=1000)]
Gpus = Annotated[int, Field(ge=1, le=64)]
When = Annotated[datetime, Field(description="RFC 3339 with an offset, or a clock time in `zone`.")]


class Prefer(StrEnum):
    """Order in which starts and nodes that would do are chosen."""

    EARLIEST = "earliest"
    SNUGGEST = "snuggest"
    """The choice that cuts free time up least: beside other leases, in the shortest gap."""


class Block(Body):
    """Hours on nodes. Where: nodes by name, or a number of nodes of a class. When: from a given
    start, at any time of a day, or with any start in a range. How long: in hours, or to an end."""

    node: NodeAsked | None = None
    nodes: list[NodeAsked] = Field(default=[], max_length=64)
    """Names or ids of the nodes; all of them are booked, or none."""
    node_class: Name | None = None
    count: int = Field(default=1, ge=1, le=64)
    """Number of nodes of the class; all of them are booked, or none."""
    gpus: Gpus | None = None
    """GPUs, or CPU slots, of each node; null: the whole node."""
    start: When | None = None
    on: date | None = None
    """Day of `zone` in which the block must lie; it may start at any time of that day."""
    first_start: When | None = None
    last_start: When | None = None
    prefer: Prefer = Prefer.EARLIEST
    """Choice among the starts in a day or a range. In either case a start that leaves no gap comes
    first."""
    zone: Zone | None = None
    hours: Hours | None = None
    end: When | None = None
    """End of the block, instead of `hours`: the end of the hold, or the usable end, minutes before
    it."""


class NewLease(Block):
    """A block to book."""


class Extension(Body):
    """A later end for a lease: in hours to add, or as a moment."""

    hours: Hours | None = None
    end: When | None = None
    zone: Zone | None = None


class LeaseChange(Body):
    """Change of a lease: its end; for staff, whether clean-ups spare it."""

    hold_end: When | None = None
    protected: bool | None = None


class ChargeView(View):
    """Hours that a lease takes from a quota; `quota` is null if no quota is charged."""

    quota: str | None
    hours: int
    gpu_hours: int = 0


class LeaseView(View):
    """A lease. Jobs in it are stopped at `usable_end`; the node is free again at `hold_end`."""

    id: str
    user: str
    node: str
    node_class: str
    gpus: int | None = None
    """GPUs, or CPU slots, of the lease; null from servers that lease only whole nodes."""
    of_gpus: int | None = None
    """GPUs, or CPU slots, of the node."""
    whole: bool = True
    """True for a lease of the whole node."""
    slots: list[int] | None = None
    """Indices of its GPUs, or CPU slots, on the node; null while it has not begun and when it is
    over."""
    kind: LeaseKind
    state: LeaseState
    reason: str
    hold_start: Moment
    hold_end: Moment
    usable_end: Moment
    job: str | None
    """The first of `jobs`."""
    jobs: list[str]
    """Ids of the owner's jobs that run in the lease now, side by side; the first assigned comes
    first."""
    together: str | None
    """Id of the first of the leases that were booked together with it; null if it was booked
    alone."""
    counts: bool
    """True while the lease counts against quotas; false once it is refunded."""
    charged_hours: int
    """Hours that count against quotas now. Of hours returned too late, only those that nobody else
    has."""
    settled_as: str
    """Reason why an ended lease counts or does not: `late_cancel`, `node_fault`, ... docs/states.md
    lists the codes; more may be added. Empty: not settled."""
    charge: ChargeView | None
    policy: str | None
    policy_version: int | None
    protected: bool
    unusable_s: int
    """Seconds of the lease in which its node could not be used."""
    created_at: Moment


class ReasonView(View):
    """A rule that a block breaks, or a warning about it, with the numbers of the case."""

    code: str
    """Code of the rule; docs/states.md lists them."""
    param: str
    message: str
    numbers: dict[str, int | float | str]


class QuotaRemainderView(View):
    """Remainder of a quota."""

    quota: str
    alternative: str
    text: str
    by_swap: bool


class NodeVerdict(View):
    """Verdict of the policy on a block on one node."""

    node: str
    node_class: str
    ok: bool
    hold_start: Moment
    hold_end: Moment
    reasons: list[ReasonView]
    warnings: list[ReasonView]
    charge: ChargeView
    left: list[QuotaRemainderView]
    next_starts: list[Moment]
    """The nearest starts on this node at which a block of the same length would be accepted."""
    policy: str
    policy_version: int


class VerdictView(View):
    """Verdict on a block: the nodes that would be booked now, or the reasons why none would be.
    Asking changes nothing."""

    ok: bool
    can_wait: bool
    """True if the block is refused, but the waitlist may still provide it: others have the hours,
    or the reason will pass with time."""
    chosen: list[str]
    """Names of the nodes that would be booked; empty if refused."""
    hold_start: Moment
    hold_end: Moment
    nodes: list[NodeVerdict]
    """Verdicts by node: the chosen ones first, then the refused ones, nearest to acceptance
    first."""


class BusyNodeView(View):
    """A node that is not free in an hour."""

    node: str
    why: str
    """`leased`, `yours`, `offered`, `maintenance`, `down`, or the node's state; with `block_hours`
    or `any_length` the code of the first rule that a block from this hour on would break."""
    message: str = ""
    """Message of that rule; empty if no rule is the cause."""


class FreeHour(View):
    """One hour, with the nodes that are free in it and those that are not."""

    start: Moment
    free: int
    nodes: list[str]
    """Names of the free nodes."""
    taken: list[BusyNodeView]
    free_gpus: dict[str, int] = Field(default={})
    """Map node -> number of GPUs, or CPU slots, that nobody holds in any part of the hour."""


class LengthsView(View):
    """Lengths and sizes that the rules allow you for a block on a node, at one time of day or
    another."""

    node: str
    hours: list[int]
    """Allowed lengths in hours, ascending."""
    sizes: list[int] = Field(default=[])
    """Allowed numbers of GPUs, or CPU slots, ascending; only all of the node where its policy lists
    no sizes."""


class AvailabilityView(View):
    """Free nodes of a class, hour by hour."""

    node_class: str | None
    """Name of the class; null: all classes."""
    nodes: int
    hours: list[FreeHour]
    lengths: list[LengthsView]


class ForecastDayView(View):
    """A day, or the rest of it, before a window closes."""

    start: Moment
    free_hours: float
    """Hours that nobody has booked, in the forecast's unit."""
    wanted_hours: float
    """Part of `free_hours` that would be booked."""


class ForecastView(View):
    """Forecast of how full the days become if the rest of all quotas is spent evenly until the
    window closes."""

    policy: str
    zone: str
    nodes: list[str]
    closes_at: Moment
    unit: str = "node-hours"
    """Unit of all hours: `node-hours`, or `GPU-hours` of a policy that sells parts of nodes."""
    people: int
    """Number of people who may book, staff not counted."""
    unspent_hours: float
    free_hours: float
    unmet_hours: float
    """Part of `unspent_hours` that would find no room."""
    days: list[ForecastDayView]
    message: str


class NewWait(Body):
    """An entry for the waitlist: a number of hours on a node, or on any node of a class, within a
    range of starts or a day."""

    node_class: Name | None = None
    node: NodeAsked | None = None
    on: date | None = None
    first_start: When | None = None
    last_start: When | None = None
    zone: Zone | None = None
    hours: Hours
    gpus: Gpus | None = None
    """GPUs, or CPU slots, of the node; null: the whole node."""


class OfferView(View):
    """A block that is held for you until `expires_at`."""

    id: str
    node: str
    hold_start: Moment
    hold_end: Moment
    state: OfferState
    lease: str | None
    expires_at: Moment


class WaitView(View):
    """An entry of the waitlist."""

    id: str
    user: str
    node_class: str | None
    node: str | None
    first_start: Moment
    last_start: Moment
    hours: int
    gpus: int | None = None
    """GPUs, or CPU slots, of one node; null: a whole node."""
    priority: bool
    """True if a fault took a lease of the user: the entry is then served first."""
    state: WaitState
    reason: str
    ahead: int
    """Number of entries that are served before it, whatever they are for."""
    offer: OfferView | None
    """The open offer, or the last one with its result."""
    created_at: Moment


class NewMaintenance(Body):
    """Hours that staff reserve, once or by a rule. If leases stand in the way, the hash of the plan
    is needed."""

    nodes: list[NodeAsked] = Field(min_length=1, max_length=1000)
    start: When
    zone: Zone | None = None
    """Time zone in which recurring hours keep their clock time."""
    hours: int = Field(ge=1, le=24 * 14)
    rule: str | None = Field(default=None, max_length=500)
    """Recurrence by RFC 5545, with COUNT or UNTIL: `FREQ=WEEKLY;BYDAY=SU;COUNT=10`."""
    why: str = Field(min_length=3, max_length=200)
    plan: str | None = Field(default=None, max_length=64)


class DisplacedLeaseView(View):
    """A lease that stands in the way of a maintenance, and its fate."""

    lease: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    act: str
    """Fate of the lease: `move`, `refund`, or `keep` if it cannot be displaced."""
    to_node: str | None
    result: str
    """Sentence that says what was done; empty in a plan."""


class OccurrenceView(View):
    """One occurrence of a maintenance on one node."""

    node: str
    start: Moment
    end: Moment
    held: bool
    """False while a lease still stands in the way."""


class MaintenanceView(View):
    """A maintenance, or the plan of one."""

    id: str | None
    why: str
    rule: str | None
    zone: str
    hours: int
    occurrences: list[OccurrenceView]
    displaced: list[DisplacedLeaseView]
    plan: str
    """Hash of the displaced leases. Repeat the request with it to displace them."""
    created_at: Moment | None
    cancelled_at: Moment | None


class NewFeed(Body):
    """A calendar feed to make: of your own leases, or, for staff, of a node."""

    node: NodeAsked | None = None


class FeedView(View):
    """A calendar feed."""

    id: str
    node: str | None
    url: str | None
    """Secret address of the feed. It is shown only once."""
    created_at: Moment
    last_used_at: Moment | None
    revoked_at: Moment | None
