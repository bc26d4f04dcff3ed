"""/v1/invites: links with which people make their own account, and join a lab with it."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from sqlalchemy import select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from api.people.users import add_user, checked_zone, find_lab
from api.sign_in.routes import start_session
from api.sign_in.schemas import InviteAnswer, InviteMade, InviteView, NewInvite, TokenMade
from api.sign_in.sign_ins import Watched, address_of
from api.web import audit
from api.web.auth import Public, SignedIn, refuse_cross_site, set_session_cookie
from api.web.credentials import digest, new_secret
from api.web.idempotency import IdempotencyKey, fingerprint, made_before, remember
from api.web.identity import Person
from api.web.paging import page
from api.web.passwords import hash_password
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, NotFound, Unauthenticated
from core.base.ids import Kind, new_id
from core.leases.situation import lock_user
from core.tables.kinds import Role
from core.tables.people import Invite, Lab, Membership, User

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
    body_sha256 = fingerprint("POST", "/v1/invites", wanted.model_dump_json().encode())
    with process.write() as (session, _):
        lock_user(session, person.id)
        known = made_before(session, user_id=person.id, key=key, body_sha256=body_sha256)
        if known is not None:
            raise Conflict(
                f"This request already created {known}, and its link was shown then. Take "
                "that invitation back, and create another with a new key.",
                code="shown_once",
            )
        lab = find_lab(session, wanted.lab) if wanted.lab is not None else None
        _require_may_invite(session, person, lab)
        invite = Invite(
            id=new_id(Kind.INVITE),
            sha256=digest(secret),
            lab_id=lab.id if lab else None,
            email=wanted.email,
            attributes=wanted.attributes,
            invited_by=person.id,
            created_at=now,
            expires_at=now + timedelta(days=wanted.days),
        )
        session.add(invite)
        audit.record(
            session,
            person.id,
            "invite.make",
            invite.id,
            now=now,
            lab=lab.name if lab else None,
            email=wanted.email,
        )
        remember(
            session,
            user_id=person.id,
            key=key,
            body_sha256=body_sha256,
            subject=invite.id,
            now=now,
        )
        session.flush()
        view = _view(session, invite, now)
    url = f"{process.url}/invite?secret={secret}"
    return InviteMade(**view.model_dump(), url=url, secret=secret)


@router.get("", summary="List invitations")
def list_invites(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[InviteView]:
    """Return invitations, newest first: all of them for staff, otherwise those that you made."""
    now = utc_now()
    query = select(Invite)
    if not person.is_staff:
        query = query.where(Invite.invited_by == person.id)
    with process.read() as session:
        rows = page(session, query, Invite.id, after=after, limit=limit)
        data = [_view(session, invite, now) for (invite,) in rows]
    return Page[InviteView](data=data, has_more=rows.has_more)


@router.delete("/{invite_id}", status_code=204, summary="Revoke an invitation")
def revoke_invite(invite_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Take an invitation back: its link stops working. An account made by it is kept."""
    now = utc_now()
    with process.write() as (session, _):
        invite = session.get(Invite, invite_id)
        if invite is None or not (invite.invited_by == person.id or person.role is Role.ADMIN):
            raise NotFound(f"You have no invitation {invite_id!r}.")
        if invite.revoked_at is None and invite.used_at is None:
            invite.revoked_at = now
            audit.record(session, person.id, "invite.revoke", invite.id, now=now)
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
        _find(session, answer.secret)
    password_hash = hash_password(answer.password)
    zone = checked_zone(answer.zone)
    now = utc_now()
    with process.write() as (session, _):
        invite = _find(session, answer.secret)
        _use_up(session, invite, now)
        user = User(
            id=new_id(Kind.USER),
            name=answer.name,
            role=Role.USER,
            password_hash=password_hash,
            zone=zone,
            email=invite.email,
            disabled=False,
            created_at=now,
        )
        _bring_in(session, invite, user, now)
        made = start_session(session, user, request, now=now)
    set_session_cookie(response, made.secret, process)
    return made


def use_invite(session: Session, invite: Invite, user: User, *, now: datetime) -> None:
    """Make the account of `user` by an invitation. Of two requests with one, one succeeds."""
    _use_up(session, invite, now)
    _bring_in(session, invite, user, now)


def _bring_in(session: Session, invite: Invite, user: User, now: datetime) -> None:
    user.attributes = invite.attributes
    add_user(session, user)
    if invite.lab_id is not None:
        session.add(Membership(lab_id=invite.lab_id, user_id=user.id))
    invite.used_by = user.id
    audit.record(session, user.id, "invite.accept", invite.id, now=now, name=user.name)
    session.flush()


def _require_may_invite(session: Session, person: Person, lab: Lab | None) -> None:
    if person.role is Role.ADMIN:
        return
    if lab is None:
        raise Forbidden(
            "Only an administrator may invite without a lab. The lead of a lab may invite "
            "into that lab.",
            param="lab",
        )
    membership = session.get(Membership, (lab.id, person.id))
    if membership is None:
        raise NotFound(f"There is no lab {lab.name!r}.")  # others' labs look absent, as elsewhere
    if not membership.is_lead:
        raise Forbidden(
            f"Only a lead of {lab.name} or an administrator may invite into it.", param="lab"
        )


def _find(session: Session, secret: str) -> Invite:
    invite = session.scalars(select(Invite).where(Invite.sha256 == digest(secret))).one_or_none()
    if invite is None:
        raise Unauthenticated("This invitation is not valid. Ask for a new one.", code="bad_link")
    return invite


def _use_up(session: Session, invite: Invite, now: datetime) -> None:
    used = session.execute(
        update(Invite)
        .where(
            Invite.id == invite.id,
            Invite.used_at.is_(None),
            Invite.revoked_at.is_(None),
            Invite.expires_at > now,
        )
        .values(used_at=now)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(used, CursorResult)
    if used.rowcount == 0:
        why = {"used": "has been used already", "revoked": "was taken back"}.get(
            _state(invite, now), f"expired at {invite.expires_at:%Y-%m-%d %H:%M UTC}"
        )
        raise Unauthenticated(f"This invitation {why}. Ask for a new one.", code="bad_link")
    invite.used_at = now


def _state(invite: Invite, now: datetime) -> str:
    if invite.used_at is not None:
        return "used"
    if invite.revoked_at is not None:
        return "revoked"
    return "expired" if invite.expires_at <= now else "open"


def _view(session: Session, invite: Invite, now: datetime) -> InviteView:
    lab = session.get(Lab, invite.lab_id) if invite.lab_id else None
    used_by = session.get(User, invite.used_by) if invite.used_by else None
    return InviteView.model_validate(
        {
            "id": invite.id,
            "lab": lab.name if lab else None,
            "email": invite.email,
            "attributes": invite.attributes,
            "invited_by": session.get_one(User, invite.invited_by).name,
            "state": _state(invite, now),
            "used_by": used_by.name if used_by else None,
            "created_at": invite.created_at,
            "expires_at": invite.expires_at,
        }
    )
