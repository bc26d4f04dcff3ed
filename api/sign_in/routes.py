"""Signing in and out: the first administrator, passwords, login links."""

from datetime import datetime

import structlog
from fastapi import APIRouter, Request, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.people.schemas import UserView
from api.sign_in.devices import device_of
from api.sign_in.schemas import (
    FirstStart,
    LinkSignIn,
    NewPassword,
    SessionView,
    SignIn,
    TokenMade,
    TokenView,
)
from api.sign_in.sign_ins import Watched, address_of
from api.web import audit
from api.web.auth import COOKIE, Public, SignedIn, refuse_cross_site, set_session_cookie
from api.web.credentials import (
    SESSION_IDLE,
    find_link,
    issue_token,
    revoke,
    sign_out_everywhere,
    use_link,
)
from api.web.passwords import hash_password, verify_password
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, NotFound, Unauthenticated
from core.base.ids import Kind, new_id
from core.tables.kinds import LinkKind, Role, Scope, TokenKind
from core.tables.people import Link, Token, User

router = APIRouter(prefix="/v1", tags=["signing in"])

log = structlog.get_logger()


@router.post(
    "/first-start",
    status_code=201,
    dependencies=[Public, Watched],
    summary="Create the first administrator",
)
def first_start(
    wanted: FirstStart, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """Make the first administrator and sign in.

    Works once, with the secret of the link that the API printed when it had no users.
    """
    refuse_cross_site(request, process)
    process.limits.check_sign_in(address_of(request))
    with process.read() as session:  # no stranger makes us hash
        find_link(session, wanted.secret, LinkKind.FIRST_START)
    password_hash = hash_password(wanted.password) if wanted.password else None
    now = utc_now()
    with process.write() as (session, _):
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
            id=new_id(Kind.USER),
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
        made = start_session(session, user, request, now=now)
    process.settings.first_start_link.unlink(missing_ok=True)
    set_session_cookie(response, made.secret, process)
    return made


@router.post("/sessions", status_code=201, dependencies=[Public, Watched], summary="Sign in")
def sign_in(wanted: SignIn, request: Request, response: Response, process: ProcessDep) -> TokenMade:
    """Sign in with name and password. Sets the browser's cookie and returns the same session."""
    refuse_cross_site(request, process)
    request.state.name = wanted.name
    process.limits.check_sign_in(address_of(request), wanted.name)
    with process.read() as session:
        user = session.scalars(select(User).where(User.name == wanted.name)).one_or_none()
    right = verify_password(wanted.password, user.password_hash if user else None)
    if user is None or not right or user.disabled:
        raise Unauthenticated("Name or password is wrong.", code="wrong_password")
    with process.write() as (session, _):
        made = start_session(session, user, request, now=utc_now())
    set_session_cookie(response, made.secret, process)
    return made


@router.post(
    "/sessions/link",
    status_code=201,
    dependencies=[Public, Watched],
    summary="Sign in with a login link",
)
def sign_in_by_link(
    wanted: LinkSignIn, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """Sign in with the secret of a login link, which works once."""
    refuse_cross_site(request, process)
    process.limits.check_sign_in(address_of(request))
    now = utc_now()
    with process.write() as (session, _):
        link = use_link(session, wanted.secret, LinkKind.LOGIN, now=now)
        user = session.get(User, link.user_id)
        if user is None or user.disabled:
            raise Unauthenticated("This account is disabled. Ask an administrator.")
        made = start_session(session, user, request, now=now, made_with=link.made_with)
    set_session_cookie(response, made.secret, process)
    return made


@router.post(
    "/new-password",
    status_code=201,
    dependencies=[Public, Watched],
    summary="Set a new password with a link",
)
def set_password_by_link(
    wanted: NewPassword, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """Set a new password by a link, which works once, and sign in.

    Every other session and token of the person ends.
    """
    refuse_cross_site(request, process)
    process.limits.check_sign_in(address_of(request))
    with process.read() as session:  # no stranger makes us hash
        find_link(session, wanted.secret, LinkKind.PASSWORD)
    password_hash = hash_password(wanted.password)
    now = utc_now()
    with process.write() as (session, _):
        link = use_link(session, wanted.secret, LinkKind.PASSWORD, now=now)
        user = session.get(User, link.user_id)
        if user is None or user.disabled:
            raise Unauthenticated("This account is disabled. Ask an administrator.")
        user.password_hash = password_hash
        sign_out_everywhere(session, user.id, now=now)
        audit.record(session, user.id, "user.password", user.id, now=now, by="link")
        made = start_session(session, user, request, now=now)
    set_session_cookie(response, made.secret, process)
    return made


@router.get("/sessions", summary="List my sessions")
def list_sessions(person: SignedIn, process: ProcessDep) -> Page[SessionView]:
    """Return your sessions that have not ended, newest first, without API tokens."""
    now = utc_now()
    with process.read() as session:
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


@router.delete("/sessions/current", status_code=204, summary="Sign out")
def sign_out(person: SignedIn, process: ProcessDep) -> Response:
    """End the session, or revoke the token, that sends this request."""
    with process.write() as (session, _):
        revoke(session, Token.id == person.token_id, now=utc_now())
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.delete("/sessions/{session_id}", status_code=204, summary="End one of my sessions")
def end_session(session_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """End one of your sessions. The browser or program that uses it is signed out at once."""
    now = utc_now()
    with process.write() as (session, _):
        token = session.get(Token, session_id)
        if token is None or token.user_id != person.id or token.kind is not TokenKind.SESSION:
            raise NotFound(f"You have no session {session_id!r}.")
        if token.revoked_at is None:
            token.revoked_at = now
            audit.record(session, person.id, "session.end", token.id, now=now)
    return Response(status_code=204)


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
