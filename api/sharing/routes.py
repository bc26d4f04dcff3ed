"""/v1/shares: things that you let others read."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.sharing import shares
from api.sharing.schemas import NewShare, ShareView
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.tables.kinds import SharedKind

router = APIRouter(prefix="/v1/shares", tags=["sharing"])


@router.post("", status_code=201, summary="Share a thing")
def share(
    body: NewShare, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> ShareView:
    """Let a person, a group or everybody read a thing of yours. They name it OWNER/NAME in jobs,
    find it in their lists, and cannot change it. What is shared so already stays as it is.

    The next versions of a model are shared with it.
    """
    sent = keyed(person, key, "/v1/shares", body.model_dump_json().encode())
    return process.transact(shares.share, person, body, sent, now=utc_now())


@router.get("", summary="List what you share")
def list_shares(
    person: SignedIn,
    process: ProcessDep,
    kind: Annotated[SharedKind | None, Query(description="Only things of this kind.")] = None,
    thing: Annotated[PlainText | None, Query(description="Only this one, by its id.")] = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[ShareView]:
    """Return what you share and with whom, newest first."""
    with process.read() as session:
        return shares.list_shares(session, person, kind, thing, limit=limit, after=after)


@router.delete("/{share_id}", status_code=204, summary="End a share")
def unshare(share_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Stop new uses by those with whom it was shared. Jobs that were submitted with it keep its
    bytes."""
    process.transact(shares.unshare, share_id, person, now=utc_now())
    return Response(status_code=204)
