"""Authentication and authorization: every route names one of these dependencies.

People carry a bearer token, or, in browsers, the cookie of a session. Browsers send a cookie by
themselves, so a request with a cookie that does more than read must provably come from Trainyard's
own pages.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response, Security, WebSocket
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.security import APIKeyCookie, HTTPBearer
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, aliased
from starlette.requests import HTTPConnection

from api.web.credentials import SESSION_IDLE, SESSION_LONGEST, in_force
from api.web.groups import Groups, attempt
from api.web.identity import RANK, NodeIdentity, Person
from api.web.process import Process, ProcessDep
from api.web.scopes import MissingScope, included, scope_of
from core.base.clock import utc_now
from core.base.errors import Forbidden, ServiceError, Unauthenticated
from core.base.secret_text import digest
from core.states import NodeState
from core.tables.kinds import Role, Scope, TokenKind
from core.tables.nodes import Node
from core.tables.people import Token, User

COOKIE = "trainyard_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
TOUCH_EVERY = timedelta(minutes=10)  # how exact `last_used_at` is; each touch is a write

BEARER = HTTPBearer(auto_error=False, description="An API token, a session or a node's token.")
SESSION_COOKIE = APIKeyCookie(name=COOKIE, auto_error=False, description="A browser's session.")

# Built once: every request of a person or a node begins with one of them.
Maker = aliased(Token)
TOKENS = (
    select(Token.id, Token.kind, Token.scopes, Token.expires_at, Token.revoked_at)
    .add_columns(Token.created_at, Token.last_used_at, Token.made_with, Maker.expires_at)
    .add_columns(User.id, User.name, User.role, User.zone, User.disabled)
    .join(User, User.id == Token.user_id)
    .outerjoin(Maker, Maker.id == Token.made_with)
    .add_columns(Token.sha256)
    .where(Token.sha256.in_(bindparam("sha256s", expanding=True)))
)

NODE_TOKEN = (
    select(Node.id, Node.name, Node.state, Token.revoked_at)
    .join(Node, Node.id == Token.node_id)
    .where(Token.sha256 == bindparam("sha256"), Token.kind == TokenKind.NODE)
)


class TokenRow(NamedTuple):
    """A row of TOKENS, without the token's SHA-256."""

    token_id: str
    kind: TokenKind
    scopes: Sequence[str]
    expires_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime
    last_used_at: datetime | None
    made_with: str | None
    maker_ends_at: datetime | None
    user_id: str
    name: str
    role: Role
    zone: str
    disabled: bool


class TokenLookups(Groups[str, TokenRow | SQLAlchemyError | None]):
    """Tokens of people, by their SHA-256, that wait to be looked up."""


async def anyone() -> None:
    """Allow everybody: a public route."""


async def signed_in(
    request: Request,
    process: ProcessDep,
    _bearer: Annotated[object, Security(BEARER)] = None,
    _cookie: Annotated[object, Security(SESSION_COOKIE)] = None,
) -> Person:
    """Return any person with a session, or with a valid token that is for this route."""
    needed = scope_of(request.method, request.scope["route"].path)
    return await _identify(
        request, process, needed=needed, only_reads=request.method in SAFE_METHODS
    )


async def enter(websocket: WebSocket, process: Process) -> Person:
    """Return who opens a WebSocket: a person whose token may change jobs, or with a session, from
    one of our own pages."""
    return await _identify(websocket, process, needed=Scope.JOBS, only_reads=False)


async def _identify(
    connection: HTTPConnection, process: Process, *, needed: Scope, only_reads: bool
) -> Person:
    secret, from_cookie = _credential(connection)
    now = utc_now()
    found = await _found(connection, process, digest(secret), only_reads=only_reads)
    found = _in_force(found, now)
    if from_cookie:
        if found.kind is not TokenKind.SESSION:
            raise Unauthenticated("This cookie does not hold a valid session. Sign in again.")
        if not only_reads and not comes_from_us(connection, process):
            raise Forbidden(
                "This request carries a browser's session but does not come from Trainyard's own "
                "pages. Scripts use a bearer token.",
                code="cross_site",
            )
    person = _person(found, needed)
    if _is_stale(found, now):
        await run_in_threadpool(_touch, process, found, now)
    return person


class SentTokens:
    """Bearer tokens of requests that came together, looked up in one query.

    Cookies open nothing here.
    """

    def __init__(self, session: Session, process: Process, requests: Sequence[Request]) -> None:
        self._process = process
        self._now = utc_now()
        sent = [attempt(sent_token, request) for request in requests]
        self._found = _rows(session, [one for one in sent if not isinstance(one, ServiceError)])

    def enter(self, request: Request) -> Person:
        """Return the same person as `signed_in`, or raise the same error."""
        found = _in_force(self._found.get(sent_token(request)), self._now)
        person = _person(found, scope_of(request.method, request.scope["route"].path))
        if _is_stale(found, self._now):
            _touch(self._process, found, self._now)
        return person


def _in_force(found: TokenRow | None, now: datetime) -> TokenRow:
    """Return a token's row; raise Unauthenticated if it opens nothing now."""
    if found is None:
        raise Unauthenticated("This token or session is unknown. Sign in again.")
    ends = [moment for moment in (found.expires_at, found.maker_ends_at) if moment is not None]
    if found.revoked_at is not None or any(moment <= now for moment in ends):
        raise Unauthenticated(
            "This token or session has expired or was revoked. Sign in again.", code="expired"
        )
    if found.disabled:
        raise Unauthenticated("This account is disabled. Ask an administrator.", code="disabled")
    return found


def _person(found: TokenRow, needed: Scope) -> Person:
    """Return the person of a token that is in force; raise MissingScope if it is not for this."""
    is_session = found.kind is TokenKind.SESSION
    held = included([Scope.ALL] if is_session else [Scope(scope) for scope in found.scopes])
    if needed not in held:
        raise MissingScope(needed, held)
    return Person(
        id=found.user_id,
        name=found.name,
        role=found.role if Scope.ALL in held else Role.USER,
        zone=found.zone,
        token_id=found.token_id,
        scopes=held,
        made_with=found.made_with if is_session else found.token_id,
        token_ends_at=found.maker_ends_at if is_session else found.expires_at,
    )


def _is_stale(found: TokenRow, now: datetime) -> bool:
    return found.last_used_at is None or now - found.last_used_at > TOUCH_EVERY


async def staff(person: Annotated[Person, Depends(signed_in)]) -> Person:
    """Return a person who is staff or an administrator; raise Forbidden for others."""
    return _at_least(person, Role.STAFF)


async def admin(person: Annotated[Person, Depends(signed_in)]) -> Person:
    """Return a person who is an administrator; raise Forbidden for others."""
    return _at_least(person, Role.ADMIN)


def node(
    request: Request,
    process: ProcessDep,
    _bearer: Annotated[object, Security(BEARER)] = None,
) -> NodeIdentity:
    """Return an enrolled node that is not retired; raise Unauthenticated otherwise."""
    return enter_as_node(request, process)


def enter_as_node(connection: HTTPConnection, process: Process) -> NodeIdentity:
    """Return the node that makes a request or opens a WebSocket; raise Unauthenticated if it is not
    an enrolled one."""
    with process.read() as session:
        return find_node(session, sent_token(connection))


def sent_token(connection: HTTPConnection) -> str:
    """Return the SHA-256 of the bearer token that was sent. Raises Unauthenticated if there is
    none, or a cookie instead."""
    secret, from_cookie = _credential(connection)
    if from_cookie:
        raise Unauthenticated("Send `Authorization: Bearer <token>`.")
    return digest(secret)


def find_node(session: Session, token_sha256: str) -> NodeIdentity:
    """Return the node with this token; raise Unauthenticated if it is not an enrolled one."""
    found = session.execute(NODE_TOKEN, {"sha256": token_sha256}).one_or_none()
    if found is None or found.revoked_at or found.state is NodeState.RETIRED:
        raise Unauthenticated("This is not the token of an enrolled node. Enrol the node again.")
    return NodeIdentity(id=found.id, name=found.name)


async def _found(
    connection: HTTPConnection, process: Process, sha256: str, *, only_reads: bool
) -> TokenRow | None:
    """Return the row of a token. Reads that share their `state`, as those of one page do, look it
    up once."""
    if not only_reads:
        return await _look_up(process, sha256)
    lookups: dict[str, asyncio.Task[TokenRow | None]]
    lookups = connection.scope.setdefault("state", {}).setdefault("tokens", {})
    if sha256 not in lookups:
        lookups[sha256] = asyncio.create_task(_look_up(process, sha256))
    return await asyncio.shield(lookups[sha256])


async def _look_up(process: Process, sha256: str) -> TokenRow | None:
    """Return the row of a token, looked up together with those that others send at this moment."""

    def look_up(sha256s: Sequence[str]) -> Sequence[TokenRow | SQLAlchemyError | None]:
        try:
            with process.read() as session:
                found = _rows(session, sha256s)
        except SQLAlchemyError as error:
            return [error] * len(sha256s)  # one by one they would fail again, one after the other
        return [found.get(sha256) for sha256 in sha256s]

    found = await process.service(TokenLookups).write(sha256, look_up)
    if isinstance(found, SQLAlchemyError):
        raise found
    return found


def _rows(session: Session, sha256s: Collection[str]) -> dict[str, TokenRow]:
    """Return the rows of known tokens by their SHA-256."""
    if not sha256s:
        return {}
    rows = session.execute(TOKENS, {"sha256s": sorted(set(sha256s))})
    return {sha256: TokenRow(*row) for *row, sha256 in rows}


def _touch(process: Process, found: TokenRow, now: datetime) -> None:
    changes: dict[str, object] = {"last_used_at": now}
    if found.kind is TokenKind.SESSION:
        last = (found.created_at + SESSION_LONGEST, found.maker_ends_at or now + SESSION_IDLE)
        changes["expires_at"] = min(now + SESSION_IDLE, *last)
    process.record(_renew, found.token_id, changes)


def _renew(session: Session, token_id: str, changes: dict[str, object]) -> None:
    session.execute(update(Token).where(Token.id == token_id).values(**changes))


def require_known(request: Request, process: Process) -> None:
    """Raise Unauthenticated for a caller whose credential opens nothing here, before a body is
    read.

    The credential must be in force and of the right kind: a node's token for nodes' routes, a
    person's for all others. Roles and scopes are left to the route.
    """
    secret, _ = _credential(request)
    is_for_nodes = request.url.path.startswith("/v1/node/")
    of_kind = Token.kind == TokenKind.NODE if is_for_nodes else Token.kind != TokenKind.NODE
    with process.read() as session:
        known = session.scalar(
            select(Token.id)
            .outerjoin(User, User.id == Token.user_id)
            .where(Token.sha256 == digest(secret), of_kind, in_force(utc_now()))
        )
    if known is None:
        raise Unauthenticated("This token or session is unknown. Sign in again.")


Public = Depends(anyone)
SignedIn = Annotated[Person, Depends(signed_in)]
StaffOnly = Annotated[Person, Depends(staff)]
AdminOnly = Annotated[Person, Depends(admin)]
NodeOnly = Annotated[NodeIdentity, Depends(node)]

POLICIES = {anyone: "anyone", signed_in: "signed in", staff: "staff", admin: "admin", node: "node"}


def policy_of(dependant: Dependant) -> str | None:
    """Return the access policy of a route: its strictest dependency of this module; None if it has
    none."""
    found = {POLICIES[call] for call in _calls(dependant) if call in POLICIES}
    for policy in ("node", "admin", "staff", "signed in", "anyone"):
        if policy in found:
            return policy
    return None


def declared_scope(policy: str | None, method: str, path: str) -> Scope | None:
    """Return the scope that a person's token needs for a route; None if no person's token opens
    it."""
    if policy in ("staff", "admin"):
        return Scope.ALL
    return scope_of(method, path) if policy == "signed in" else None


def set_session_cookie(response: Response, secret: str, process: Process) -> None:
    """Sign the browser in with a session cookie."""
    response.set_cookie(
        COOKIE,
        secret,
        max_age=int(SESSION_LONGEST.total_seconds()),  # the server ends an idle session earlier
        httponly=True,
        secure=process.is_https,
        samesite="lax",
        path="/",
    )


def refuse_cross_site(request: Request, process: Process) -> None:
    """Refuse requests from another site's page. Scripts, which name no origin, pass."""
    named = request.headers.get("origin") or request.headers.get("sec-fetch-site")
    if named and not comes_from_us(request, process):
        raise Forbidden("A page of another site cannot sign you in here.", code="cross_site")


def comes_from_us(request: HTTPConnection, process: Process) -> bool:
    """Return True if the browser says that one of our own pages sent the request; False if it says
    nothing."""
    if request.headers.get("sec-fetch-site") == "same-origin":
        return True
    host = request.headers.get("host", "")
    ours = (_origin_of(process.url), _origin_of(f"{urlsplit(process.url).scheme}://{host}"))
    origin = _origin_of(request.headers.get("origin", ""))
    return origin is not None and origin in ours


def _origin_of(url: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port, None for a default port; None for a URL without a host."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, None if port == default else port


def _credential(request: HTTPConnection) -> tuple[str, bool]:
    """Return the secret that was sent, and True if it came in a cookie."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise Unauthenticated("Send `Authorization: Bearer <token>`.")
        return secret.strip(), False
    cookie = request.cookies.get(COOKIE)
    if not cookie:
        raise Unauthenticated(
            "Sign in, or send `Authorization: Bearer <token>`. `trainyard login` gets you one."
        )
    return cookie, True


def _at_least(person: Person, role: Role) -> Person:
    if Scope.ALL not in person.scopes:
        raise MissingScope(Scope.ALL, person.scopes)
    if RANK[person.role] < RANK[role]:
        raise Forbidden(f"This needs the role {role}; yours is {person.role}.")
    return person


def _calls(dependant: Dependant) -> Iterable[object]:
    for inner in dependant.dependencies:
        if inner.call is not None:
            yield inner.call
        yield from _calls(inner)
