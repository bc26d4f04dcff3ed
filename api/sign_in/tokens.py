"""API tokens of people."""

from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.sign_in.schemas import NewToken, TokenMade, TokenView
from api.sign_in.sessions import token_made
from api.web import audit
from api.web.bells import Bells
from api.web.credentials import has_not_ended, issue_token, revoke
from api.web.idempotency import KeyedRequest
from api.web.identity import Person
from api.web.paging import page
from api.web.schemas import Page
from core.base.errors import Conflict, NotFound
from core.tables.kinds import Scope, TokenKind
from core.tables.people import Token, User

MAX_TOKENS = 50  # that work at a time, of one person: a page of the list, so that all can be seen


def create_token(
    session: Session,
    _: Bells,
    wanted: NewToken,
    person: Person,
    *,
    sent: KeyedRequest,
    now: datetime,
    lifetime: timedelta,
) -> TokenMade:
    """Insert an API token. Raises Conflict for a repeated request, and for too many tokens."""
    known = sent.begin(session)
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
    sent.remember(session, token.id)
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


def list_tokens(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[TokenView]:
    """Return a page of a person's API tokens, newest first."""
    query = select(Token).where(Token.user_id == person.id, Token.kind == TokenKind.API)
    rows = page(session, query, Token.id, after=after, limit=limit)
    views = [TokenView.model_validate(token) for (token,) in rows]
    return Page[TokenView](data=views, has_more=rows.has_more)


def revoke_token(
    session: Session, _: Bells, token_id: str, person: Person, *, now: datetime
) -> None:
    """Revoke a token with all that was made with it. Raises NotFound."""
    token = session.get(Token, token_id)
    if token is None or token.user_id != person.id or token.kind is not TokenKind.API:
        raise NotFound(f"You have no token {token_id!r}.")
    if token.revoked_at is None:
        revoke(session, Token.id == token.id, now=now)
        audit.record(session, person.id, "token.revoke", token.id, now=now, name=token.name)


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
