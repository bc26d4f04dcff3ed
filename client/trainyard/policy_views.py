"""What the API says of booking policies and windows."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class Window(View):
    """When leases may lie on the nodes of some pools; `opens_at` is None if booking is open."""

    id: str
    policy: str
    pools: tuple[str, ...]
    starts_at: datetime
    ends_at: datetime
    opens_at: datetime | None
    from_document: bool


@dataclass(frozen=True, kw_only=True)
class Span(View):
    """A band of the day, or a window (its name is that of its pools), whole."""

    name: str
    starts_at: datetime
    ends_at: datetime


@dataclass(frozen=True, kw_only=True)
class Bands(View):
    """How one policy divides hours on nodes that it treats alike for you.

    Outside of its windows no lease may lie; None: anywhere.
    """

    policy: str
    version: int
    zone: str
    nodes: tuple[str, ...]
    bands: tuple[Span, ...]
    windows: tuple[Span, ...] | None


@dataclass(frozen=True, kw_only=True)
class Policy(View):
    """A version of a booking policy."""

    id: str
    version: int
    active: bool
    zone: str
    sha256: str
    applied_by: str
    applied_at: datetime


@dataclass(frozen=True, kw_only=True)
class PolicyText(Policy):
    """A version with its document and, if it is active, its windows as they are now."""

    document: str
    windows: tuple[Window, ...]


@dataclass(frozen=True, kw_only=True)
class AffectedLease(View):
    """A lease to come that new rules would have refused, or that a smaller window leaves out."""

    id: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    codes: tuple[str, ...]
    message: str


@dataclass(frozen=True, kw_only=True)
class PolicyPlan(View):
    """What applying a document does (`applied` is False: would do)."""

    id: str
    version: int
    replaces: int | None
    applied: bool
    changes: tuple[str, ...]
    advice: tuple[str, ...]
    in_flight: str
    refused: tuple[AffectedLease, ...]
    num_refused: int
    num_cancelled: int


@dataclass(frozen=True, kw_only=True)
class WindowPlan(View):
    """What a change of a window does; do it with `hash`."""

    window: Window | None
    orphans: tuple[AffectedLease, ...]
    hash: str
    applied: bool
    num_cancelled: int
