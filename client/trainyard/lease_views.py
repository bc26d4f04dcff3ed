"""What the API says of leases: blocks, verdicts, availability, forecasts."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class Charge(View):
    """What a lease takes from which quota; None if it is charged to none."""

    quota: str | None
    hours: int


@dataclass(frozen=True, kw_only=True)
class Lease(View):
    """A lease. Jobs in it are stopped at `usable_end`; the node is free at `hold_end`."""

    id: str
    user: str
    node: str
    node_class: str
    kind: str
    state: str
    reason: str
    hold_start: datetime
    hold_end: datetime
    usable_end: datetime
    job: str | None
    jobs: tuple[str, ...]
    together: str | None
    """The first of the leases that were booked with it."""
    counts: bool
    """Against quotas; False once it is refunded."""
    charged_hours: int
    """That it counts for now: of hours given back too late only those that nobody else has."""
    settled_as: str
    """Why it counts or does not, once it is over."""
    charge: Charge | None
    policy: str | None
    policy_version: int | None
    protected: bool
    unusable_s: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Reason(View):
    """A rule that a block breaks, or something to know of, with its numbers."""

    code: str
    param: str
    message: str
    numbers: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Left(View):
    """What a quota still allows; `by_swap`: only in place of leases that have not begun."""

    quota: str
    alternative: str
    text: str
    by_swap: bool


@dataclass(frozen=True, kw_only=True)
class NodeVerdict(View):
    """What the policy says to a block on one node."""

    node: str
    node_class: str
    ok: bool
    hold_start: datetime
    hold_end: datetime
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]
    charge: Charge
    left: tuple[Left, ...]
    next_starts: tuple[datetime, ...]
    policy: str
    policy_version: int


@dataclass(frozen=True, kw_only=True)
class BlockVerdict(View):
    """Whether a block would be booked now, and on which nodes (`chosen`)."""

    ok: bool
    can_wait: bool = False
    """It is refused now, but the waitlist may give it."""
    chosen: tuple[str, ...]
    hold_start: datetime
    hold_end: datetime
    nodes: tuple[NodeVerdict, ...]


@dataclass(frozen=True, kw_only=True)
class Taken(View):
    """A node that is not free in an hour, and why."""

    node: str
    why: str
    message: str = ""
    """What the rule says that a block from this hour on would break."""


@dataclass(frozen=True, kw_only=True)
class FreeHour(View):
    """One hour, the names of the nodes that are free in it, and why the others are not."""

    start: datetime
    free: int
    nodes: tuple[str, ...]
    taken: tuple[Taken, ...]


@dataclass(frozen=True, kw_only=True)
class Lengths(View):
    """How long a block on a node may be, in hours, at one time of day or another."""

    node: str
    hours: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Availability(View):
    """Which nodes of a class (None: of every class) are free, hour by hour."""

    node_class: str | None
    nodes: int
    hours: tuple[FreeHour, ...]
    lengths: tuple[Lengths, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForecastDay(View):
    """A day, or what is left of it: node-hours that nobody has booked, and those that would be."""

    start: datetime
    free_hours: float
    wanted_hours: float


@dataclass(frozen=True, kw_only=True)
class Forecast(View):
    """How full the days become if what is left of all quotas is spent evenly until the close.

    `people` may book; `unmet_hours` of the `unspent_hours` would find no room.
    """

    policy: str
    zone: str
    nodes: tuple[str, ...]
    closes_at: datetime
    people: int
    unspent_hours: float
    free_hours: float
    unmet_hours: float
    days: tuple[ForecastDay, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class Offer(View):
    """A block that is held until `expires_at`."""

    id: str
    node: str
    hold_start: datetime
    hold_end: datetime
    state: str
    lease: str | None
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Wait(View):
    """A wish on the waitlist. `state` is waiting, offered, served, left or over."""

    id: str
    user: str
    node_class: str | None
    node: str | None
    first_start: datetime
    last_start: datetime
    hours: int
    priority: bool
    state: str
    reason: str
    ahead: int
    offer: Offer | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Displaced(View):
    """A lease that stands in the way of maintenance, and what becomes of it."""

    lease: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    act: str
    to_node: str | None
    result: str


@dataclass(frozen=True, kw_only=True)
class Occurrence(View):
    """One time of a maintenance on one node; `held`: nothing stands in its way any more."""

    node: str
    start: datetime
    end: datetime
    held: bool


@dataclass(frozen=True, kw_only=True)
class Maintenance(View):
    """A maintenance, or the plan of one (`id` is None)."""

    id: str | None
    why: str
    rule: str | None
    zone: str
    hours: int
    occurrences: tuple[Occurrence, ...]
    displaced: tuple[Displaced, ...]
    plan: str
    created_at: datetime | None
    cancelled_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Feed(View):
    """A calendar feed; `url` is told once, when it is made."""

    id: str
    node: str | None
    url: str | None
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
