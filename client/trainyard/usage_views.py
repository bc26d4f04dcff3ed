"""What the API says of use and of what quotas leave."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View
from trainyard.lease_views import Left


@dataclass(frozen=True, kw_only=True)
class UsageRow(View):
    """One person, lab or node in one day or week. `period` is its first day, `2026-11-16`."""

    period: str
    name: str
    booked_hours: float
    used_hours: float
    useful_hours: float


@dataclass(frozen=True, kw_only=True)
class Usage(View):
    """Use from `start` to `end`; `total` adds all periods up."""

    object: str
    by: str
    per: str
    start: datetime
    end: datetime
    zone: str
    rows: tuple[UsageRow, ...]
    total: tuple[UsageRow, ...]


@dataclass(frozen=True, kw_only=True)
class Quota(View):
    """What a policy leaves on some nodes, until its window closes."""

    policy: str
    version: int
    nodes: tuple[str, ...]
    window_end: datetime | None
    left: tuple[Left, ...]


@dataclass(frozen=True, kw_only=True)
class Quotas(View):
    """What is left to a person, as it stands now."""

    user: str
    quotas: tuple[Quota, ...]
