"""/v1/waitlist: wait for hours that are not free, accept or decline offers."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.leases import waits
from api.leases.schemas import LeaseView, NewWait, WaitView
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.tables.kinds import WaitState

router = APIRouter(prefix="/v1/waitlist", tags=["leases"])


@router.post("", status_code=201, summary="Join the waitlist")
def join_waitlist(
    wanted: NewWait, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> WaitView:
    """Wait for a number of hours on a node, or on any node of a class, with any start in a range.

    Hours that become free are held for the first in line, for ten minutes from the moment at which
    they are told. An entry that no waiting can fulfil is refused, with the reasons for
    which a booking is refused.
    """
    sent = keyed(person, key, "/v1/waitlist", wanted.model_dump_json().encode())
    with process.read() as session:  # it may take a while, so not where others wait to write
        if sent.made_before(session) is None:
            waits.require_hope(session, person, wanted, now=utc_now())

    return process.transact(waits.join, wanted, person, sent=sent)


@router.get("", summary="List my waitlist entries")
def list_waitlist(
    person: SignedIn,
    process: ProcessDep,
    state: Annotated[
        list[WaitState] | None, Query(description="Only those in these states.")
    ] = None,
    user: Annotated[
        PlainText | None, Query(description="For staff: `all` lists everybody's entries.")
    ] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[WaitView]:
    """List your present and past waitlist entries, newest first."""
    return waits.list_waits(process, person, state, user, limit=limit, after=after)


@router.get("/{wait_id}", summary="One waitlist entry")
def get_wait(wait_id: PlainText, person: SignedIn, process: ProcessDep) -> WaitView:
    """Return a waitlist entry, its place in line and its offer."""
    return waits.show_wait(process, person, wait_id)


@router.delete("/{wait_id}", status_code=204, summary="Leave the waitlist")
def leave_waitlist(wait_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Withdraw a waitlist entry. A block that is held for it is free again."""

    process.transact(waits.leave, wait_id, person)
    return Response(status_code=204)


@router.post("/{wait_id}/accept", status_code=201, summary="Accept an offer")
def accept_offer(wait_id: PlainText, person: SignedIn, process: ProcessDep) -> LeaseView:
    """Book the block that is held for this entry, until the offer expires. A repeated call returns
    the same lease."""

    return process.transact(waits.accept, wait_id, person)


@router.post("/{wait_id}/decline", summary="Decline an offer")
def decline_offer(wait_id: PlainText, person: SignedIn, process: ProcessDep) -> WaitView:
    """Decline the block, so that others may have it. The entry goes to the end of the line."""

    return process.transact(waits.decline, wait_id, person)
