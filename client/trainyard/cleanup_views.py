"""What the API says of clean-ups of leases."""

from dataclasses import dataclass
from datetime import datetime

from trainyard.decoding import View


@dataclass(frozen=True, kw_only=True)
class Selector(View):
    """What a clean-up looks for; empty fields do not narrow it."""

    wrong: tuple[str, ...]
    user: str | None
    lab: str | None
    node: str | None
    tag: str | None
    starts_from: datetime | None
    starts_before: datetime | None
    include_active: bool


@dataclass(frozen=True, kw_only=True)
class CleanupRow(View):
    """A lease in a clean-up. `result`: planned, spared, removed, skipped, restored or lost."""

    lease: str
    user: str
    node: str
    hold_start: datetime
    hold_end: datetime
    hours: int
    state: str
    code: str
    rule: str
    message: str
    refund_hours: int
    result: str
    outcome: str
    restored_as: str | None


@dataclass(frozen=True, kw_only=True)
class Cleanup(View):
    """A clean-up with its rows. `state` is preview, expired, applied or undone."""

    id: str
    state: str
    selector: Selector
    reason: str
    hash: str
    made_by: str
    created_at: datetime
    expires_at: datetime
    applied_at: datetime | None
    undone_at: datetime | None
    undo_until: datetime | None
    removed: int
    spared: int
    skipped: int
    freed_node_hours: int
    freed_gpu_hours: int
    refunded_hours: int
    owners: int
    rows: tuple[CleanupRow, ...]
