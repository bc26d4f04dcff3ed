"""/v1/leases: book a node for whole hours, look, give back."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import AwareDatetime

from api import audit, booking
from api.auth import SignedIn
from api.idempotency import IdempotencyKey, fingerprint, once
from api.process import ProcessDep
from api.schemas import AvailabilityView, LeaseView, NewLease, Page
from api.text_types import After, Limit, PlainText
from core.clock import utc_now
from core.errors import BadRequest
from core.states import LeaseState
from core.tables import Lease, User

router = APIRouter(prefix="/v1/leases", tags=["leases"])

MAX_HOURS_SHOWN = 24 * 22


@router.post("", status_code=201, summary="Book a block")
def book_lease(
    wanted: NewLease,
    person: SignedIn,
    process: ProcessDep,
    key: IdempotencyKey = None,
) -> LeaseView:
    """Whole hours on a free node of a class, or on a named node. Of several who ask, one wins."""
    now = utc_now()
    body_sha256 = fingerprint("POST", "/v1/leases", wanted.model_dump_json().encode())
    with process.write() as (session, bells):

        def make() -> str:
            return booking.book(session, person.id, wanted, policy=process.policy, now=now)

        lease_id = once(
            session, user_id=person.id, key=key, body_sha256=body_sha256, now=now, make=make
        )
        bells.scheduler = True
        return booking.show_lease(session, lease_id, person)


@router.get("", summary="List leases")
def list_leases(
    person: SignedIn,
    process: ProcessDep,
    state: Annotated[list[LeaseState] | None, Query(description="Only in these states.")] = None,
    user: Annotated[
        PlainText | None, Query(description="For staff: a person's name, or `all`.")
    ] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[LeaseView]:
    """Your leases, the last made first."""
    query = booking.leases_with_context().order_by(Lease.id.desc()).limit(limit + 1)
    if user is None or not person.is_staff:
        query = query.where(Lease.user_id == person.id)
    elif user != "all":
        query = query.where(User.name == user)
    if state:
        query = query.where(Lease.state.in_(state))
    if after:
        query = query.where(Lease.id < after)
    with process.read() as session:
        rows = session.execute(query).all()
    return Page[LeaseView](
        data=[booking.lease_view(*row) for row in rows[:limit]], has_more=len(rows) > limit
    )


@router.get("/availability", summary="When nodes are free")
def availability(
    person: SignedIn,
    process: ProcessDep,
    start: Annotated[AwareDatetime, Query(description="RFC 3339, with its offset.")],
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS_SHOWN)] = 24,
    node_class: Annotated[PlainText | None, Query(description="Default: every class.")] = None,
) -> AvailabilityView:
    """For every hour from `start` on, the nodes that could be booked for it."""
    _require_sane_year(start.year)
    with process.read() as session:
        return booking.availability(session, node_class, start, hours)


@router.get("/{lease_id}", summary="One lease")
def get_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> LeaseView:
    """A lease and what runs in it."""
    with process.read() as session:
        return booking.show_lease(session, lease_id, person)


@router.delete("/{lease_id}", status_code=204, summary="Give a lease back")
def delete_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Cancel it before it starts, or end it early: its jobs save and go back to the queue."""
    now = utc_now()
    with process.write() as (session, bells):
        lease = booking.find_lease(session, lease_id, person, lock=True)
        booking.give_back(session, lease, person, bells, now=now)
        if lease.user_id != person.id:
            audit.record(
                session, person.id, "lease.give_back", lease.id, now=now, owner=lease.user_id
            )
    return Response(status_code=204)


def _require_sane_year(year: int) -> None:
    if not 2000 <= year <= 9000:
        raise BadRequest(f"start: the year {year} is not one to book in.", param="start")
