"""/v1/invites: links with which people make their own account, and join a lab with it."""

from fastapi import APIRouter, Request, Response

from api.people.users import checked_zone
from api.sign_in import invites
from api.sign_in.schemas import InviteAnswer, InviteMade, InviteView, NewInvite, TokenMade
from api.sign_in.sign_ins import Watched, address_of
from api.web.auth import Public, SignedIn, refuse_cross_site, set_session_cookie
from api.web.idempotency import IdempotencyKey, keyed
from api.web.passwords import hash_password
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.secret_text import new_secret

router = APIRouter(prefix="/v1/invites", tags=["people"])


@router.post("", status_code=201, summary="Invite a person")
def create_invite(
    wanted: NewInvite, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> InviteMade:
    """Make a link that makes one account. The link is shown only in this answer.

    Administrators may invite anybody; a lead of a lab may invite into that lab.
    """
    now = utc_now()
    secret = new_secret()
    sent = keyed(person, key, "/v1/invites", wanted.model_dump_json().encode())
    view = process.transact(
        invites.create_invite,
        wanted,
        person,
        sent=sent,
        now=now,
        secret=secret,
    )
    url = f"{process.url}/invite?secret={secret}"
    return InviteMade(**view.model_dump(), url=url, secret=secret)


@router.get("", summary="List invitations")
def list_invites(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[InviteView]:
    """Return invitations, newest first: all of them for staff, otherwise those that you made."""
    with process.read() as session:
        return invites.list_invites(session, person, limit=limit, after=after)


@router.delete("/{invite_id}", status_code=204, summary="Revoke an invitation")
def revoke_invite(invite_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Take an invitation back: its link stops working. An account made by it is kept."""
    now = utc_now()
    process.transact(invites.revoke_invite, invite_id, person, now=now)
    return Response(status_code=204)


@router.post(
    "/accept",
    status_code=201,
    dependencies=[Public, Watched],
    summary="Create an account by invitation",
)
def accept_invite(
    answer: InviteAnswer, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """Make an account by an invitation, with a name and password of your choice, and sign in.

    An invitation makes one account: of two requests with the same link, one succeeds.
    """
    refuse_cross_site(request, process)
    process.limits.check_sign_in(address_of(request))
    with process.read() as session:  # no stranger makes us hash
        invites.find(session, answer.secret)
    password_hash = hash_password(answer.password)
    zone = checked_zone(answer.zone)
    now = utc_now()
    made = process.transact(
        invites.accept_invite, answer, request, now=now, password_hash=password_hash, zone=zone
    )
    set_session_cookie(response, made.secret, process)
    return made
