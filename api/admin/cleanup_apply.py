"""Application of a previewed clean-up, row by row, and its undoing where the hours are still free.

Each row is a transaction of its own that looks again: a lease that has changed since the preview,
or is no longer wrong, is skipped, and its row says why. If a process dies in the middle, applying
again continues.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.admin.cleanup_plan import FaultyLease, find, version_of
from api.admin.schemas_cleanups import Selector
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process
from core.base.clock import utc_now
from core.base.errors import Conflict, HourTaken
from core.base.reasons import ReasonCode
from core.jobs.stopping import stop
from core.leases import leases
from core.leases.leases import Terms
from core.leases.situation import lock_user
from core.notices.notices import NoticeKind, notify
from core.policy.grid import Timetable, usable_end
from core.states import NODE_EDGES, LeaseState, NodeState
from core.tables.admin import Cleanup, CleanupRow
from core.tables.kinds import RowResult
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.people import Membership
from core.transitions import advance

UNDO_WITHIN = timedelta(hours=24)


def apply(
    process: Process, cleanup_id: str, given_hash: str, leave: Collection[str], person: Person
) -> None:
    """Remove the leases of a preview that are still as they were shown, except those in `leave`.

    Applying again changes nothing. Raises Conflict for another hash, and for a preview that is too
    old.
    """
    with process.read() as session:
        cleanup = session.get_one(Cleanup, cleanup_id)
        rows = session.scalars(
            select(CleanupRow)
            .where(CleanupRow.cleanup_id == cleanup_id)
            .order_by(CleanupRow.position)
        ).all()
    if cleanup.sha256 != given_hash:
        raise Conflict(
            "hash: it differs from the preview's hash. Read the preview again, then apply it "
            "with its own hash.",
            code="stale_hash",
            param="hash",
        )
    if cleanup.applied_at is not None:
        return
    begun = any(row.result not in (RowResult.PLANNED, RowResult.SPARED) for row in rows)
    if not begun and utc_now() >= cleanup.expires_at:
        raise Conflict(
            "This preview is too old: leases may have changed since. Make a new one.",
            code="preview_expired",
        )
    for row in rows:
        if row.result is RowResult.PLANNED:
            process.transact(_do, cleanup, row.position, leave, person)
    process.transact(_finish, cleanup_id, person)


def undo(process: Process, cleanup_id: str, person: Person) -> None:
    """Book the removed leases again for their owners if the hours are free and have not begun.

    Raises Conflict if the clean-up was not applied, or was applied more than UNDO_WITHIN ago.
    """
    now = utc_now()
    with process.read() as session:
        cleanup = session.get_one(Cleanup, cleanup_id)
        positions = session.scalars(
            select(CleanupRow.position)
            .where(CleanupRow.cleanup_id == cleanup_id, CleanupRow.result == RowResult.REMOVED)
            .order_by(CleanupRow.position)
        ).all()
    if cleanup.applied_at is None:
        raise Conflict(
            "This clean-up was not applied, so there is nothing to undo.", code="not_applied"
        )
    if cleanup.undone_at is None and now >= cleanup.applied_at + UNDO_WITHIN:
        raise Conflict(
            "This clean-up was applied more than a day ago and can no longer be undone. "
            "Grant the owners an exception for their loss, such as one more block of a "
            "quota, so that they can book again.",
            code="too_late",
        )
    for position in positions:
        process.transact(_restore, cleanup_id, position, person, now=now)
    process.transact(_note_undo, cleanup_id, person, now=now)


def _do(
    session: Session,
    bells: Bells,
    cleanup: Cleanup,
    position: int,
    leave: Collection[str],
    person: Person,
) -> None:
    now = utc_now()
    row = _locked_row(session, cleanup.id, position)
    if row.result is not RowResult.PLANNED:
        return  # another request applies it at the same time
    owner_id = session.scalars(select(Lease.user_id).where(Lease.id == row.lease_id)).one()
    lock_user(session, owner_id)  # no lease of the owner is booked or cancelled meanwhile
    lease = session.get_one(Lease, row.lease_id)
    leases.lock_nodes(session, [lease.node_id])
    leases.lock_lease(session, lease)
    if lease.id in leave:
        row.result, row.outcome = RowResult.SKIPPED, f"Left out by {person.name}."
        return
    if version_of(lease) != row.version:
        row.result, row.outcome = (
            RowResult.SKIPPED,
            f"It has changed since the preview: it is {lease.state} now.",
        )
        return
    found = _still_wrong(session, cleanup, row, owner_id, now)
    if found is None:
        row.result, row.outcome = (
            RowResult.SKIPPED,
            "It no longer matches: its owner has corrected it.",
        )
        return
    before = _facts(lease)
    message = f"Removed by {person.name}: {row.message} {cleanup.reason}"
    settlement = replace(found.settlement, message=message)
    if lease.state is LeaseState.BOOKED:
        leases.cancel(
            session, lease, now=now, message=message, actor=person.id, settlement=settlement
        )
    else:
        force_release(session, lease, person, bells, now=now, message=message)
        lease.settled_as = settlement.settled_as
        if not settlement.counts:
            leases.refund(session, lease, why=settlement.settled_as, message=message, now=now)
    row.result = RowResult.REMOVED
    row.refund_hours = found.refund_hours
    session.flush()
    audit.record(
        session,
        person.id,
        "cleanup.remove",
        lease.id,
        now=now,
        cleanup=cleanup.id,
        rule=row.rule,
        owner=lease.user_id,
        before=before,
        after=_facts(lease),
    )
    bells.scheduler = True


def force_release(
    session: Session, lease: Lease, person: Person, bells: Bells, *, now: datetime, message: str
) -> None:
    """End an active lease against its owner's will, and quarantine its node until staff look."""
    node = session.get_one(Node, lease.node_id)
    if NodeState.QUARANTINED in NODE_EDGES[node.state]:
        advance(
            session,
            node,
            NodeState.QUARANTINED,
            now=now,
            reason_code=ReasonCode.FORCE_RELEASE,
            message=f"Quarantined by {person.name}, who ended a lease on it by force. Check "
            "it, then resume it.",
            actor=person.id,
        )
    stopped = stop(session, lease, now=now, message=message, actor=person.id)
    bells.nodes |= stopped.node_names
    bells.jobs |= stopped.job_ids
    bells.scheduler = True


def _still_wrong(
    session: Session, cleanup: Cleanup, row: CleanupRow, owner_id: str, now: datetime
) -> FaultyLease | None:
    """Look again for the same fault in the same lease; return None if it is gone."""
    selector = Selector.model_validate(cleanup.selector)
    people = {owner_id}
    if row.rule == ReasonCode.LAB_CAP:
        labs = select(Membership.lab_id).where(Membership.user_id == owner_id)
        people |= set(
            session.scalars(select(Membership.user_id).where(Membership.lab_id.in_(labs)))
        )
    found = find(session, selector, why=cleanup.reason, now=now, user_ids=people)
    return next(
        (
            one
            for one in found
            if one.lease.id == row.lease_id and one.code == row.code and not one.spared
        ),
        None,
    )


def _finish(session: Session, _: Bells, cleanup_id: str, person: Person) -> None:
    """Mark the clean-up as applied, and notify each owner once."""
    now = utc_now()
    cleanup = _locked(session, cleanup_id)
    if cleanup.applied_at is not None:
        return
    cleanup.applied_at, cleanup.applied_by = now, person.id
    rows = session.execute(
        select(CleanupRow, Lease, Node.name)
        .join(Lease, Lease.id == CleanupRow.lease_id)
        .join(Node, Node.id == Lease.node_id)
        .where(CleanupRow.cleanup_id == cleanup_id)
        .order_by(Lease.hold_start)
    ).all()
    removed: dict[str, list[list[str]]] = defaultdict(list)
    for row, lease, node in rows:
        if row.result is RowResult.REMOVED:
            refund = f"{row.refund_hours} h refunded" if row.refund_hours else "not refunded"
            line = [lease.hold_start.isoformat(), node, row.message, refund, lease.id]
            removed[lease.user_id].append(line)
    for user_id, lines in removed.items():
        many = "1 of your leases was" if len(lines) == 1 else f"{len(lines)} of your leases were"
        facts: dict[str, object] = {
            "message": f"{many} removed by staff: {cleanup.reason}",
            "rows": lines,
        }
        notify(session, user_id, NoticeKind.LEASES_CLEANED, cleanup_id, facts, now=now)
    results = [row.result for row, _, _ in rows]
    audit.record(
        session,
        person.id,
        "cleanup.apply",
        cleanup_id,
        now=now,
        reason=cleanup.reason,
        hash=cleanup.sha256,
        removed=results.count(RowResult.REMOVED),
        skipped=results.count(RowResult.SKIPPED),
    )


def _note_undo(
    session: Session, _: Bells, cleanup_id: str, person: Person, *, now: datetime
) -> None:
    """Mark the clean-up as undone."""
    row = _locked(session, cleanup_id)
    if row.undone_at is None:
        row.undone_at, row.undone_by = now, person.id
        audit.record(session, person.id, "cleanup.undo", cleanup_id, now=now)


def _restore(
    session: Session, bells: Bells, cleanup_id: str, position: int, person: Person, *, now: datetime
) -> None:
    bells.scheduler = True
    row = _locked_row(session, cleanup_id, position)
    if row.result is not RowResult.REMOVED:
        return
    old = session.get_one(Lease, row.lease_id)
    lock_user(session, old.user_id)
    if old.hold_start <= now or old.state is not LeaseState.CANCELLED:
        row.result, row.outcome = RowResult.LOST, "Its start has passed, so it cannot be restored."
        return
    node = session.get_one(Node, old.node_id)
    terms = Terms(
        timetable=Timetable(
            checkpoint_s=old.checkpoint_s,
            stop_s=old.grace_s,
            kill_after_stop_s=old.kill_after_s,
        ),
        lab_id=old.lab_id,
        policy_id=old.policy_id,
        policy_version=old.policy_version,
        verdict=old.verdict,
    )
    message = f"Restored by {person.name}: the clean-up was undone."
    try:
        new = leases.take(
            session,
            user_id=old.user_id,
            node=node,
            kind=old.kind,
            start=old.hold_start,
            end=old.hold_end,
            grace_s=old.grace_s,
            now=now,
            actor=person.id,
            message=message,
            terms=terms,
        )
    except HourTaken as error:
        row.result, row.outcome = RowResult.LOST, error.message
        return
    new.tags = old.tags
    leases.refund(session, old, why=ReasonCode.RESTORED, message=message, now=now)
    old.settled_as = ReasonCode.RESTORED
    leases.follow(session, old.id, new.id)
    row.result, row.restored_as = RowResult.RESTORED, new.id
    session.flush()
    audit.record(
        session,
        person.id,
        "cleanup.restore",
        new.id,
        now=now,
        cleanup=cleanup_id,
        before=_facts(old),
        after=_facts(new),
    )
    end = usable_end(new.hold_end, new.grace_s)
    facts: dict[str, object] = {
        "message": "A lease that staff had removed has been restored.",
        "hold_start": new.hold_start.isoformat(),
        "usable_end": end.isoformat(),
        "node": node.name,
        "lease": new.id,
    }
    notify(session, new.user_id, NoticeKind.LEASE_RESTORED, new.id, facts, now=now)


def _locked(session: Session, cleanup_id: str) -> Cleanup:
    return session.scalars(select(Cleanup).where(Cleanup.id == cleanup_id).with_for_update()).one()


def _locked_row(session: Session, cleanup_id: str, position: int) -> CleanupRow:
    return session.scalars(
        select(CleanupRow)
        .where(CleanupRow.cleanup_id == cleanup_id, CleanupRow.position == position)
        .with_for_update()
    ).one()


def _facts(lease: Lease) -> dict[str, object]:
    return {
        "state": str(lease.state),
        "node": lease.node_id,
        "hold_start": lease.hold_start.isoformat(),
        "hold_end": lease.hold_end.isoformat(),
        "counts": lease.counts,
    }
