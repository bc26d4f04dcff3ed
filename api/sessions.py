"""Signing in and out: the first administrator, passwords, login links."""

from datetime import datetime

from fastapi import APIRouter, Request, Response
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from api import audit
from api.auth import COOKIE, Public, SignedIn, refuse_cross_site, set_session_cookie
from api.credentials import SESSION_IDLE, issue_token, use_link
from api.passwords import hash_password, verify_password
from api.process import ProcessDep
from api.schemas import FirstStart, LinkSignIn, SignIn, TokenMade, TokenView, UserView
from core.clock import utc_now
from core.errors import Conflict, Unauthenticated
from core.ids import Kind, new_id
from core.tables import Link, LinkKind, Role, Token, TokenKind, User

router = APIRouter(prefix="/v1", tags=["signing in"])


@router.post(
    "/first-start", status_code=201, dependencies=[Public], summary="Make the first administrator"
)
def first_start(
    wanted: FirstStart, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """Works once, with the secret of the link that the API printed when it had no users."""
    refuse_cross_site(request, process)
    process.limits.count_login("first start", _address(request))
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
            raise Conflict("There is an administrator already. Sign in instead.")
        user = User(
            id=new_id(Kind.USER),
            name=wanted.name,
            role=Role.ADMIN,
            password_hash=password_hash,
            created_at=now,
            zone="UTC",
            disabled=False,
        )
        session.add(user)
        session.flush()
        audit.record(session, user.id, "user.first_start", user.id, now=now, name=user.name)
        made = start_session(session, user, now=now)
    process.first_start_link.unlink(missing_ok=True)
    set_session_cookie(response, made.secret, process)
    return made


@router.post("/sessions", status_code=201, dependencies=[Public], summary="Sign in")
def sign_in(wanted: SignIn, request: Request, response: Response, process: ProcessDep) -> TokenMade:
    """With name and password. Sets the browser's cookie and answers with the same session."""
    refuse_cross_site(request, process)
    process.limits.count_login(wanted.name, _address(request))
    with process.read() as session:
        user = session.scalars(select(User).where(User.name == wanted.name)).one_or_none()
    right = verify_password(wanted.password, user.password_hash if user else None)
    if user is None or not right or user.disabled:
        raise Unauthenticated("Name or password is wrong.", code="wrong_password")
    with process.write() as (session, _):
        made = start_session(session, user, now=utc_now())
    set_session_cookie(response, made.secret, process)
    return made


@router.post(
    "/sessions/link", status_code=201, dependencies=[Public], summary="Sign in by a login link"
)
def sign_in_by_link(
    wanted: LinkSignIn, request: Request, response: Response, process: ProcessDep
) -> TokenMade:
    """With the secret of a login link, which works once."""
    refuse_cross_site(request, process)
    process.limits.count_login("by link", _address(request))
    now = utc_now()
    with process.write() as (session, _):
        link = use_link(session, wanted.secret, LinkKind.LOGIN, now=now)
        user = session.get(User, link.user_id)
        if user is None or user.disabled:
            raise Unauthenticated("This account is disabled. Ask an administrator.")
        made = start_session(session, user, now=now)
    set_session_cookie(response, made.secret, process)
    return made


@router.delete("/sessions/current", status_code=204, summary="Sign out")
def sign_out(person: SignedIn, process: ProcessDep) -> Response:
    """End the session, or revoke the token, that sends this."""
    with process.write() as (session, _):
        session.execute(
            update(Token).where(Token.id == person.token_id).values(revoked_at=utc_now())
        )
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


def start_session(session: Session, user: User, *, now: datetime) -> TokenMade:
    """A new session of this person."""
    token, secret = issue_token(
        session,
        kind=TokenKind.SESSION,
        name="session",
        now=now,
        user_id=user.id,
        lifetime=SESSION_IDLE,
    )
    return token_made(token, secret, user)


def token_made(token: Token, secret: str, user: User) -> TokenMade:
    """The answer that shows a secret, this once."""
    view = TokenView.model_validate(token)
    return TokenMade(**view.model_dump(), secret=secret, user=UserView.model_validate(user))


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"
