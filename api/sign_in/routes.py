"""Signing in and out: the first administrator, passwords, login links."""

from fastapi import APIRouter, Request, Response

from api.sign_in import sessions
from api.sign_in.schemas import (
    FirstStart,
    LinkSignIn,
    NewPassword,
    SessionView,
    SignIn,
    TokenMade,
)
from api.sign_in.sign_ins import Watched, address_of
from api.web.auth import COOKIE, Public, SignedIn, refuse_cross_site, set_session_cookie
from api.web.credentials import (
    find_link,
)
from api.web.passwords import hash_password, verify_password
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import Unauthenticated
from core.tables.kinds import LinkKind

router = APIRouter(prefix="/v1", tags=["signing in"])


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
    made = process.transact(
        sessions.make_first_administrator, wanted, request, now=now, password_hash=password_hash
    )
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
        user = sessions.find_by_name(session, wanted.name)
    right = verify_password(wanted.password, user.password_hash if user else None)
    if user is None or not right or user.disabled:
        raise Unauthenticated("Name or password is wrong.", code="wrong_password")
    made = process.transact(sessions.start_session_of, user, request)
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
    made = process.transact(sessions.start_by_link, wanted, request, now=now)
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
    made = process.transact(
        sessions.set_password_by_link, wanted, request, now=now, password_hash=password_hash
    )
    set_session_cookie(response, made.secret, process)
    return made


@router.get("/sessions", summary="List my sessions")
def list_sessions(person: SignedIn, process: ProcessDep) -> Page[SessionView]:
    """Return your sessions that have not ended, newest first, without API tokens."""
    with process.read() as session:
        return sessions.list_sessions(session, person)


@router.delete("/sessions/current", status_code=204, summary="Sign out")
def sign_out(person: SignedIn, process: ProcessDep) -> Response:
    """End the session, or revoke the token, that sends this request."""
    process.transact(sessions.sign_out, person)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


@router.delete("/sessions/{session_id}", status_code=204, summary="End one of my sessions")
def end_session(session_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """End one of your sessions. The browser or program that uses it is signed out at once."""
    now = utc_now()
    process.transact(sessions.end_session, session_id, person, now=now)
    return Response(status_code=204)
