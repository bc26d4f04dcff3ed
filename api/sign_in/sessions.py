"""Sessions of people: their start, list and end."""

from datetime import datetime

import structlog
from fastapi import Request
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.people.schemas import UserView
from api.sign_in.devices import device_of
from api.sign_in.schemas import (
    FirstStart,
    LinkSignIn,
    NewPassword,
    SessionView,
    TokenMade,
    TokenView,
)
from api.sign_in.sign_ins import address_of
from api.web import audit
from api.web.bells import Bells
from api.web.credentials import (
    SESSION_IDLE,
    issue_token,
    revoke,
    sign_out_everywhere,
    use_link,
)
from api.web.identity import Person
from api.web.schemas import Page
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound, Unauthenticated
from core.base.ids import IdKind, new_id
from core.tables.kinds import LinkKind, Role, Scope, TokenKind
from core.tables.people import Link, Token, User

log = structlog.get_logger()


def make_first_administrator(
    session: Session,
    _: Bells,
    wanted: FirstStart,
    request: Request,
    *,
    now: datetime,
    password_hash: str | None,
) -> TokenMade:
    """Insert the first administrator and start a session. Raises Conflict if there is a person."""
    # All first-start links are locked: of two that are used at once, the second finds a user.
    session.execute(
        select(Link.sha256)
        .where(Link.kind == LinkKind.FIRST_START)
        .order_by(Link.sha256)
        .with_for_update()
    ).all()
    use_link(session, wanted.secret, LinkKind.FIRST_START, now=now)
    if session.scalar(select(func.count()).select_from(User)):
        raise Conflict("There already is an administrator. Sign in instead.")
    user = User(
        id=new_id(IdKind.USER),
        name=wanted.name,
        role=Role.ADMIN,
        password_hash=password_hash,
        created_at=now,
        zone="UTC",
        email=None,
        attributes={},
        disabled=False,
    )
    session.add(user)
    session.flush()
    audit.record(session, user.id, "user.first_start", user.id, now=now, name=user.name)
    return start_session(session, user, request, now=now)


def find_by_name(session: Session, name: str) -> User | None:
    """Return the person of this name, if there is one."""
    return session.scalars(select(User).where(User.name == name)).one_or_none()


def start_session_of(session: Session, _: Bells, user: User, request: Request) -> TokenMade:
    """Start a session of a person whose password was right."""
    return start_session(session, user, request, now=utc_now())


def start_by_link(
    session: Session, _: Bells, wanted: LinkSignIn, request: Request, *, now: datetime
) -> TokenMade:
    """Use up a login link and start a session. Raises Unauthenticated."""
    link = use_link(session, wanted.secret, LinkKind.LOGIN, now=now)
    user = session.get(User, link.user_id)
    if user is None or user.disabled:
        raise Unauthenticated("This account is disabled. Ask an administrator.")
    return start_session(session, user, request, now=now, made_with=link.made_with)


def set_password_by_link(
    session: Session,
    _: Bells,
    wanted: NewPassword,
    request: Request,
    *,
    now: datetime,
    password_hash: str | None,
) -> TokenMade:
    """Use up a link, set the password, end every session, start one. Raises Unauthenticated."""
    link = use_link(session, wanted.secret, LinkKind.PASSWORD, now=now)
    user = session.get(User, link.user_id)
    if user is None or user.disabled:
        raise Unauthenticated("This account is disabled. Ask an administrator.")
    user.password_hash = password_hash
    sign_out_everywhere(session, user.id, now=now)
    audit.record(session, user.id, "user.password", user.id, now=now, by="link")
    return start_session(session, user, request, now=now)


def list_sessions(session: Session, person: Person) -> Page[SessionView]:
    """Return a person's sessions that have not ended, newest first."""
    now = utc_now()
    rows = session.scalars(
        select(Token)
        .where(
            Token.user_id == person.id,
            Token.kind == TokenKind.SESSION,
            Token.revoked_at.is_(None),
            Token.expires_at > now,
        )
        .order_by(Token.id.desc())
        .limit(200)
    ).all()
    return Page[SessionView](
        data=[
            SessionView(
                id=row.id,
                name=row.name,
                is_this_one=row.id == person.token_id,
                created_at=row.created_at,
                expires_at=row.expires_at,
                last_used_at=row.last_used_at,
            )
            for row in rows
        ]
    )


def sign_out(session: Session, _: Bells, person: Person) -> None:
    """Revoke the token of the request."""
    revoke(session, Token.id == person.token_id, now=utc_now())


def end_session(
    session: Session, _: Bells, session_id: str, person: Person, *, now: datetime
) -> None:
    """End a session of this person. Raises NotFound."""
    token = session.get(Token, session_id)
    if token is None or token.user_id != person.id or token.kind is not TokenKind.SESSION:
        raise NotFound(f"You have no session {session_id!r}.")
    if token.revoked_at is None:
        token.revoked_at = now
        audit.record(session, person.id, "session.end", token.id, now=now)


def start_session(
    session: Session,
    user: User,
    request: Request,
    *,
    now: datetime,
    made_with: str | None = None,
) -> TokenMade:
    """Start a session of this person, named after the request's device and address."""
    token, secret = issue_token(
        session,
        kind=TokenKind.SESSION,
        name=f"{device_of(request.headers.get('user-agent', ''))}, {address_of(request)}",
        now=now,
        user_id=user.id,
        lifetime=SESSION_IDLE,
        scopes=[Scope.ALL],
        made_with=made_with,
    )
    log.info("signed_in", name=user.name, address=address_of(request), session=token.id)
    return token_made(token, secret, user)


def token_made(token: Token, secret: str, user: User) -> TokenMade:
    """Return the only answer that shows the token's secret."""
    view = TokenView.model_validate(token)
    return TokenMade(**view.model_dump(), secret=secret, user=UserView.model_validate(user))
