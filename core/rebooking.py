"""Who cancelled too late to be refunded is refunded when others have all the hours.

What others have only in part is charged to them from there on: `core.leases` sees to that.
"""

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from core import leases
from core.tables.leases import Lease


def refund_rebooked(session: Session, taken: Lease, *, now: datetime) -> list[str]:
    """Refund what was cancelled of the hours that `taken` has got, once others have all of it; the
    ids."""
    waiting = session.scalars(
        select(Lease)
        .where(
            Lease.node_id == taken.node_id,
            Lease.refund_if_rebooked,
            Lease.counts,
            Lease.cancelled_at.is_not(None),
            Lease.hold_start < taken.hold_end,
            Lease.hold_end > taken.hold_start,
            Lease.user_id != taken.user_id,
        )
        .order_by(Lease.id)
        .with_for_update(key_share=True)
    ).all()
    refunded = []
    for lease in waiting:
        taken_hours = session.execute(
            select(Lease.hold_start, Lease.hold_end).where(
                Lease.node_id == lease.node_id,
                Lease.user_id != lease.user_id,
                Lease.cancelled_at.is_(None),
                Lease.hold_start < lease.hold_end,
                Lease.hold_end > lease.hold_start,
            )
        )
        others = [(start, end) for start, end in taken_hours]
        if covered(lease.hold_start, lease.hold_end, others):
            message = "Refunded: others have booked its hours."
            leases.refund(session, lease, why="rebooked", message=message, now=now)
            refunded.append(lease.id)
    return refunded


def covered(start: datetime, end: datetime, spans: Iterable[tuple[datetime, datetime]]) -> bool:
    """Whether the spans leave no moment of [start, end)."""
    reached = start
    for span_start, span_end in sorted(spans):
        if span_start > reached or reached >= end:
            break
        reached = max(reached, span_end)
    return reached >= end
