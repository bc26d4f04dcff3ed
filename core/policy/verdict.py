"""Request, situation and verdict: the arguments and the result of evaluate(). Plain facts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from core.base.reasons import Code, ReasonCode
from core.states import LeaseState, Sharing

LIFTABLE = frozenset(
    {
        ReasonCode.BACK_TO_BACK,
        ReasonCode.BAD_BLOCK_LENGTH,
        ReasonCode.BAD_SIZE,
        ReasonCode.COHORT_DAY,
        ReasonCode.CROSSES_BAND,
        ReasonCode.DISTINCT_TIMES,
        ReasonCode.EXTENSION_REFUSED,
        ReasonCode.LEAVES_GAP,
        ReasonCode.MERGED_TOO_LONG,
        ReasonCode.NOT_ELIGIBLE,
        ReasonCode.NOT_OPEN_YET,
        ReasonCode.OUTSIDE_HORIZON,
        ReasonCode.OUTSIDE_WINDOW,
        ReasonCode.TOO_SOON,
        ReasonCode.WALK_IN_REFUSED,
    }
)
"""Reason codes that an exception lifts as a whole.

Those with a limit (quota_*, lab_cap, user_cap, too_many_open, overlaps_own, churn, no_shows) get a
higher one; nobody can lift the rest.
"""

Numbers = Mapping[str, int | float | str]
"""Numbers such as used, limit, next_start; times as RFC 3339 in the policy's zone."""


class HourUnit(StrEnum):
    """Unit in which a quota counts hours."""

    NODE = "node-hours"
    GPU = "GPU-hours"


class RequestKind(StrEnum):
    """Kind of request."""

    BOOKING = "booking"
    WALK_IN = "walk_in"
    EXTENSION = "extension"


@dataclass(frozen=True)
class Grant:
    """An exception: lifts one rule for one person, for blocks that start in [start, end)."""

    id: str
    rule: str
    """The reason code that it lifts, such as quota_main."""
    extra: int
    """Number of further leases or node-hours; ignored where the rule has no number."""
    start: datetime
    end: datetime
    why: str


@dataclass(frozen=True)
class Member:
    """The person who asks."""

    id: str
    lab_ids: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """Names of the labs and groups that policies may refer to."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes such as netid_parity: even."""
    is_staff: bool = False
    exceptions: tuple[Grant, ...] = ()
    """Exceptions that were granted and not revoked, of any time."""

    @property
    def lab_id(self) -> str | None:
        """The lab that this person's leases are counted for: of several the first by id."""
        return min(self.lab_ids, default=None)


@dataclass(frozen=True)
class NodeRef:
    """The requested node."""

    id: str
    name: str
    class_name: str
    slots: int = 1
    """Number of its GPUs, or of its CPU slots if it has no GPU."""
    sharing: Sharing = field(default=Sharing.NONE, compare=False)

    def size(self, num_slots: int | None) -> int:
        """Return a lease's number of slots; None stands for the whole node."""
        return self.slots if num_slots is None else num_slots


@dataclass(frozen=True)
class Span:
    """[start, end) in which slots of a node are held.

    `lease_id` is None for maintenance and down time.
    """

    start: datetime
    end: datetime
    lease_id: str | None = None
    num_slots: int | None = None
    """Number of slots; None for the whole node."""


@dataclass(frozen=True)
class BookingRequest:
    """Node and hold that a person requests.

    An extension has the start of the lease it prolongs, the new end, and that lease in `replaces`.
    `end` may be given as the usable end, grace before the hold's.
    """

    member: Member
    node: NodeRef
    start: datetime
    end: datetime
    kind: RequestKind = RequestKind.BOOKING
    replaces: frozenset[str] = frozenset()
    """Ids of leases that stop counting if this is granted: swap, extension."""
    num_slots: int | None = None
    """Number of slots; None for the whole node."""

    @property
    def size(self) -> int:
        return self.node.size(self.num_slots)


@dataclass(frozen=True)
class LeaseFact:
    """A lease that may count against a rule."""

    id: str
    user_id: str
    lab_id: str | None
    node: NodeRef
    start: datetime
    end: datetime
    """End of the hold, or of the stretch charged without a break: a block that was given back early
    keeps its end as long as nobody else has hours of it."""
    kind: str
    """`booked` or `walk_in`."""
    state: LeaseState
    counts: bool
    """True if live, finished, cancelled too late, a no-show, or deleted for a violation."""
    created_at: datetime
    charged_s: int | None = None
    """Seconds charged, if not all from start to end."""
    num_slots: int | None = None
    """Number of slots; None for the whole node."""

    @property
    def size(self) -> int:
        return self.node.size(self.num_slots)


@dataclass(frozen=True)
class Situation:
    """The facts that matter to one request. Gathered by the caller, in one transaction."""

    now: datetime
    own: tuple[LeaseFact, ...] = ()
    """The member's leases that count or are live, from the start of the policy's longest period."""
    lab: tuple[LeaseFact, ...] = ()
    """Leases of all people, the member included, that count; only the member's lab's are used."""
    holds: tuple[Span, ...] = ()
    """Live holds of the node, around the block."""
    out_of_service: int = 0
    """Slots of the node that are out of service: no lease of a part gets them."""
    node_available: bool = True
    """False if the node takes no leases: drained, quarantined, retired."""
    cancels_today: int = 0
    no_shows: tuple[datetime, ...] = ()
    """Starts of the member's no-show leases, as far back as they may matter."""


@dataclass(frozen=True)
class Reason:
    """A rule that a request breaks, or (as a warning) one to know of."""

    code: Code
    param: str
    message: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class QuotaCharge:
    """Quota and hours that a lease takes; `quota` is None if it is charged to none."""

    quota: str | None
    hours: int
    gpu_hours: int = 0

    def counted_in(self, unit: HourUnit) -> int:
        """Return the hours in this unit."""
        return self.gpu_hours if unit is HourUnit.GPU else self.hours


@dataclass(frozen=True)
class RemainingBlock:
    """A lease that would still fit: at most `hours`, on a node of one of these pools."""

    pools: tuple[str, ...]
    hours: int
    gpus: int | None = None
    """Most GPUs that it may have; None: no limit."""


@dataclass(frozen=True)
class Remainder:
    """Rest of a quota: after this request if it is ok, else as it stands."""

    quota: str
    alternative: str
    blocks: tuple[RemainingBlock, ...]
    text: str
    """Sentence such as: one 2-hour block on a single-GPU node."""
    by_swap: bool = False
    """True if it fits only in place of booked leases that have not started."""
    hours: int = 0
    """Node-hours."""
    gpu_hours: int | None = None
    """GPU-hours, if the quota limits GPUs."""


@dataclass(frozen=True)
class Verdict:
    """The answer. `reasons` is empty if and only if `ok`."""

    ok: bool
    reasons: tuple[Reason, ...]
    warnings: tuple[Reason, ...]
    charge: QuotaCharge
    left: tuple[Remainder, ...]
    next_starts: tuple[datetime, ...]
    """The nearest starts of a block as long, on this node, that would be accepted."""
    policy_id: str
    policy_version: int
    local_start: str = ""
    """RFC 3339 in `zone`: the start as shown to people, should the zone's rules ever change."""
    zone: str = "UTC"
