"""Answers of the public API about use: hours booked, used and useful, and the rest of quotas."""

from datetime import date
from enum import StrEnum
from typing import Literal

from api.leases.schemas import QuotaRemainderView
from api.web.schemas import Moment, View
from core.leases.periods import Per


class By(StrEnum):
    """Group whose hours are added up: a person, a lab or a node."""

    USER = "user"
    LAB = "lab"
    NODE = "node"


class UsageRow(View):
    """One person, lab or node in one day or week; hours of GPUs, or of CPU slots without GPUs."""

    period: date
    """The day, or the first day of the week."""
    name: str
    booked_hours: float
    """Hours held by leases, whatever ran in them."""
    used_hours: float
    """Hours in which a job had the GPUs or CPU slots."""
    useful_hours: float
    """Hours spent in training steps whose work was kept."""


class UsageView(View):
    """Use from `start` to `end`; days begin at midnight in `zone`."""

    object: Literal["usage"] = "usage"
    by: By
    per: Per
    start: Moment
    end: Moment
    zone: str
    rows: list[UsageRow]
    total: list[UsageRow]
    """Rows of sums over all periods; `period` is the first one in which the name has hours."""


class QuotaView(View):
    """Remaining allowance of a person under one policy, on some nodes."""

    policy: str
    version: int
    nodes: list[str]
    window_end: Moment | None
    """Closing time of the policy's window; null if it has none."""
    left: list[QuotaRemainderView]


class QuotasView(View):
    """Remaining quotas of a person, as of now."""

    user: str
    quotas: list[QuotaView]
