"""Leases of a person who loses access: booked ones are cancelled, active ones save and end."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.web.bells import Bells
from api.web.identity import Person
from core.jobs.stopping import stop
from core.leases import leases, waitlist
from core.states import LeaseState
from core.tables.kinds import WaitState
from core.tables.leases import Lease, Wait
from core.tables.people import User


def give_back_leases(
    session: Session,
    user: User,
    person: Person,
    bells: Bells,
    *,
    reason: str = "",
    now: datetime,
) -> dict[str, object]:
    """Cancel the booked leases of `user`, stop the active ones, take `user` off the waitlist.

    Returns the ids of cancelled leases, stopped leases and left waits, for the audit log.
    """
    message = f"The account of {user.name} was disabled by {person.name}."
    if reason:
        message += f" Reason: {reason.rstrip('.')}."
    rows = session.scalars(
        select(Lease)
        .where(Lease.user_id == user.id, Lease.state.in_((LeaseState.BOOKED, LeaseState.ACTIVE)))
        .order_by(Lease.id)
        .with_for_update(key_share=True)
    ).all()
    cancelled, stopped = [], []
    for lease in rows:
        if lease.state is LeaseState.BOOKED:
            if leases.cancel(session, lease, now=now, message=message, actor=person.id):
                cancelled.append(lease.id)
        else:
            found = stop(session, lease, now=now, message=message, actor=person.id)
            bells.nodes |= found.node_names
            bells.jobs |= found.job_ids
            stopped.append(lease.id)
    waits = session.scalars(
        select(Wait).where(
            Wait.user_id == user.id, Wait.state.in_((WaitState.WAITING, WaitState.OFFERED))
        )
    ).all()
    for wait in waits:
        waitlist.leave(session, wait, now=now)
    bells.scheduler = bells.scheduler or bool(rows or waits)
    return {"cancelled": cancelled, "stopped": stopped, "left": [wait.id for wait in waits]}
