"""Secrets that people and nodes carry: made here, shown once, kept as SHA-256."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from core.base.errors import Unauthenticated
from core.base.ids import IdKind, new_id
from core.base.secret_text import digest, new_secret
from core.tables.kinds import LinkKind, Scope, TokenKind
from core.tables.people import Link, Token, User

SESSION_IDLE = timedelta(hours=12)
# Used or not: sign in anew every 30 days (NIST SP 800-63B, 4.1.3).
SESSION_LONGEST = timedelta(days=30)


def has_not_ended(now: datetime) -> ColumnElement[bool]:
    """Return a condition: a Token is neither revoked nor expired."""
    has_time = or_(Token.expires_at.is_(None), Token.expires_at > now)
    return and_(Token.revoked_at.is_(None), has_time)


def in_force(now: datetime) -> ColumnElement[bool]:
    """Return a condition: a Token has not ended, and its User, if it has one, is not disabled.

    The query has to join User to Token, by an outer join if tokens of nodes are wanted.
    """
    return and_(has_not_ended(now), User.disabled.is_not(True))


def issue_token(
    session: Session,
    *,
    kind: TokenKind,
    name: str,
    now: datetime,
    user_id: str | None = None,
    node_id: str | None = None,
    lifetime: timedelta | None = None,
    scopes: Iterable[Scope] = (),
    made_with: str | None = None,
) -> tuple[Token, str]:
    """Make a token of a person or of a node; return it and its secret.

    The token ends no later than the one that it is `made_with`. Raises Unauthenticated if that one
    has ended meanwhile.
    """
    maker_ends_at = _require_live(session, made_with, now=now)
    ends = [moment for moment in (maker_ends_at, now + lifetime if lifetime else None) if moment]
    secret = new_secret()
    token = Token(
        id=new_id(IdKind.TOKEN),
        kind=kind,
        user_id=user_id,
        node_id=node_id,
        name=name,
        scopes=list(scopes),
        made_with=made_with,
        sha256=digest(secret),
        created_at=now,
        expires_at=min(ends, default=None),
        last_used_at=None,
        revoked_at=None,
    )
    session.add(token)
    session.flush()
    return token, secret


def issue_link(
    session: Session,
    *,
    kind: LinkKind,
    now: datetime,
    lifetime: timedelta,
    user_id: str | None = None,
    node_name: str | None = None,
    node_class: str | None = None,
    made_with: str | None = None,
) -> tuple[Link, str]:
    """Make a single-use link; return its row and its secret in the clear."""
    secret = new_secret()
    link = Link(
        sha256=digest(secret),
        kind=kind,
        user_id=user_id,
        node_name=node_name,
        node_class=node_class,
        made_with=made_with,
        created_at=now,
        expires_at=now + lifetime,
        used_at=None,
    )
    session.add(link)
    session.flush()
    return link, secret


def find_link(session: Session, secret: str, kind: LinkKind) -> Link:
    """Return the link behind `secret`, used or not. Raises Unauthenticated if there is none."""
    link = session.get(Link, digest(secret))
    if link is None or link.kind is not kind:
        raise Unauthenticated("This link is not valid. Ask for a new one.", code="bad_link")
    return link


def use_link(session: Session, secret: str, kind: LinkKind, *, now: datetime) -> Link:
    """Mark the link behind `secret` as used and return it.

    Raises Unauthenticated if the link is unknown, used or expired, or if the token that it was made
    with has ended. Of two requests with one secret, one succeeds: the UPDATE requires an unused
    link.
    """
    link = find_link(session, secret, kind)
    _require_live(session, link.made_with, now=now)
    used = session.execute(
        update(Link)
        .where(Link.sha256 == link.sha256, Link.used_at.is_(None), Link.expires_at > now)
        .values(used_at=now)
        .execution_options(synchronize_session=False)
    )
    assert isinstance(used, CursorResult)
    if used.rowcount == 0:
        why = "has been used already" if link.used_at else f"expired at {link.expires_at:%H:%M UTC}"
        raise Unauthenticated(f"This link {why}. Ask for a new one.", code="bad_link")
    return link


def revoke(
    session: Session, *which: ColumnElement[bool], now: datetime, but: str | None = None
) -> None:
    """Revoke tokens and sessions, and those made with them; never the one with the id `but`."""
    wanted = and_(*which)
    while True:
        revoked = session.scalars(
            update(Token)
            .where(wanted, Token.revoked_at.is_(None), Token.id != (but or ""))
            .values(revoked_at=now)
            .returning(Token.id)
        ).all()
        if not revoked:
            return
        wanted = Token.made_with.in_(revoked)


def sign_out_everywhere(
    session: Session, user_id: str, *, now: datetime, but: str | None = None
) -> None:
    """End a person's sessions, tokens and links to sign in; not the session or token `but`."""
    revoke(session, Token.user_id == user_id, now=now, but=but)
    session.execute(
        update(Link)
        .where(Link.user_id == user_id, Link.used_at.is_(None), Link.expires_at > now)
        .values(expires_at=now)
    )


def _require_live(session: Session, token_id: str | None, *, now: datetime) -> datetime | None:
    """Lock a token and return the time when it ends. Raises Unauthenticated if it has ended.

    The lock makes a revocation wait for tokens and links that are being made with this one, and
    then find them.
    """
    if token_id is None:
        return None
    revoked_at, expires_at = session.execute(
        select(Token.revoked_at, Token.expires_at)
        .where(Token.id == token_id)
        .with_for_update(key_share=True)
    ).one()
    if revoked_at is not None or (expires_at is not None and expires_at <= now):
        raise Unauthenticated(
            "The token that created this link has expired or was revoked. Ask for a new link.",
            code="expired",
        )
    return expires_at
