"""What the public API gives about use: hours booked, used and useful, and what quotas leave."""

from datetime import date
from enum import StrEnum
from typing import Literal

from api.leases.lease_schemas import LeftView
from api.schema_base import Moment, View
from core.leases.periods import Per


class By(StrEnum):
    """Whose hours are added up."""

    USER = "user"
    LAB = "lab"
    NODE = "node"


class UsageRow(View):
    """One person, lab or node in one day or week; hours of GPUs, or of CPU slots without GPUs."""

    period: date
    """Its first day."""
    name: str
    booked_hours: float
    """Held by leases, whatever ran in them."""
    used_hours: float
    """In which a job had them."""
    useful_hours: float
    """In training steps whose work was kept."""


class UsageView(View):
    """Use from `start` to `end`, the days on the clock of `zone`."""

    object: Literal["usage"] = "usage"
    by: By
    per: Per
    start: Moment
    end: Moment
    zone: str
    rows: list[UsageRow]
    total: list[UsageRow]
    """The same, over all periods; `period` is the first one."""


class QuotaView(View):
    """What a policy leaves to somebody on some nodes."""

    policy: str
    version: int
    nodes: list[str]
    window_end: Moment | None
    """When its window closes; None: it has none."""
    left: list[LeftView]


class QuotasView(View):
    """What is left to a person, as it stands now."""

    user: str
    quotas: list[QuotaView]
