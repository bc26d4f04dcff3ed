"""Clean-ups: their previews and views."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.admin import cleanup_apply
from api.admin.cleanup_plan import FaultyLease, hash_of, version_of
from api.admin.schemas_cleanups import (
    CleanupRowView,
    CleanupView,
    LeaseTags,
    NewCleanup,
    Selector,
)
from api.leases.lease_views import BEGUN, RUNNING_IN, find_lease, show_lease
from api.leases.schemas import LeaseView
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound
from core.base.ids import IdKind, new_id
from core.policy.grid import HOUR
from core.states import LeaseState
from core.tables.admin import Cleanup, CleanupRow
from core.tables.jobs import Job
from core.tables.kinds import RowResult
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from strategies.plan.hardware import Hardware

GOOD_FOR = timedelta(minutes=10)


def preview(
    session: Session,
    _: Bells,
    wanted: NewCleanup,
    person: Person,
    *,
    found: Sequence[FaultyLease],
    now: datetime,
) -> CleanupView:
    """Insert the preview of a clean-up. Nothing is removed."""
    cleanup_id = new_id(IdKind.CLEANUP)
    rows = [_row(cleanup_id, position, one) for position, one in enumerate(found)]
    seen = [(row.lease_id, row.version, row.result is RowResult.PLANNED) for row in rows]
    session.add(
        Cleanup(
            id=cleanup_id,
            selector=wanted.selector.model_dump(mode="json"),
            reason=wanted.reason,
            sha256=hash_of(seen),
            made_by=person.id,
            created_at=now,
            expires_at=now + GOOD_FOR,
        )
    )
    session.flush()
    session.add_all(rows)
    session.flush()
    return show(session, cleanup_id, now)


def list_cleanups(session: Session, *, limit: int, after: str | None) -> Page[CleanupView]:
    """Return a page of clean-ups, newest first."""
    now = utc_now()
    rows = page(session, select(Cleanup.id), Cleanup.id, after=after, limit=limit)
    data = [show(session, cleanup_id, now) for (cleanup_id,) in rows]
    return Page[CleanupView](data=data, has_more=rows.has_more)


def force_release(
    session: Session, bells: Bells, lease_id: str, person: Person, *, now: datetime
) -> LeaseView:
    """End an active lease of another person. Raises NotFound, Conflict."""
    lease = find_lease(session, lease_id, person, lock=True)
    if lease.state is not LeaseState.ACTIVE:
        raise Conflict(
            f"{lease.id} is {lease.state}; only an active lease can be ended by force. A "
            "booked lease can be cancelled."
        )
    message = f"Ended by {person.name}."
    cleanup_apply.force_release(session, lease, person, bells, now=now, message=message)
    audit.record(session, person.id, "lease.force_release", lease.id, now=now, owner=lease.user_id)
    session.flush()
    return show_lease(session, lease.id, person)


def put_tags(
    session: Session, _: Bells, lease_id: str, wanted: LeaseTags, person: Person, *, now: datetime
) -> LeaseView:
    """Set tags and protection of a lease. Raises NotFound."""
    lease = find_lease(session, lease_id, person, lock=True)
    before: dict[str, object] = {"tags": lease.tags, "protected": lease.protected}
    lease.tags, lease.protected = sorted(set(wanted.tags)), wanted.protected
    after: dict[str, object] = {"tags": lease.tags, "protected": lease.protected}
    if after != before:
        audit.record(session, person.id, "lease.tag", lease.id, now=now, before=before, after=after)
    session.flush()
    return show_lease(session, lease.id, person)


def _row(cleanup_id: str, position: int, found: FaultyLease) -> CleanupRow:
    return CleanupRow(
        cleanup_id=cleanup_id,
        position=position,
        lease_id=found.lease.id,
        code=found.code,
        rule=found.rule,
        message=found.message,
        version=version_of(found.lease),
        refund_hours=found.refund_hours,
        result=RowResult.SPARED if found.spared else RowResult.PLANNED,
        outcome=found.spared,
    )


def show(session: Session, cleanup_id: str, now: datetime) -> CleanupView:
    """Return a clean-up with its rows. Raises NotFound."""
    cleanup = session.get(Cleanup, cleanup_id)
    if cleanup is None:
        raise NotFound(f"There is no clean-up {cleanup_id!r}.")
    rows = session.execute(
        select(CleanupRow, Lease, User.name, Node.name, NodeClass.hardware)
        .join(Lease, Lease.id == CleanupRow.lease_id)
        .join(User, User.id == Lease.user_id)
        .join(Node, Node.id == Lease.node_id)
        .join(NodeClass, NodeClass.name == Node.class_name)
        .where(CleanupRow.cleanup_id == cleanup_id)
        .order_by(CleanupRow.position)
    ).all()
    goes = (RowResult.PLANNED, RowResult.REMOVED)
    going = [row for row in rows if row[0].result in goes]
    running = _running_in(session, [lease.id for _, lease, *_ in rows if lease.state in BEGUN])
    results = [row.result for row, *_ in rows]
    applied_at = cleanup.applied_at
    return CleanupView(
        id=cleanup.id,
        state=_state(cleanup, now),
        selector=Selector.model_validate(cleanup.selector),
        reason=cleanup.reason,
        hash=cleanup.sha256,
        made_by=session.get_one(User, cleanup.made_by).name,
        created_at=cleanup.created_at,
        expires_at=cleanup.expires_at,
        applied_at=applied_at,
        undone_at=cleanup.undone_at,
        undo_until=applied_at + cleanup_apply.UNDO_WITHIN if applied_at else None,
        removed=len(going),
        spared=results.count(RowResult.SPARED),
        skipped=results.count(RowResult.SKIPPED),
        freed_node_hours=sum(_hours(lease) for _, lease, *_ in going),
        freed_gpu_hours=sum(
            _hours(lease) * Hardware.model_validate(hardware).slots
            for _, lease, _, _, hardware in going
        ),
        refunded_hours=sum(row.refund_hours for row, *_ in going),
        owners=len({lease.user_id for _, lease, *_ in going}),
        rows=[
            _row_view(row, lease, user, node, running.get(lease.id, []))
            for row, lease, user, node, _ in rows
        ],
    )


def _running_in(session: Session, lease_ids: Sequence[str]) -> dict[str, list[str]]:
    """Map lease id -> names of its owner's jobs that run in it."""
    found: dict[str, list[str]] = {}
    if lease_ids:
        ids = list(session.execute(RUNNING_IN, {"lease_ids": lease_ids}))
        names = dict(
            session.execute(
                select(Job.id, Job.name).where(Job.id.in_([job for _, job in ids]))
            ).all()
        )
        for lease_id, job_id in ids:
            found.setdefault(lease_id, []).append(names[job_id])
    return found


def _row_view(
    row: CleanupRow, lease: Lease, user: str, node: str, jobs: list[str]
) -> CleanupRowView:
    return CleanupRowView(
        lease=lease.id,
        user=user,
        node=node,
        hold_start=lease.hold_start,
        hold_end=lease.hold_end,
        hours=_hours(lease),
        state=lease.state,
        jobs=jobs,
        code=row.code,
        rule=row.rule,
        message=row.message,
        refund_hours=row.refund_hours,
        result=row.result,
        outcome=row.outcome,
        restored_as=row.restored_as,
    )


def _state(cleanup: Cleanup, now: datetime) -> str:
    if cleanup.undone_at is not None:
        return "undone"
    if cleanup.applied_at is not None:
        return "applied"
    return "expired" if now >= cleanup.expires_at else "preview"


def _hours(lease: Lease) -> int:
    return -(-(lease.hold_end - lease.hold_start) // HOUR)
