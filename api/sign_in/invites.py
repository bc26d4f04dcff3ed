"""Invitations: each makes one account."""

from datetime import datetime, timedelta

from fastapi import Request
from sqlalchemy import select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from api.people.users import add_user, find_lab
from api.sign_in.schemas import InviteAnswer, InviteView, NewInvite, TokenMade
from api.sign_in.sessions import start_session
from api.web import audit
from api.web.bells import Bells
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, NotFound, Unauthenticated
from core.base.ids import IdKind, new_id
from core.base.secret_text import digest
from core.tables.kinds import Role
from core.tables.people import Invite, Lab, Membership, User


def create_invite(
    session: Session,
    _: Bells,
    wanted: NewInvite,
    person: Person,
    *,
    sent: KeyedRequest,
    now: datetime,
    secret: str,
) -> InviteView:
    """Insert an invitation. Raises Conflict for a repeated request, Forbidden, NotFound."""
    known = sent.begin(session)
    if known is not None:
        raise Conflict(
            f"This request already created {known}, and its link was shown then. Take "
            "that invitation back, and create another with a new key.",
            code="shown_once",
        )
    lab = find_lab(session, wanted.lab) if wanted.lab is not None else None
    _require_may_invite(session, person, lab)
    invite = Invite(
        id=new_id(IdKind.INVITE),
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
    sent.remember(session, invite.id)
    session.flush()
    return _view(session, invite, now)


def list_invites(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[InviteView]:
    """Return a page of invitations, newest first: all of them for staff, otherwise one's own."""
    now = utc_now()
    query = select(Invite)
    if not person.is_staff:
        query = query.where(Invite.invited_by == person.id)
    rows = page(session, query, Invite.id, after=after, limit=limit)
    data = [_view(session, invite, now) for (invite,) in rows]
    return Page[InviteView](data=data, has_more=rows.has_more)


def revoke_invite(
    session: Session, _: Bells, invite_id: str, person: Person, *, now: datetime
) -> None:
    """Take an invitation back. Raises NotFound."""
    invite = session.get(Invite, invite_id)
    if invite is None or not (invite.invited_by == person.id or person.role is Role.ADMIN):
        raise NotFound(f"You have no invitation {invite_id!r}.")
    if invite.revoked_at is None and invite.used_at is None:
        invite.revoked_at = now
        audit.record(session, person.id, "invite.revoke", invite.id, now=now)


def accept_invite(
    session: Session,
    _: Bells,
    answer: InviteAnswer,
    request: Request,
    *,
    now: datetime,
    password_hash: str | None,
    zone: str,
) -> TokenMade:
    """Make an account by an invitation and start a session. Raises Unauthenticated."""
    invite = find(session, answer.secret)
    _use_up(session, invite, now)
    user = User(
        id=new_id(IdKind.USER),
        name=answer.name,
        role=Role.USER,
        password_hash=password_hash,
        zone=zone,
        email=invite.email,
        disabled=False,
        created_at=now,
    )
    _bring_in(session, invite, user, now)
    return start_session(session, user, request, now=now)


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


def find(session: Session, secret: str) -> Invite:
    """Return the invitation with this secret. Raises Unauthenticated."""
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
