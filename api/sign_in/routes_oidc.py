"""/v1/sessions/oidc: signing in by an OpenID provider, there and back."""

import hmac
from datetime import timedelta
from typing import Annotated

import structlog
from fastapi import APIRouter, Cookie, Request, Response
from pydantic import Field

from api.sign_in import oidc_accounts
from api.sign_in.oidc_provider import NotVouched, Provider, Trip
from api.sign_in.schemas import TokenMade
from api.sign_in.sign_ins import Watched, address_of
from api.web.auth import AdminOnly, Public, set_session_cookie
from api.web.process import Process, ProcessDep
from api.web.schemas import Body, View
from api.web.text_types import PlainText
from core.base.clock import utc_now
from core.base.errors import NotFound, ServiceError, Unauthenticated

router = APIRouter(prefix="/v1", tags=["signing in"])

TRIP_COOKIE = "trainyard_trip"
TRIP_PATH = "/login/oidc"
TRIP_LIFETIME = timedelta(minutes=10)

log = structlog.get_logger()

TripSecret = Annotated[str | None, Cookie(alias=TRIP_COOKIE, include_in_schema=False)]


class OidcView(View):
    """The provider with which people sign in here."""

    name: str | None
    """Name of the provider on the sign-in page; null if there is no provider."""


class OidcStart(View):
    """Address of the provider to which the browser is to be sent."""

    url: str


class OidcAnswer(Body):
    """Answer of the provider, brought back by the browser: the state, and a code or an error."""

    state: str = Field(max_length=200)
    code: str = Field(default="", max_length=4000)
    error: PlainText = ""
    error_description: str = Field(default="", max_length=2000)


@router.get("/sessions/oidc", dependencies=[Public], summary="Get the single sign-on provider")
def get_oidc(process: ProcessDep) -> OidcView:
    """Return the name of the OpenID provider in the settings; null if there is none."""
    has_one = Provider in process.services
    return OidcView(name=process.service(Provider).name if has_one else None)


@router.post(
    "/sessions/oidc/start",
    dependencies=[Public, Watched],
    summary="Start a sign-in with the provider",
)
def start_oidc(request: Request, response: Response, process: ProcessDep) -> OidcStart:
    """Return the provider's address for this browser, which gets a cookie for ten minutes."""
    provider = _provider(process)
    process.limits.check_sign_in(address_of(request))
    process.limits.count_trip(address_of(request))
    secret = process.transact(oidc_accounts.begin_trip, lifetime=TRIP_LIFETIME)
    url = provider.address(Trip(secret), back_to=_back_to(process))
    response.set_cookie(
        TRIP_COOKIE,
        secret,
        max_age=int(TRIP_LIFETIME.total_seconds()),
        httponly=True,
        secure=process.is_https,
        samesite="lax",  # the way back begins at another site
        path=TRIP_PATH,
    )
    return OidcStart(url=url)


@router.post(
    "/sessions/oidc",
    status_code=201,
    dependencies=[Public, Watched],
    summary="Finish a sign-in with the provider",
)
def sign_in_by_oidc(
    answer: OidcAnswer,
    request: Request,
    response: Response,
    process: ProcessDep,
    secret: TripSecret = None,
) -> TokenMade:
    """Sign in with the code that the provider gave to the browser.

    The code works once, and only in the browser that began this sign-in.
    """
    provider = _provider(process)
    process.limits.check_sign_in(address_of(request))
    trip = Trip(secret or "")
    if secret is None or not hmac.compare_digest(trip.state.encode(), answer.state.encode()):
        raise Unauthenticated(
            "This sign-in was not started in this browser, or another one was started since. "
            "Start again, in one window.",
            code="oidc_state",
        )
    _use_up(process, trip)
    if answer.error or not answer.code:
        why = answer.error_description or answer.error or "it sent no authorization code"
        raise NotVouched(f"{provider.name} did not sign you in: {why}")
    claims = provider.claims_of(answer.code, trip, back_to=_back_to(process))
    try:
        made = process.transact(oidc_accounts.sign_in, claims, request, process.settings)
    except ServiceError as error:
        log.info("oidc_not_let_in", code=error.code, email=claims.email, subject=claims.subject)
        raise
    response.delete_cookie(TRIP_COOKIE, path=TRIP_PATH)
    set_session_cookie(response, made.secret, process)
    return made


@router.delete(
    "/users/{user_id}/identities", status_code=204, summary="Unlink a person from the provider"
)
def unlink_user(user_id: PlainText, person: AdminOnly, process: ProcessDep) -> Response:
    """Forget a person's identities at the provider.

    The next identity that signs in with the person's mail address is linked to the account.
    """
    now = utc_now()
    process.transact(oidc_accounts.unlink, user_id, person, now=now)
    return Response(status_code=204)


def _provider(process: Process) -> Provider:
    if Provider not in process.services:
        raise NotFound(
            "Single sign-on is not set up here. An administrator sets it up with the "
            "settings TRAINYARD_OIDC_*.",
            code="no_oidc",
        )
    return process.service(Provider)


def _back_to(process: Process) -> str:
    return f"{process.url}{TRIP_PATH}/callback"


def _use_up(process: Process, trip: Trip) -> None:
    try:
        process.transact(oidc_accounts.end_trip, trip)
    except Unauthenticated as error:
        raise Unauthenticated(
            "This sign-in was already finished, or took more than ten minutes. Start again.",
            code="oidc_over",
        ) from error
