"""What the public API takes and gives about clean-ups of leases."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from api.schema_base import Body, Moment, View
from api.text_types import PlainText
from core.states import LeaseState
from core.tables.kinds import RowResult


class Wrong(StrEnum):
    """What a clean-up can look for."""

    ORPHAN = "orphan"
    """Its owner is deactivated, or its node is retired."""
    OVER_QUOTA = "over_quota"
    """More than a quota or cap allows: the fewest go, the newest first."""
    EXPIRED_WINDOW = "expired_window"
    """It lies outside every window in which its node may be used."""
    UNFIT = "unfit"
    """The policy version that it was granted under would not allow it for another reason, such as
    its length."""
    NO_SHOW = "no_show"
    """Nothing has run in it since it began, or its owner did not show up too often."""
    IDLE = "idle"
    """Nothing runs in it now, or its owner lately left leases unused."""


class Selector(Body):
    """What to look for; without `wrong`, everything that the other fields name."""

    wrong: Annotated[list[Wrong], Field(default_factory=list)]
    user: PlainText | None = None
    """Name or id, as for the next two."""
    lab: PlainText | None = None
    node: PlainText | None = None
    tag: PlainText | None = None
    starts_from: Moment | None = None
    """Only leases that start at that moment or later."""
    starts_before: Moment | None = None
    include_active: bool = False
    """Active ones too: their node is quarantined before they are ended."""


class NewCleanup(Body):
    """A clean-up to preview."""

    selector: Selector
    reason: PlainText = Field(min_length=3)
    """Goes to the owners."""


class ApplyCleanup(Body):
    """Which preview is meant."""

    hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    leave: Annotated[list[PlainText], Field(default_factory=list, max_length=1000)]
    """Ids of leases in it that are to stay all the same."""


class CleanupRowView(View):
    """A lease in a clean-up."""

    lease: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    hours: int
    state: LeaseState
    """Now."""
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
    """Leases that are removed, or would be."""
    spared: int
    skipped: int
    freed_node_hours: int
    freed_gpu_hours: int
    refunded_hours: int
    owners: int
    """People who are told, with one notice each."""
    rows: list[CleanupRowView]


class LeaseTags(Body):
    """Names of a lease, and whether clean-ups pass it by."""

    tags: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]],
        Field(max_length=20),
    ]
    protected: bool
