"""/v1/leases: preview, book, swap, extend, release, give back."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.leases import booking
from api.leases.availability import availability as availability_of
from api.leases.clock_times import moment_of
from api.leases.lease_views import LEASES_WITH_CONTEXT, find_lease, lease_views, show_lease
from api.leases.openings import Openings
from api.leases.schemas import (
    AvailabilityView,
    Block,
    Extension,
    LeaseChange,
    LeaseView,
    NewLease,
    VerdictView,
)
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.owners import Whose, of_whom
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import AskedMoment, Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest, Forbidden
from core.states import LeaseState
from core.tables.leases import Lease

router = APIRouter(prefix="/v1/leases", tags=["leases"])

MAX_HOURS_SHOWN = 24 * 22


@router.post("", status_code=201, summary="Book a block")
def book_lease(
    wanted: NewLease,
    person: SignedIn,
    process: ProcessDep,
    key: IdempotencyKey = None,
) -> LeaseView:
    """Book hours on free nodes of a class, or on named nodes, from a start or at the best start of
    a day.

    If several people ask for an hour, one of them gets it. Several nodes are booked all or none;
    the answer is the first of their leases, and the others name it as `together`.
    """
    sent = keyed(person, key, "/v1/leases", wanted.model_dump_json().encode())

    return process.transact(booking.book_once, wanted, person, sent=sent)


@router.get("", summary="List leases")
def list_leases(
    person: SignedIn,
    process: ProcessDep,
    state: Annotated[
        list[LeaseState] | None, Query(description="Only those in these states.")
    ] = None,
    user: Whose = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[LeaseView]:
    """List your leases, newest first."""
    query = LEASES_WITH_CONTEXT.where(of_whom(Lease.user_id, user, person))
    if state:
        query = query.where(Lease.state.in_(state))
    with process.read() as session:
        rows = page(session, query, Lease.id, after=after, limit=limit)
        data = lease_views(session, rows)
    return Page[LeaseView](data=data, has_more=rows.has_more)


@router.post("/verdict", summary="Preview a booking")
def judge_block(wanted: Block, person: SignedIn, process: ProcessDep) -> VerdictView:
    """Judge a block: whether it would be booked now, its charge, the remaining quotas, and, for
    every node that will not do, the reasons with their numbers and the next starts. Changes
    nothing."""
    with process.read() as session:
        return booking.preview(session, person, wanted, now=utc_now())


@router.get("/availability", summary="List free hours of nodes")
def availability(
    person: SignedIn,
    process: ProcessDep,
    start: Annotated[AskedMoment, Query(description="RFC 3339, with an offset.")],
    hours: Annotated[int, Query(ge=1, le=MAX_HOURS_SHOWN)] = 24,
    node_class: Annotated[
        PlainText | None, Query(description="Only nodes of this class. Default: every class.")
    ] = None,
    block_hours: Annotated[
        int | None,
        Query(
            ge=1,
            le=168,
            description="Also list the starts at which you could book a block of this many hours.",
        ),
    ] = None,
    any_length: Annotated[
        bool,
        Query(
            description="Also list the starts at which you could book a block of any allowed "
            "length."
        ),
    ] = False,
    gpus: Annotated[
        int | None,
        Query(
            ge=1,
            le=64,
            description="GPUs, or CPU slots, that a block needs of one node. Default: all of it.",
        ),
    ] = None,
    node: Annotated[
        list[PlainText] | None, Query(max_length=100, description="Only these nodes, by name.")
    ] = None,
) -> AvailabilityView:
    """List, for every hour from `start` on, the nodes that could be booked for it, and the reasons
    for the others."""
    start = moment_of(start, None, param="start")
    with process.read() as session:
        return availability_of(
            session,
            person,
            process.service(Openings),
            node_class=node_class,
            names=node or (),
            start=start,
            hours=hours,
            block_hours=block_hours,
            any_length=any_length,
            gpus=gpus,
            now=utc_now(),
        )


@router.get("/{lease_id}", summary="One lease")
def get_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> LeaseView:
    """Return a lease and the jobs that run in it."""
    with process.read() as session:
        return show_lease(session, lease_id, person)


@router.get(
    "/{lease_id}/calendar",
    summary="One lease as a calendar file",
    response_class=Response,
    responses={200: {"content": {"text/calendar": {"schema": {"type": "string"}}}}},
)
def download_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Return a lease as iCalendar, in UTC, to add to one's own calendar. It does not follow later
    changes; a calendar feed does."""
    from api.leases.calendar_files import calendar_of

    with process.read() as session:
        calendar = calendar_of(session, find_lease(session, lease_id, person))
    return Response(
        calendar.to_ical(),
        media_type="text/calendar",
        headers={"Content-Disposition": f'attachment; filename="{lease_id}.ics"'},
    )


@router.patch("/{lease_id}", summary="Change a lease")
def change_lease(
    lease_id: PlainText, change: LeaseChange, person: SignedIn, process: ProcessDep
) -> LeaseView:
    """Give a lease a later end, judged like an extension. Staff may protect the lease from
    clean-ups."""
    if change.protected is not None and not person.is_staff:
        raise Forbidden(
            "protected: only staff may protect a lease from clean-ups.", param="protected"
        )

    return process.transact(booking.change_lease, lease_id, change, person)


@router.post("/{lease_id}/extend", summary="Extend a lease")
def extend_lease(
    lease_id: PlainText, wanted: Extension, person: SignedIn, process: ProcessDep
) -> LeaseView:
    """Extend a lease by whole hours, if the node is free and the policy allows it."""
    if (wanted.hours is None) == (wanted.end is None):
        raise BadRequest("hours: give either hours or end.", param="hours")

    return process.transact(booking.extend_lease, lease_id, wanted, person)


@router.post("/{lease_id}/release", summary="Release a lease early")
def release_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> LeaseView:
    """Cancel a lease before it starts, or end it early: its jobs save and go back to the queue. Its
    hours are free from the next full hour that leaves room for cleaning up."""

    return process.transact(booking.release_lease, lease_id, person)


@router.post("/{lease_id}/swap", status_code=201, summary="Swap a lease for another block")
def swap_lease(
    lease_id: PlainText, wanted: Block, person: SignedIn, process: ProcessDep
) -> LeaseView:
    """Exchange a booked lease for another block. The old lease stops counting only if the new one
    is granted; otherwise it stays as it is. Its waiting jobs move to the new lease."""

    return process.transact(booking.swap_lease, lease_id, wanted, person)


@router.post("/{lease_id}/restore", status_code=201, summary="Restore a cancelled lease")
def restore_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> LeaseView:
    """Book a cancelled block again, if it is still free; the cancelled lease then no longer counts.
    The answer is a new lease; jobs that named the old one move to it."""

    return process.transact(booking.restore_lease, lease_id, person)


@router.delete("/{lease_id}", status_code=204, summary="Cancel a lease")
def delete_lease(lease_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Give a lease back, as `release` does."""

    process.transact(booking.delete_lease, lease_id, person)
    return Response(status_code=204)
