"""The parts of a policy document, field by field. docs/policies.md explains the fields."""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from core.base.node_names import NodeName
from core.policy.bands import Crossing

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Hours = Annotated[int, Field(ge=1, le=168)]
Gpus = Annotated[int, Field(ge=1, le=64)]
Count = Annotated[int, Field(ge=0, le=10_000)]
Clock = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[Name, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=1000)]
NodeNames = Annotated[
    tuple[NodeName, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=1000)
]


class Day(StrEnum):
    """A day of the week, in the order of `date.weekday()`."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


DAYS = tuple(Day)


class InFlight(StrEnum):
    """Treatment of future leases that a new version would refuse."""

    GRANDFATHER = "grandfather"
    FLAG = "flag"
    CANCEL_WITH_REFUND = "cancel_with_refund"


class BackToBack(StrEnum):
    """Treatment of two touching leases of one person on one node."""

    MERGE = "merge"
    ALLOW = "allow"
    FORBID = "forbid"


class GapMode(StrEnum):
    """Treatment of a block that leaves hours beside it that no block fits into."""

    OFF = "off"
    SOFT = "soft"
    HARD = "hard"


class QuotaPeriod(StrEnum):
    """Period over which a quota is counted."""

    WINDOW = "window"
    WEEK = "week"
    DAY = "day"
    NIGHT = "night"


class QuotaScope(StrEnum):
    """People whose leases a quota counts."""

    USER = "user"
    LAB = "lab"


class Section(BaseModel):
    """Base of all parts: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Header(Section):
    """Name and version of the policy, and the transition to a new version."""

    id: Name
    version: int = Field(default=1, ge=0, le=1_000_000)
    supersedes: int | None = None
    """Version that must be the active one; else applying this document is refused."""
    zone: str = "UTC"
    in_flight: InFlight = InFlight.GRANDFATHER


class GridRules(Section):
    """Grid of block starts, and the range of days in which they may be booked."""

    step_min: Literal[60] = 60
    anchor_min: int = Field(default=0, ge=0, le=59)
    """Minutes after the full UTC hour at which blocks start: 30 in India, 15 in Nepal."""
    grace_min: int = Field(default=5, ge=0, le=30)
    min_lead_min: int = Field(default=0, ge=0, le=7 * 24 * 60)
    late_start: bool = True
    """True if the running hour may be booked too, in full, if there is no lead to keep."""
    horizon_days: int = Field(default=21, ge=1, le=366)
    max_block_hours: Hours = 12
    """Longest block where neither pool nor band lists lengths; longest lease with extensions."""

    @property
    def grace_s(self) -> int:
        return self.grace_min * 60

    @property
    def anchor(self) -> timedelta:
        return timedelta(minutes=self.anchor_min)


class HardwareClass(Section):
    """Class of identical nodes."""

    nodes: NodeNames
    gpus: int = Field(default=1, ge=0, le=64)


class Pool(Section):
    """Nodes that rules refer to, and the block lengths that may be booked on them by day."""

    model_config = ConfigDict(populate_by_name=True)

    nodes: NodeNames | None = None
    class_name: Name | None = Field(default=None, alias="class")
    gpus: Annotated[tuple[Gpus, ...], Field(max_length=64)] = ()
    """GPUs, or CPU slots, of a node that one lease may have; if empty, all of the node."""
    hours: tuple[Hours, ...] = ()
    title: str = Field(default="", max_length=80)
    """Name for people, such as `a single-GPU node`."""


class WindowRule(Section):
    """Time in which leases may lie on a pool's nodes, and start of its booking."""

    pool: Names
    usable: tuple[str, str]
    opens_at: str = "now"


class Who(Section):
    """People that the policy lets book."""

    group: Names | None = None
    cohort_key: Name | None = None
    cohorts: dict[Name, tuple[Day, ...]] = {}
    cohorts_enforced: bool = False


class Band(Section):
    """Hours of the day that count apart: local clock times, or all that other bands leave."""

    local: tuple[Clock, Clock] | None = None
    complement_of: Names | None = None
    days: Literal["all"] | tuple[Day, ...] = "all"
    quota: Name | None = None
    hours: tuple[Hours, ...] = ()
    """Block lengths on any node within this band; if empty, those of the pool."""


class WalkIns(Section):
    """Rules for leases that start now because a queued job found a node free."""

    allowed: bool = True
    max_hours: Hours | None = None
    max_gpus: Gpus | None = None
    charged: bool = True


class QuotaSlot(Section):
    """Room for one lease."""

    pool: Names
    hours: Hours
    gpus: Gpus | None = None
    """Most GPUs that the lease may have; None: no limit."""


class QuotaChoice(Section):
    """One way to use up a quota: all its slots."""

    name: Name
    slots: tuple[QuotaSlot, ...] = Field(min_length=1, max_length=12)
    distinct_times: bool = False


class Quota(Section):
    """A limit: alternatives of slots, hours per band, or a number of leases."""

    scope: QuotaScope = QuotaScope.USER
    period: QuotaPeriod = QuotaPeriod.WINDOW
    one_of: Annotated[tuple[QuotaChoice, ...], Field(max_length=20)] = ()
    max_node_hours: dict[Name, Count] = {}
    """Limits in node-hours, by band."""
    max_gpu_hours: dict[Name, Count] = {}
    """Limits in GPU-hours, by band; they may stand beside alternatives."""
    max_open_leases: Count | None = None
    max_future_leases: Count | None = None
    max_concurrent_leases: Annotated[int, Field(ge=1)] | None = None


class Adjacency(Section):
    """Rules for leases of one person on one node, one after the other."""

    same_user_back_to_back: BackToBack = BackToBack.ALLOW
    cooldown_min: Count = 0


class Gaps(Section):
    """Rule about hours beside a block that nobody can book."""

    mode: GapMode = GapMode.OFF
    never_leave_hours: tuple[Hours, ...] = ()
    """Forbidden remainders; if empty, every one that the node's block lengths cannot fill."""


class EarlyRelease(Section):
    """Cost of a lease that is given back while it runs."""

    charge: Literal["block", "used"] = "used"
    refund_if_rebooked: bool = False


class Churn(Section):
    """Number of cancellations after which a person cannot book until tomorrow."""

    max_cancels: Count
    per: Literal["day"] = "day"


class FaultRefund(Section):
    """Refund when a node fails."""

    unusable_min: Count = 15
    refund: Literal["whole", "none"] = "whole"
    priority_rebook: bool = True


class StaffDelete(Section):
    """Refund when staff delete a lease."""

    violation: Literal["refund", "refund_none"] = "refund_none"
    maintenance: Literal["refund", "refund_none"] = "refund"


class Cancel(Section):
    """Charges for leases that were not used."""

    refund_if_before_start_min: Count = 0
    late_cancel: Literal["charge", "charge_unless_rebooked", "refund"] = "refund"
    early_release: EarlyRelease = EarlyRelease()
    churn: Churn | None = None
    fault_refund: FaultRefund = FaultRefund()
    staff_delete: StaffDelete = StaffDelete()


class NoShow(Section):
    """Minutes after the start without a job, and the consequences."""

    backfill_after_min: Count | None = None
    """Minutes after which jobs that save checkpoints may use the node until its owner comes."""
    warn_before_reclaim_min: Count = 10
    reclaim_after_min: Count | None = None
    strikes: Annotated[int, Field(ge=1)] | None = None
    within_days: Annotated[int, Field(ge=1, le=366)] = 28
    """Days after which a no-show is forgotten."""
    penalty_days: Annotated[int, Field(ge=1, le=366)] | None = None
    """Days of restricted booking after the last of too many no-shows; None: no restriction."""
    penalty_horizon_days: Annotated[int, Field(ge=0, le=365)] = 0
    """Days that one may then book ahead; 0: booking is refused, only walk-ins remain."""


class Extend(Section):
    """Rules for prolonging a running lease."""

    allowed: bool = True
    only_in_last_min: Annotated[int, Field(ge=1)] | None = None
    step_hours: Hours = 1
    needs: tuple[Literal["free_next_hold", "quota_ok"], ...] = ("free_next_hold", "quota_ok")


class Scheduling(Section):
    """Rules by which the queue uses the nodes that the policy names, for every user."""

    soft_fit: Literal["on", "off"] = "on"
    """`on` if a job that saves checkpoints may start before a lease that it must give way to."""
    min_useful_min: Annotated[int, Field(ge=1, le=24 * 60)] = 30
    """Shortest gap for that, in minutes: a start and a checkpoint should not take a third of it."""
    idle_after_min: Annotated[int, Field(ge=1, le=24 * 60)] | None = None
    """Minutes without a key, a busy program or use of its GPUs after which a workbench is idle. Its
    slots are then lent, if its owner has chosen so; None: no workbench is ever idle."""
    shares: dict[Name, Annotated[int, Field(ge=1, le=100_000)]] = {}
    """Slots (GPUs), by lab, that its jobs can always get back from those who borrow them."""
    min_run_min: Count = 30
    """Minutes that a borrowed job runs before it may be stopped for that."""
    preemptible: Literal["checkpointable", "all"] = "checkpointable"
    """Borrowed jobs that may be stopped: those that save checkpoints, or all."""


class EndStep(Section):
    """Step before the end of a hold."""

    at_min: int = Field(ge=-240, le=0)
    do: Literal["notify", "checkpoint", "stop"]
    kill_after_s: int | None = Field(default=None, ge=1, le=120)


END_OF_LEASE = (
    EndStep(at_min=-30, do="notify"),
    EndStep(at_min=-15, do="notify"),
    EndStep(at_min=-10, do="checkpoint"),
    EndStep(at_min=-5, do="stop", kill_after_s=30),
)


class PolicyDocument(Section):
    """All sections, as they stand in the text."""

    policy: Header
    grid: GridRules = GridRules()
    classes: dict[Name, HardwareClass] = {}
    pools: Annotated[dict[Name, Pool], Field(max_length=200)] = {}
    windows: Annotated[tuple[WindowRule, ...], Field(max_length=500)] = ()
    who: Who = Who()
    bands: Annotated[dict[Name, Band], Field(max_length=50)] = {}
    crossing: Crossing = Crossing.COUNTS_AS_DAY
    walk_in: WalkIns = WalkIns()
    quotas: Annotated[dict[Name, Quota], Field(max_length=50)] = {}
    adjacency: Adjacency = Adjacency()
    gaps: Gaps = Gaps()
    cancel: Cancel = Cancel()
    no_show: NoShow = NoShow()
    extend: Extend = Extend()
    scheduling: Scheduling = Scheduling()
    end_of_lease: tuple[EndStep, ...] = END_OF_LEASE
