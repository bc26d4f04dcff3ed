"""/v1/admin/cleanups: find leases with faults, remove those that were shown and no others, undo."""

from datetime import datetime, timedelta

from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.admin import cleanup_apply
from api.admin.cleanup_plan import FaultyLease, find, hash_of, version_of
from api.admin.schemas_cleanups import (
    ApplyCleanup,
    CleanupRowView,
    CleanupView,
    LeaseTags,
    NewCleanup,
    Selector,
)
from api.leases.lease_views import find_lease, show_lease
from api.leases.schemas import LeaseView
from api.web import audit
from api.web.auth import StaffOnly
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound
from core.base.ids import Kind, new_id
from core.policy.grid import HOUR
from core.states import LeaseState
from core.tables.admin import Cleanup, CleanupRow
from core.tables.kinds import RowResult
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from strategies.plan.hardware import Hardware

router = APIRouter(prefix="/v1/admin", tags=["administration"])

GOOD_FOR = timedelta(minutes=10)


@router.post("/cleanups", status_code=201, summary="Preview a clean-up")
def create_cleanup(wanted: NewCleanup, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Preview a clean-up: its leases, the fault and refund of each, and a hash of all rows.

    Nothing is removed yet.
    """
    now = utc_now()
    cleanup_id = new_id(Kind.CLEANUP)
    with process.read() as session:
        found = find(session, wanted.selector, why=wanted.reason, now=now)
    rows = [_row(cleanup_id, position, one) for position, one in enumerate(found)]
    seen = [(row.lease_id, row.version, row.result is RowResult.PLANNED) for row in rows]
    with process.write() as (session, _):
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
        return _show(session, cleanup_id, now)


@router.get("/cleanups", summary="List clean-ups")
def list_cleanups(
    person: StaffOnly, process: ProcessDep, limit: Limit = 20, after: After = None
) -> Page[CleanupView]:
    """Return previewed, applied and undone clean-ups, newest first."""
    now = utc_now()
    with process.read() as session:
        rows = page(session, select(Cleanup.id), Cleanup.id, after=after, limit=limit)
        data = [_show(session, cleanup_id, now) for (cleanup_id,) in rows]
    return Page[CleanupView](data=data, has_more=rows.has_more)


@router.get("/cleanups/{cleanup_id}", summary="Get a clean-up")
def get_cleanup(cleanup_id: PlainText, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Return a clean-up with its rows and the result of each."""
    with process.read() as session:
        return _show(session, cleanup_id, utc_now())


@router.post("/cleanups/{cleanup_id}/apply", summary="Apply a clean-up")
def apply_cleanup(
    cleanup_id: PlainText, wanted: ApplyCleanup, person: StaffOnly, process: ProcessDep
) -> CleanupView:
    """Remove the leases of the preview with this hash. Leases that have changed since are skipped.

    Each skipped row says why. Applying again changes nothing.
    """
    with process.read() as session:
        _show(session, cleanup_id, utc_now())  # 404 for an unknown clean-up
    cleanup_apply.apply(process, cleanup_id, wanted.hash, wanted.leave, person)
    with process.read() as session:
        return _show(session, cleanup_id, utc_now())


@router.post("/cleanups/{cleanup_id}/undo", summary="Undo a clean-up")
def undo_cleanup(cleanup_id: PlainText, person: StaffOnly, process: ProcessDep) -> CleanupView:
    """Book the removed leases again where the hours are still free and have not begun.

    A clean-up can be undone for a day after it was applied.
    """
    with process.read() as session:
        _show(session, cleanup_id, utc_now())
    cleanup_apply.undo(process, cleanup_id, person)
    with process.read() as session:
        return _show(session, cleanup_id, utc_now())


@router.post("/leases/{lease_id}/force-release", summary="End an active lease of another person")
def force_release(lease_id: PlainText, person: StaffOnly, process: ProcessDep) -> LeaseView:
    """End an active lease. Its node is quarantined first; its jobs save and stop.

    Resume the node when all is well.
    """
    now = utc_now()
    with process.write() as (session, bells):
        lease = find_lease(session, lease_id, person, lock=True)
        if lease.state is not LeaseState.ACTIVE:
            raise Conflict(
                f"{lease.id} is {lease.state}; only an active lease can be ended by force. A "
                "booked lease can be cancelled."
            )
        message = f"Ended by {person.name}."
        cleanup_apply.force_release(session, lease, person, bells, now=now, message=message)
        audit.record(
            session, person.id, "lease.force_release", lease.id, now=now, owner=lease.user_id
        )
        session.flush()
        return show_lease(session, lease.id, person)


@router.put("/leases/{lease_id}/tags", summary="Tag or protect a lease")
def put_tags(
    lease_id: PlainText, wanted: LeaseTags, person: StaffOnly, process: ProcessDep
) -> LeaseView:
    """Set the tags and the protection of a lease.

    Clean-ups find leases by tags, and never remove protected ones.
    """
    now = utc_now()
    with process.write() as (session, _):
        lease = find_lease(session, lease_id, person, lock=True)
        before: dict[str, object] = {"tags": lease.tags, "protected": lease.protected}
        lease.tags, lease.protected = sorted(set(wanted.tags)), wanted.protected
        after: dict[str, object] = {"tags": lease.tags, "protected": lease.protected}
        if after != before:
            audit.record(
                session, person.id, "lease.tag", lease.id, now=now, before=before, after=after
            )
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


def _show(session: Session, cleanup_id: str, now: datetime) -> CleanupView:
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
        rows=[_row_view(row, lease, user, node) for row, lease, user, node, _ in rows],
    )


def _row_view(row: CleanupRow, lease: Lease, user: str, node: str) -> CleanupRowView:
    return CleanupRowView(
        lease=lease.id,
        user=user,
        node=node,
        hold_start=lease.hold_start,
        hold_end=lease.hold_end,
        hours=_hours(lease),
        state=lease.state,
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
