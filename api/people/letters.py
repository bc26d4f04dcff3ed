"""Letters with a link: asked for here, sent by the scheduler, where a mail server is set up."""

from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from api.people.users import PASSWORD_LINK_LIFETIME, find_user
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process
from core.base.errors import BadRequest, Conflict, NotFound
from core.notices import link_letters
from core.tables.kinds import LetterKind, Role
from core.tables.people import Invite, User

ASKED_FOR = timedelta(hours=1)
"""Lifetime of a link that somebody asks for without having signed in."""


def require_mail(process: Process) -> None:
    """Raise Conflict if no mail server is set up."""
    if not process.settings.smtp_host:
        raise Conflict(
            "No mail server is set up here, so nothing can be mailed. Hand the link over, or set "
            "TRAINYARD_SMTP_HOST.",
            code="no_mail",
        )


def ask_for_password(
    session: Session, _: Bells, address: str, process: Process, *, now: datetime
) -> None:
    """Post a letter about a new password to an address, whether or not anybody has it."""
    if not link_letters.was_posted_lately(session, address, now=now):
        _post_password(session, process, address, lifetime=ASKED_FOR, now=now)


def mail_password(
    session: Session, _: Bells, user_id: str, person: Person, process: Process, *, now: datetime
) -> None:
    """Mail a person a link to set a password. Raises NotFound; BadRequest without an address."""
    user = find_user(session, user_id)
    post_password(session, process, user, person, lifetime=PASSWORD_LINK_LIFETIME, now=now)


def post_password(
    session: Session,
    process: Process,
    user: User,
    person: Person,
    *,
    lifetime: timedelta,
    now: datetime,
) -> None:
    """Post a letter about a new password. Raises BadRequest if the person has no address."""
    if user.email is None:
        raise BadRequest(
            f"{user.name} has no mail address. Set one: trainyard admin describe {user.name} "
            "--email ADDRESS.",
            code="no_address",
        )
    _post_password(session, process, user.email, lifetime=lifetime, now=now)
    audit.record(session, person.id, "user.password_letter", user.id, now=now)


def mail_invite(
    session: Session, _: Bells, invite_id: str, person: Person, process: Process, *, now: datetime
) -> None:
    """Mail an invitation to the address that it was made for. Raises NotFound, Conflict;
    BadRequest if it was made for none."""
    invite = session.get(Invite, invite_id)
    if invite is None or not (invite.invited_by == person.id or person.role is Role.ADMIN):
        raise NotFound(f"You have no invitation {invite_id!r}.")
    if invite.email is None:
        raise BadRequest("The invitation is for no mail address. Make one with it.", param="email")
    if invite.used_at or invite.revoked_at or invite.expires_at <= now:
        raise Conflict("The invitation has been used, taken back or has expired. Make another.")
    link_letters.post(
        session,
        LetterKind.INVITATION,
        invite.email,
        url=process.url,
        expires_at=invite.expires_at,
        now=now,
        invite_id=invite.id,
    )
    audit.record(session, person.id, "invite.mail", invite.id, now=now, email=invite.email)


def _post_password(
    session: Session, process: Process, address: str, *, lifetime: timedelta, now: datetime
) -> None:
    link_letters.post(
        session,
        LetterKind.PASSWORD,
        address,
        url=process.url,
        expires_at=now + lifetime,
        now=now,
    )
