"""Shapes of /v1/leases, /v1/waitlist, /v1/maintenance and of calendar feeds."""

from datetime import date, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from api.schema_base import Body, Moment, View
from core.base.node_names import LONGEST
from core.states import LeaseState
from core.tables.kinds import LeaseKind, OfferState, WaitState

Name = Annotated[str, Field(max_length=63)]
NodeAsked = Annotated[str, Field(max_length=LONGEST, description="Name or id, in either case.")]
Zone = Annotated[str, Field(max_length=63, description="IANA name, such as Europe/Berlin.")]
Hours = Annotated[int, Field(ge=1, le=1000)]
When = Annotated[
    datetime, Field(description="RFC 3339 with its offset; or a clock time of `zone`.")
]


class Prefer(StrEnum):
    """Which of several starts and nodes that would do is taken."""

    EARLIEST = "earliest"
    SNUGGEST = "snuggest"
    """The one that cuts free time up least: beside other leases, in the shortest gap."""


class Block(Body):
    """Hours on nodes. Where: nodes by name, or so many of a class. When: from a start on, or at any
    time of a day, or with any start in a range. How long: in hours, or to an end."""

    node: NodeAsked | None = None
    nodes: list[NodeAsked] = Field(default=[], max_length=64)
    """These, all or none."""
    node_class: Name | None = None
    count: int = Field(default=1, ge=1, le=64)
    """So many nodes of the class, all or none."""
    start: When | None = None
    on: date | None = None
    """Any start such that the block lies in this day of `zone`."""
    first_start: When | None = None
    last_start: When | None = None
    prefer: Prefer = Prefer.EARLIEST
    """Of any starts in a day or a range; in either case one that leaves no gap comes first."""
    zone: Zone | None = None
    hours: Hours | None = None
    end: When | None = None
    """Instead of `hours`: the end of the hold, or the usable end, minutes before it."""


class NewLease(Block):
    """A block to book."""


class Extension(Body):
    """A later end: by so many hours, or a moment."""

    hours: Hours | None = None
    end: When | None = None
    zone: Zone | None = None


class LeaseChange(Body):
    """What may change about a lease: its end; for staff, whether clean-ups pass it by."""

    hold_end: When | None = None
    protected: bool | None = None


class ChargeView(View):
    """What a lease takes from which quota; `quota` is null if it is charged to none."""

    quota: str | None
    hours: int


class LeaseView(View):
    """A lease. Jobs in it are stopped at `usable_end`; the node is free again at `hold_end`."""

    id: str
    user: str
    node: str
    node_class: str
    kind: LeaseKind
    state: LeaseState
    reason: str
    hold_start: Moment
    hold_end: Moment
    usable_end: Moment
    job: str | None
    """The first of `jobs`."""
    jobs: list[str]
    """What runs in it now, beside each other."""
    together: str | None
    """The first of the leases that were booked with it."""
    counts: bool
    """Against quotas; false once it is refunded."""
    charged_hours: int
    """That it counts for now. Of what was given back too late only those that nobody else has."""
    settled_as: str
    """Why it counts or does not, once it is over: `late_cancel`, `node_fault`, ..."""
    charge: ChargeView | None
    policy: str | None
    policy_version: int | None
    protected: bool
    unusable_s: int
    """How long its node could not be used in it."""
    created_at: Moment


class ReasonView(View):
    """A rule that a block breaks, or something to know of, with its numbers."""

    code: str
    param: str
    message: str
    numbers: dict[str, int | float | str]


class LeftView(View):
    """What a quota still allows."""

    quota: str
    alternative: str
    text: str
    by_swap: bool


class NodeVerdict(View):
    """What the policy says to a block on one node."""

    node: str
    node_class: str
    ok: bool
    hold_start: Moment
    hold_end: Moment
    reasons: list[ReasonView]
    warnings: list[ReasonView]
    charge: ChargeView
    left: list[LeftView]
    next_starts: list[Moment]
    """The nearest starts of a block as long, on this node, that would be accepted."""
    policy: str
    policy_version: int


class VerdictView(View):
    """Whether a block would be booked now, and where. Asking changes nothing."""

    ok: bool
    can_wait: bool
    """It is refused, but the waitlist may give it: others have the hours, or time will tell."""
    chosen: list[str]
    """Names of the nodes that would be booked; empty if refused."""
    hold_start: Moment
    hold_end: Moment
    nodes: list[NodeVerdict]
    """Those chosen first; of a refused block the nearest to being accepted first."""


class TakenView(View):
    """A node that is not free in an hour."""

    node: str
    why: str
    """`leased`, `yours`, `offered`, `maintenance`, `down`, or the node's state; with `block_hours`
    or `any_length` the code of the first rule that a block from this hour on would break."""
    message: str = ""
    """What that rule says."""


class FreeHour(View):
    """One hour of a node class."""

    start: Moment
    free: int
    nodes: list[str]
    """Names of the free ones."""
    taken: list[TakenView]


class LengthsView(View):
    """How long a block on a node may be for you, in hours, at one time of day or another."""

    node: str
    hours: list[int]
    """Ascending."""


class AvailabilityView(View):
    """Which nodes of a class are free, hour by hour."""

    node_class: str | None
    """None: of every class."""
    nodes: int
    hours: list[FreeHour]
    lengths: list[LengthsView]


class ForecastDayView(View):
    """A day, or what is left of it, before a window closes."""

    start: Moment
    free_hours: float
    """Node-hours that nobody has booked."""
    wanted_hours: float
    """Of these, what would be booked."""


class ForecastView(View):
    """How full the days become if what is left of all quotas is spent evenly until the close."""

    policy: str
    zone: str
    nodes: list[str]
    closes_at: Moment
    people: int
    """Who may book and are no staff."""
    unspent_hours: float
    free_hours: float
    unmet_hours: float
    """Of the unspent ones, those that would find no room."""
    days: list[ForecastDayView]
    message: str


class NewWait(Body):
    """What to wait for: so many hours on a node or on any of a class, from when to when."""

    node_class: Name | None = None
    node: NodeAsked | None = None
    on: date | None = None
    first_start: When | None = None
    last_start: When | None = None
    zone: Zone | None = None
    hours: Hours


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
    """A wish on the waitlist."""

    id: str
    user: str
    node_class: str | None
    node: str | None
    first_start: Moment
    last_start: Moment
    hours: int
    priority: bool
    """A fault has taken a lease: served first."""
    state: WaitState
    reason: str
    ahead: int
    """Wishes that are served before it, whatever they are for."""
    offer: OfferView | None
    """The one that is open now, or what became of the last one."""
    created_at: Moment


class NewMaintenance(Body):
    """Hours that staff keep, once or by a rule. Over leases it needs the hash of its plan."""

    nodes: list[NodeAsked] = Field(min_length=1, max_length=1000)
    start: When
    zone: Zone | None = None
    """Recurring hours keep their clock time in this zone."""
    hours: int = Field(ge=1, le=24 * 14)
    rule: str | None = Field(default=None, max_length=500)
    """RFC 5545, with COUNT or UNTIL: `FREQ=WEEKLY;BYDAY=SU;COUNT=10`."""
    why: str = Field(min_length=3, max_length=200)
    plan: str | None = Field(default=None, max_length=64)


class DisplacedView(View):
    """A lease that stands in the way, and what becomes of it."""

    lease: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    act: str
    """`move` or `refund`, or `keep` for one that can't be displaced."""
    to_node: str | None
    result: str
    """Empty in a plan; afterwards what was done."""


class OccurrenceView(View):
    """One time of a maintenance on one node."""

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
    displaced: list[DisplacedView]
    plan: str
    """Hash of what is displaced: repeat the request with it to do so."""
    created_at: Moment | None
    cancelled_at: Moment | None


class NewFeed(Body):
    """A calendar to subscribe to: of your leases, or for staff of a node."""

    node: NodeAsked | None = None


class FeedView(View):
    """A calendar feed."""

    id: str
    node: str | None
    url: str | None
    """Shown once."""
    created_at: Moment
    last_used_at: Moment | None
    revoked_at: Moment | None
