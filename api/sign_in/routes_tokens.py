"""/v1/tokens: one's own API tokens."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Response

from api.sign_in import tokens
from api.sign_in.schemas import NewToken, TokenMade, TokenView
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.identity import Person
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.scopes import included
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Forbidden

router = APIRouter(prefix="/v1/tokens", tags=["people"])


@router.post("", status_code=201, summary="Create an API token")
def create_token(
    wanted: NewToken, person: SignedIn, process: ProcessDep, key: IdempotencyKey = None
) -> TokenMade:
    """Make an API token. Its secret is shown only in this answer; a repeated request is refused.

    A token can't make one that may do more or lasts longer than itself. Tokens that it makes end
    with it.
    """
    now = utc_now()
    lifetime = timedelta(days=wanted.expires_in_days)
    _refuse_wider(person, wanted, ends_at=now + lifetime)
    sent = keyed(person, key, "/v1/tokens", wanted.model_dump_json().encode())
    return process.transact(
        tokens.create_token,
        wanted,
        person,
        sent=sent,
        now=now,
        lifetime=lifetime,
    )


@router.get("", summary="List API tokens")
def list_tokens(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[TokenView]:
    """Return your API tokens without their secrets, newest first."""
    with process.read() as session:
        return tokens.list_tokens(session, person, limit=limit, after=after)


@router.delete("/{token_id}", status_code=204, summary="Revoke an API token")
def revoke_token(token_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Revoke a token at once, together with the tokens, sessions and links made with it."""
    now = utc_now()
    process.transact(tokens.revoke_token, token_id, person, now=now)
    return Response(status_code=204)


def _refuse_wider(person: Person, wanted: NewToken, *, ends_at: datetime) -> None:
    more = included(wanted.scopes) - person.scopes
    if more:
        raise Forbidden(
            f"scopes: the token that you use lacks {', '.join(sorted(more))}, so it cannot "
            "create a token with that scope. Create the token on the account page.",
            code="wider_token",
            param="scopes",
        )
    if person.token_ends_at is not None and ends_at > person.token_ends_at:
        raise Forbidden(
            "expires_in_days: the token that you use ends at "
            f"{person.token_ends_at:%Y-%m-%d %H:%M} UTC, and a token that it creates cannot "
            "last longer. Create the token on the account page.",
            code="wider_token",
            param="expires_in_days",
        )
