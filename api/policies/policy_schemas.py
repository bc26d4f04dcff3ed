"""What the public API takes and gives about booking policies and windows."""

from typing import Annotated, Literal

from pydantic import Field

from api.schema_base import Body, Moment, View
from core.policy.sections import InFlight

Names = Annotated[list[Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=50)]


class WindowView(View):
    """When leases may lie on the nodes of some pools."""

    id: str
    policy: str
    pools: list[str]
    starts_at: Moment
    ends_at: Moment
    opens_at: Moment | None
    """From when on it may be booked; null: at once."""
    from_document: bool
    """False: staff added it, or have changed it."""


class SpanView(View):
    """A band or a window, whole."""

    name: str
    """Of a band; of a window its pools."""
    starts_at: Moment
    ends_at: Moment


class BandsView(View):
    """How one policy divides hours on nodes that it treats alike for you."""

    policy: str
    version: int
    zone: str
    nodes: list[str]
    bands: list[SpanView]
    """Of the day, such as the night."""
    windows: list[SpanView] | None
    """Outside of these no lease may lie; null: anywhere."""


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
    """A lease to come that new rules would have refused, or that a smaller window leaves out."""

    id: str
    user: str
    node: str
    hold_start: Moment
    hold_end: Moment
    codes: list[str]
    message: str


class PolicyPlan(View):
    """What applying a document does, or has done."""

    id: str
    version: int
    replaces: int | None
    """The version that is active now, or was until now."""
    applied: bool
    changes: list[str]
    advice: list[str]
    in_flight: InFlight
    refused: list[AffectedLease]
    """Leases to come that these rules would have refused, the first hundred."""
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
    """What shall be different. Without `plan` nothing is changed: the answer is the plan."""

    starts_at: Moment | None = None
    ends_at: Moment | None = None
    opens_at: Moment | None = None
    orphans: Literal["keep", "cancel"] = "keep"
    """What becomes of booked leases that would lie outside; cancelled ones do not count."""
    plan: str | None = Field(default=None, max_length=64)
    """The `hash` of the plan that you have seen."""


class WindowPlan(View):
    """What a change of a window does, or has done."""

    window: WindowView | None
    """As it will be; null if it goes."""
    orphans: list[AffectedLease]
    hash: str
    applied: bool
    num_cancelled: int
