"""/v1/tokens: one's own API tokens."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.sign_in.routes import token_made
from api.sign_in.schemas import NewToken, TokenMade, TokenView
from api.web import audit
from api.web.auth import SignedIn
from api.web.credentials import has_not_ended, issue_token, revoke
from api.web.idempotency import IdempotencyKey, fingerprint, made_before, remember
from api.web.identity import Person
from api.web.paging import page
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.scopes import included
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import Conflict, Forbidden, NotFound
from core.leases.situation import lock_user
from core.tables.kinds import Scope, TokenKind
from core.tables.people import Token, User

router = APIRouter(prefix="/v1/tokens", tags=["people"])

MAX_TOKENS = 50  # that work at a time, of one person: a page of the list, so that all can be seen


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
    body_sha256 = fingerprint("POST", "/v1/tokens", wanted.model_dump_json().encode())
    with process.write() as (session, _):
        lock_user(session, person.id)
        known = made_before(session, user_id=person.id, key=key, body_sha256=body_sha256)
        if known is not None:
            raise Conflict(
                f"This request already created {known}, and its secret was shown then. Delete "
                "that token, and create another with a new key.",
                code="shown_once",
            )
        _require_room(session, person, now=now)
        token, secret = issue_token(
            session,
            kind=TokenKind.API,
            name=wanted.name,
            now=now,
            user_id=person.id,
            lifetime=lifetime,
            scopes=[scope for scope in Scope if scope in wanted.scopes],
            made_with=person.made_with,
        )
        remember(
            session,
            user_id=person.id,
            key=key,
            body_sha256=body_sha256,
            subject=token.id,
            now=now,
        )
        audit.record(
            session,
            person.id,
            "token.make",
            token.id,
            now=now,
            name=token.name,
            scopes=token.scopes,
        )
        user = session.get(User, person.id)
        assert user is not None
        return token_made(token, secret, user)


@router.get("", summary="List API tokens")
def list_tokens(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[TokenView]:
    """Return your API tokens without their secrets, newest first."""
    query = select(Token).where(Token.user_id == person.id, Token.kind == TokenKind.API)
    with process.read() as session:
        rows = page(session, query, Token.id, after=after, limit=limit)
    views = [TokenView.model_validate(token) for (token,) in rows]
    return Page[TokenView](data=views, has_more=rows.has_more)


@router.delete("/{token_id}", status_code=204, summary="Revoke an API token")
def revoke_token(token_id: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Revoke a token at once, together with the tokens, sessions and links made with it."""
    now = utc_now()
    with process.write() as (session, _):
        token = session.get(Token, token_id)
        if token is None or token.user_id != person.id or token.kind is not TokenKind.API:
            raise NotFound(f"You have no token {token_id!r}.")
        if token.revoked_at is None:
            revoke(session, Token.id == token.id, now=now)
            audit.record(session, person.id, "token.revoke", token.id, now=now, name=token.name)
    return Response(status_code=204)


def _require_room(session: Session, person: Person, *, now: datetime) -> None:
    held = session.scalar(
        select(func.count())
        .select_from(Token)
        .where(
            Token.user_id == person.id,
            Token.kind == TokenKind.API,
            has_not_ended(now),
        )
    )
    if held is not None and held >= MAX_TOKENS:
        raise Conflict(
            f"You have {held} valid API tokens and the limit is {MAX_TOKENS}. Revoke one that "
            "you no longer need.",
            code="too_many_tokens",
        )


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
