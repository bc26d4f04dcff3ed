"""Origins of workbenches in the browser: one for each attempt, on a domain that is not ours.

What runs there is written by a user, with other people's packages. On an origin of its own no
cookie of ours reaches it, and no page of it reaches ours with one. Whoever enters has a pass of
that origin; a request must come from the origin itself, or from the address bar, and what is passed
on holds no secret of ours.
"""

import re
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.middleware.headers import is_loopback
from api.web.auth import COOKIE as SESSION_COOKIE
from api.web.process import Process
from api.workbenches import passes
from api.workbenches.finding import end_of
from api.workbenches.passes import Passes
from api.workbenches.proxy import forward, forward_socket
from api.workbenches.tunnels import Key, NotConnected, Tunnels
from core.base.clock import utc_now
from core.base.errors import ServiceError
from core.process.settings import ApiSettings

COOKIE = "__Host-trainyard_workbench"
HIDDEN = (COOKIE.encode(), SESSION_COOKIE.encode())
OURS = "/.trainyard/"  # addresses of an origin that are not the workbench's
CLOCK = "/.trainyard/clock"  # its end, for its own pages
LABEL = re.compile(r"([0-9a-z]{26})-([0-9]{1,9})")
MAX_TICKET_BYTES = 1000
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'"
PAGE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ENTER_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Workbench</title>
<script src="/.trainyard/enter.js"></script><p id="said">Entering the workbench.</p></html>
"""
# The ticket is in the fragment, which is in no log and in no Referer.
ENTER_SCRIPT = """const ticket = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
fetch("/.trainyard/enter", { method: "POST", body: ticket }).then(async (answer) => {
  if (answer.ok) location.replace("/");
  else document.getElementById("said").textContent = (await answer.json()).detail;
});
"""


def domain_of(settings: ApiSettings) -> str:
    """Return the domain of workbenches in the browser, with its port; empty if they are off."""
    if settings.workbench_domain:
        return settings.workbench_domain.lower()
    parts = urlsplit(settings.url)
    if not is_loopback(parts.hostname or ""):
        return ""
    return f"localhost:{parts.port}" if parts.port else "localhost"


def why_off(settings: ApiSettings) -> str:
    """Return the reason why workbenches in the browser are off; empty if they are on."""
    if domain_of(settings):
        return ""
    return (
        "Workbenches in the browser need a domain of their own, which this site has not named: "
        "an administrator sets TRAINYARD_WORKBENCH_DOMAIN. Terminals work without."
    )


def domain_flaw(settings: ApiSettings) -> str:
    """Return the reason why a domain must not be used: pages of workbenches would be of one site
    with ours, and get our cookies; empty if there is none."""
    named = (urlsplit(f"//{settings.workbench_domain}").hostname or "").lower()
    ours = (urlsplit(settings.url).hostname or "").lower()
    if not settings.workbench_domain or named == "localhost":
        return ""
    parent = ours.partition(".")[2]
    beside = parent if "." in parent else ours
    if f".{named}".endswith(f".{beside}") or f".{ours}".endswith(f".{named}"):
        return (
            f"TRAINYARD_WORKBENCH_DOMAIN={settings.workbench_domain} is of the same site as the "
            f"public address, {ours}: pages of workbenches could send people's cookies. Name "
            "another registered domain."
        )
    return ""


def host_of(key: Key, domain: str) -> str:
    """Return the host, with the port, of an attempt's origin."""
    return f"{key.job_id.removeprefix('job_')}-{key.epoch}.{domain}"


class WorkbenchOrigins:
    """ASGI middleware: answers on the origins of workbenches; all other hosts are the app's."""

    def __init__(self, app: ASGIApp, process: Process) -> None:
        self.app, self.process = app, process
        self.domain = domain_of(process.settings)
        self.suffix = f".{self.domain}"
        self.passes = Passes()
        self.scheme = "https" if process.is_https else "http"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "").lower() if "headers" in scope else ""
        if not self.domain or not host.endswith(self.suffix):
            await self.app(scope, receive, send)
            return
        named = LABEL.fullmatch(host.removesuffix(self.suffix))
        key = Key(f"job_{named[1]}", int(named[2])) if named else None
        origin = f"{self.scheme}://{host}"
        if scope["type"] == "websocket":
            await self._answer_socket(HTTPConnection(scope), receive, send, key, origin)
        else:
            answer = await self._answer(Request(scope, receive), key, origin)
            if answer is not None:
                await answer(scope, receive, send)
            elif key is not None:
                await forward(self.process, key, scope, receive, send, hidden=HIDDEN)

    async def _answer(self, request: Request, key: Key | None, origin: str) -> Response | None:
        """Return our own answer; None if the workbench is to answer."""
        if key is None:
            return _refusal(404, "There is no workbench at this address.")
        path = request.url.path
        if path.startswith(OURS) and path != CLOCK:
            return await self._enter(request, key, origin)
        if not _is_from(request, origin):
            return _refusal(403, "This page was opened from another site. " + self._again())
        if not await self._may_enter(request, key):
            return _refusal(
                403, "You have no pass to this workbench, or it is over. " + self._again()
            )
        if path == CLOCK and request.method == "POST":  # a key was pressed there
            with suppress(NotConnected):
                await self.process.service(Tunnels).stir(key)
            return Response(status_code=204, headers=PAGE_HEADERS)
        if path == CLOCK:
            ends_at = await run_in_threadpool(_end_of, self.process, key)
            told = None if ends_at is None else ends_at.isoformat()
            return JSONResponse({"ends_at": told}, headers=PAGE_HEADERS)
        return None

    async def _answer_socket(
        self, connection: HTTPConnection, receive: Receive, send: Send, key: Key | None, origin: str
    ) -> None:
        # A handshake is a GET that any page may send, with this origin's cookies.
        allowed = key is not None and connection.headers.get("origin", "").lower() == origin
        if key is None or not allowed or not await self._may_enter(connection, key):
            await send({"type": "websocket.close", "code": 1008})  # before accepting it: 403
            return

        async def still_allowed() -> bool:
            return await self._may_enter(connection, key)

        await forward_socket(
            self.process, key, connection, receive, send, hidden=HIDDEN, still_allowed=still_allowed
        )

    async def _enter(self, request: Request, key: Key, origin: str) -> Response:
        match request.method, request.url.path:
            case "GET", "/.trainyard/enter":
                return HTMLResponse(ENTER_PAGE, headers=PAGE_HEADERS)
            case "GET", "/.trainyard/enter.js":
                return Response(ENTER_SCRIPT, media_type="text/javascript", headers=PAGE_HEADERS)
            case "POST", "/.trainyard/enter":
                return await self._trade(request, key, origin)
        return _refusal(404, "There is nothing at this address.")

    async def _trade(self, request: Request, key: Key, origin: str) -> Response:
        if request.headers.get("origin", "").lower() != origin:
            return _refusal(403, "A ticket is used on the page that it leads to.")
        ticket = b""
        async for piece in request.stream():
            ticket += piece
            if len(ticket) > MAX_TICKET_BYTES:
                return _refusal(413, "This is not a ticket.")
        try:
            cookie = await run_in_threadpool(
                self.process.transact,
                passes.use_ticket,
                key,
                ticket.decode(errors="replace"),
                now=utc_now(),
            )
        except ServiceError as error:
            return _refusal(error.status, error.message)
        answer = Response(status_code=204, headers=PAGE_HEADERS)
        answer.set_cookie(COOKIE, cookie, secure=True, httponly=True, samesite="lax", path="/")
        return answer

    async def _may_enter(self, connection: HTTPConnection, key: Key) -> bool:
        cookie = connection.cookies.get(COOKIE)
        return bool(cookie) and await self.passes.are_valid(self.process, key, str(cookie))

    def _again(self) -> str:
        return f"Open it from Trainyard: {self.process.url}/workbenches"


def _end_of(process: Process, key: Key) -> datetime | None:
    with process.read() as session:
        return end_of(session, key)


def _is_from(request: Request, origin: str) -> bool:
    """Return True if a request comes from the origin's own pages or, if it only reads, from the
    address bar. Browsers say so; what says nothing is a program, which has no cookie by itself."""
    named = request.headers.get("origin")
    if named is not None and named.lower() != origin:
        return False
    if request.method not in ("GET", "HEAD", "OPTIONS") and named is None:
        return False
    return request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _refusal(status: int, detail: str) -> Response:
    return JSONResponse(
        {"status": status, "detail": detail},
        status_code=status,
        headers=PAGE_HEADERS,
    )
