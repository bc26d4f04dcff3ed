"""Letters with a link that works once: an invitation, or a new password.

The link is made when its letter is claimed for sending, and only its SHA-256 is kept. If a sender
dies between, another one makes a new link; one that nobody has read expires.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, delete, or_, select
from sqlalchemy.orm import Session

from core.base.secret_text import digest, new_secret
from core.notices.deliveries import CLAIM, RETRY_AFTER
from core.notices.words import Letter, moment
from core.tables.kinds import LetterKind, LinkKind
from core.tables.notices import LinkLetter
from core.tables.people import Invite, Link, User

APART = timedelta(minutes=10)
"""Least time between two letters that somebody unknown asks for to one address."""

KEPT = timedelta(days=30)
"""Time for which a letter that is done can be looked up: addresses are not kept for ever."""


@dataclass(frozen=True)
class LetterInHand:
    """A letter that was claimed, with its link."""

    letter_id: int
    to: str
    letter: Letter
    claimed_until: datetime


def post(
    session: Session,
    kind: LetterKind,
    address: str,
    *,
    url: str,
    expires_at: datetime,
    now: datetime,
    invite_id: str | None = None,
) -> None:
    """Put a letter on its way, and forget those that were done long ago."""
    session.execute(delete(LinkLetter).where(LinkLetter.done, LinkLetter.created_at < now - KEPT))
    session.add(
        LinkLetter(
            kind=kind,
            address=address.lower(),
            invite_id=invite_id,
            url=url,
            expires_at=expires_at,
            due_at=now,
            created_at=now,
        )
    )


def was_posted_lately(session: Session, address: str, *, now: datetime) -> bool:
    """Return True if a letter to this address was posted less than APART ago."""
    lately = (LinkLetter.address == address.lower(), LinkLetter.created_at > now - APART)
    return session.scalar(select(LinkLetter.id).where(*lately).limit(1)) is not None


def is_anything_due(session: Session, now: datetime) -> bool:
    """Return True if `claim` would find a letter."""
    return session.scalar(select(LinkLetter.id).where(*_is_due(now)).limit(1)) is not None


def claim(session: Session, *, now: datetime) -> LetterInHand | None:
    """Claim the next letter that is due, and make its link; None if there is none.

    Letters that nobody is to get any more are marked as done.
    """
    while True:
        row = session.scalars(
            select(LinkLetter)
            .where(*_is_due(now))
            .order_by(LinkLetter.due_at, LinkLetter.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()
        if row is None:
            return None
        row.attempts += 1
        secret = new_secret()
        made = (
            _password(session, row, secret, now)
            if row.kind is LetterKind.PASSWORD
            else _invitation(session, row, secret, now)
        )
        if isinstance(made, Letter):
            row.claimed_until = now + CLAIM
            return LetterInHand(row.id, row.address, made, row.claimed_until)
        row.done, row.error = True, made
        session.flush()


def settle(session: Session, letter: LetterInHand, error: str, *, now: datetime) -> None:
    """Record that a letter has left, or the error and the time of the next try."""
    row = session.get_one(LinkLetter, letter.letter_id)
    if row.done or row.claimed_until != letter.claimed_until:
        return  # another sender has it
    row.claimed_until, row.error = None, error
    if not error:
        row.done = True
    elif row.attempts > len(RETRY_AFTER):
        row.done, row.error = True, f"Gave up after {row.attempts} tries. {error}"
    else:
        row.due_at = now + RETRY_AFTER[row.attempts - 1]


def _is_due(now: datetime) -> tuple[ColumnElement[bool], ...]:
    free = or_(LinkLetter.claimed_until.is_(None), LinkLetter.claimed_until <= now)
    return (LinkLetter.done.is_(False), LinkLetter.due_at <= now, free)


def _password(session: Session, row: LinkLetter, secret: str, now: datetime) -> Letter | str:
    """Make a link for the person with this address; a sentence if there is none."""
    user = session.scalars(
        select(User).where(User.email == row.address, User.disabled.is_(False))
    ).one_or_none()
    if user is None:
        return "Nobody has this address."
    if row.expires_at <= now:
        return "It has expired."
    session.add(
        Link(
            sha256=digest(secret),
            kind=LinkKind.PASSWORD,
            user_id=user.id,
            created_at=now,
            expires_at=row.expires_at,
        )
    )
    return _letter(
        "Set your password",
        f"Hello {user.name},",
        "with this link you set a password for your account, once:",
        f"{row.url}/new-password?secret={secret}",
        row.expires_at,
        ZoneInfo(user.zone),
    )


def _invitation(session: Session, row: LinkLetter, secret: str, now: datetime) -> Letter | str:
    """Give an invitation a new secret, so that a link that was shown stops working."""
    invite = session.get(Invite, row.invite_id, with_for_update=True)
    if invite is None or invite.used_at is not None or invite.revoked_at is not None:
        return "The invitation has been used or taken back."
    if invite.expires_at <= now:
        return "It has expired."
    invite.sha256 = digest(secret)
    return _letter(
        "You are invited",
        "Hello,",
        "with this link you make your account, with a name and a password of your choice, once:",
        f"{row.url}/invite?secret={secret}",
        invite.expires_at,
        ZoneInfo("UTC"),
    )


def _letter(
    subject: str, hello: str, told: str, link: str, expires_at: datetime, zone: ZoneInfo
) -> Letter:
    until = f"It works until {moment(expires_at, zone)}. If you did not expect it, ignore it."
    return Letter(f"Trainyard: {subject}", f"{hello}\n\n{told}\n\n{link}\n\n{until}\n")
