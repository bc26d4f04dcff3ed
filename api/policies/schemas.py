"""Requests and answers about booking policies and windows."""

from typing import Annotated, Literal

from pydantic import Field

from api.web.schemas import Body, Moment, View
from core.policy.sections import InFlight

Names = Annotated[list[Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=50)]


class WindowView(View):
    """A window: a time in which leases may lie on the nodes of some pools."""

    id: str
    policy: str
    pools: list[str]
    starts_at: Moment
    ends_at: Moment
    opens_at: Moment | None
    """Moment from which hours in the window may be booked; null: at once."""
    from_document: bool
    """True if the policy's document brought the window; false if staff added or changed it."""


class SpanView(View):
    """A band or a window, not cut to the requested hours."""

    name: str
    """Name of the band; for a window, its pools."""
    starts_at: Moment
    ends_at: Moment


class BandsView(View):
    """Bands and windows of one policy, on the nodes that it treats alike for you."""

    policy: str
    version: int
    zone: str
    nodes: list[str]
    bands: list[SpanView]
    """Bands of the day, such as the night."""
    windows: list[SpanView] | None
    """Windows; no lease may lie outside of them. Null: leases may lie at any time."""


class PolicyView(View):
    """A version of a booking policy."""

    id: str
    version: int
    active: bool
    zone: str
    sha256: str
    applied_by: str
    applied_at: Moment


class PolicyText(PolicyView):
    """A version with its document and, if it is active, its windows as they are now."""

    document: str
    windows: list[WindowView]


class AffectedLease(View):
    """A future lease that a change affects: new rules would have refused it, a smaller window
    leaves it out, or new time zone data has moved its clock time."""

    id: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    codes: list[str]
    message: str


class PolicyPlan(View):
    """Effects of applying a policy document: planned, or done if `applied`."""

    id: str
    version: int
    replaces: int | None
    """The version that is active now, or was until this one was applied; null if there was none."""
    applied: bool
    changes: list[str]
    advice: list[str]
    in_flight: InFlight
    refused: list[AffectedLease]
    """Future leases that these rules would have refused; at most the first hundred."""
    num_refused: int
    num_cancelled: int


class NewWindow(Body):
    """A window to add."""

    policy: str = Field(max_length=63)
    pools: Names
    starts_at: Moment
    ends_at: Moment
    opens_at: Moment | None = None


class WindowChange(Body):
    """Change of a window. Without `plan` nothing is changed: the answer is the plan."""

    starts_at: Moment | None = None
    ends_at: Moment | None = None
    opens_at: Moment | None = None
    orphans: Literal["keep", "cancel"] = "keep"
    """Fate of booked leases that would lie outside the window; cancelled leases no longer count
    against quotas."""
    plan: str | None = Field(default=None, max_length=64)
    """The `hash` of the plan that you have seen."""


class WindowPlan(View):
    """Effects of a change of a window: planned, or done if `applied`."""

    window: WindowView | None
    """The window after the change; null if it is deleted."""
    orphans: list[AffectedLease]
    hash: str
    applied: bool
    num_cancelled: int
