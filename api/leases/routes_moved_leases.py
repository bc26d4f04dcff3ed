"""/v1/admin/moved-leases: leases whose clock time differs since the rules of a time zone changed.

The lease itself never moves: its hours are kept in UTC. Staff see the affected leases, and have
their owners told.
"""

from fastapi import APIRouter

from api.leases import moved_leases
from api.policies.schemas import AffectedLease
from api.web.auth import StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import Page
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/admin/moved-leases", tags=["administration"])


@router.get("", summary="List leases whose clock time has changed")
def list_moved_leases(person: StaffOnly, process: ProcessDep) -> Page[AffectedLease]:
    """List future leases that start at another clock time than was shown when they were booked,
    because the time zone data on this machine has changed since."""
    with process.read() as session:
        return moved_leases.list_moved_leases(session)


@router.post("", summary="Notify owners of moved leases")
def tell_owners(person: StaffOnly, process: ProcessDep) -> Page[AffectedLease]:
    """Tell the owners of these leases. Each lease is told once and then no longer listed."""
    now = utc_now()
    return process.transact(moved_leases.tell_owners, person, now=now)
