"""Requests and answers of the public API about clean-ups of leases."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from api.web.schemas import Body, Moment, View
from api.web.text_types import PlainText
from core.states import LeaseState
from core.tables.kinds import RowResult


class Wrong(StrEnum):
    """Faults of leases that a clean-up can look for."""

    ORPHAN = "orphan"
    """The lease's owner is deactivated, or its node is retired."""
    OVER_QUOTA = "over_quota"
    """More leases than a quota or cap allows: as few as possible are removed, newest first."""
    EXPIRED_WINDOW = "expired_window"
    """The lease lies outside every window in which its node may be used."""
    UNFIT = "unfit"
    """The policy version under which the lease was granted forbids it for another reason, such as
    its length."""
    NO_SHOW = "no_show"
    """No job has run in the active lease since its start; or the lease is booked, and its owner
    has had too many no-shows lately."""
    IDLE = "idle"
    """No job has run in the active lease for a while; or the lease is booked, and its owner lately
    left leases unused."""


class Selector(Body):
    """Leases to look for; without `wrong`, all leases that the other fields name."""

    wrong: Annotated[list[Wrong], Field(default_factory=list)]
    user: PlainText | None = None
    """Name or id of the owner; `lab` and `node` are given by name or id as well."""
    lab: PlainText | None = None
    node: PlainText | None = None
    tag: PlainText | None = None
    starts_from: Moment | None = None
    """Earliest start: only leases that start at that moment or later."""
    starts_before: Moment | None = None
    include_active: bool = False
    """Include active leases. The node of each is quarantined before the lease is ended."""


class NewCleanup(Body):
    """A clean-up to preview."""

    selector: Selector
    reason: PlainText = Field(min_length=3)
    """Reason for the clean-up, which is sent to the owners."""


class ApplyCleanup(Body):
    """The preview to apply, named by its hash."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    leave: Annotated[list[PlainText], Field(default_factory=list, max_length=1000)]
    """Ids of leases in the preview that are to be kept all the same."""


class CleanupRowView(View):
    """A lease in a clean-up."""

    lease: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    hours: int
    state: LeaseState
    """State of the lease now."""
    jobs: list[str]
    """Names of the jobs of its owner that run in it now; they stop with a checkpoint."""
    code: str
    rule: str
    message: str
    refund_hours: int
    result: RowResult
    outcome: str
    restored_as: str | None


class CleanupView(View):
    """A clean-up, with its rows."""

    id: str
    state: Literal["preview", "expired", "applied", "undone"]
    selector: Selector
    reason: str
    hash: str
    made_by: str
    created_at: Moment
    expires_at: Moment
    applied_at: Moment | None
    undone_at: Moment | None
    undo_until: Moment | None
    removed: int
    """Number of leases that are removed, or would be."""
    spared: int
    skipped: int
    freed_node_hours: int
    freed_gpu_hours: int
    refunded_hours: int
    owners: int
    """Number of people who get a notice, one each."""
    rows: list[CleanupRowView]


class LeaseTags(Body):
    """Tags of a lease, and its protection from clean-ups."""

    tags: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]],
        Field(max_length=20),
    ]
    protected: bool
