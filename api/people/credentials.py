"""Secrets that people and nodes carry: made here, shown once, kept as SHA-256."""

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from hashlib import sha256

from sqlalchemy import update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session

from core.errors import Unauthenticated
from core.ids import Kind, new_id
from core.tables.kinds import LinkKind, Scope, TokenKind
from core.tables.people import Link, Token

SESSION_IDLE = timedelta(hours=12)


def new_secret() -> str:
    """256 random bits, with a prefix that secret scanners can look for."""
    return f"ty_{secrets.token_urlsafe(32)}"


def digest(secret: str) -> str:
    """What is kept of a secret."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


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
) -> tuple[Token, str]:
    """A new token of a person or of a node, and its secret."""
    secret = new_secret()
    token = Token(
        id=new_id(Kind.TOKEN),
        kind=kind,
        user_id=user_id,
        node_id=node_id,
        name=name,
        scopes=list(scopes),
        sha256=digest(secret),
        created_at=now,
        expires_at=now + lifetime if lifetime else None,
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
) -> tuple[Link, str]:
    """A new single-use secret, as row and in the clear."""
    secret = new_secret()
    link = Link(
        sha256=digest(secret),
        kind=kind,
        user_id=user_id,
        node_name=node_name,
        node_class=node_class,
        created_at=now,
        expires_at=now + lifetime,
        used_at=None,
    )
    session.add(link)
    session.flush()
    return link, secret


def use_link(session: Session, secret: str, kind: LinkKind, *, now: datetime) -> Link:
    """The link behind `secret`, marked as used. Raises Unauthenticated if it opens nothing (more).

    Of two requests with one secret, one wins: the UPDATE asks that it is unused.
    """
    link = session.get(Link, digest(secret))
    if link is None or link.kind is not kind:
        raise Unauthenticated("This link is not known here. Ask for a new one.", code="bad_link")
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
