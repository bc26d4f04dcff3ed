"""Leases whose clock time has moved with the rules of a time zone."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from api.policies.policy_report import OffendingLease, booked_ahead, tell
from api.policies.schemas import AffectedLease
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.schemas import Page
from core.base.clock import utc_now
from core.notices.notices import NoticeKind
from core.policy.local_time import has_moved, show, stamp


def list_moved_leases(session: Session) -> Page[AffectedLease]:
    """Return the leases that start at another clock time than was shown."""
    return Page[AffectedLease](data=[one.view() for one in _moved(session, utc_now())])


def tell_owners(
    session: Session, _: Bells, person: Person, *, now: datetime
) -> Page[AffectedLease]:
    """Notify the owners of moved leases, once for each lease."""
    moved = list(_moved(session, now))
    told = [one.view() for one in moved]
    for one in moved:
        tell(session, one, one.message, NoticeKind.LEASE_CLOCK_MOVED, now=now)
        verdict = dict(one.lease.verdict or {})
        shown = stamp(one.lease.hold_start, ZoneInfo(verdict["zone"]))
        one.lease.verdict = {**verdict, "local_start": shown}
    if told:
        ids = [one.id for one in told]
        audit.record(session, person.id, "lease.tell_moved", "leases", now=now, leases=ids)
    return Page[AffectedLease](data=told)


def _moved(session: Session, now: datetime) -> Iterator[OffendingLease]:
    for lease, owner, node in booked_ahead(session, now):
        shown = (lease.verdict or {}).get("local_start")
        if not shown or datetime.fromisoformat(shown) != lease.hold_start:
            continue
        zone = ZoneInfo(str((lease.verdict or {})["zone"]))
        if has_moved(shown, zone):
            message = (
                f"it was booked for {shown}; the clock rules of {zone.key} have changed, and it "
                f"now starts at {show(lease.hold_start, zone)}. Its hours are the same."
            )
            yield OffendingLease(lease, owner, node, ("clock_moved",), message)
