"""Headers of every answer, and the host names that the API answers to."""

from collections.abc import Callable, Collection
from ipaddress import ip_address
from random import random
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.web.errors import problem_response
from api.web.schemas import ProblemDocument
from core.process.settings import ApiSettings

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ANSWERS_A_CONNECTION = 100  # on average


def allowed_hosts(settings: ApiSettings) -> frozenset[str] | None:
    """Return the host names that the API answers to, in lower case; None for any, as long as only
    this machine reaches it.

    With a public name, the strict list keeps pages of other names from reaching the API by DNS
    rebinding.
    """
    host = (urlsplit(settings.public_url).hostname or "").lower()
    if not host or is_loopback(host):
        return None
    return frozenset({host, "localhost", "127.0.0.1", "::1", *settings.allowed_hosts})


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class BehindProxy:
    """ASGI middleware: takes the caller's address and scheme from the proxy in front of the API.

    Of several addresses the last one is the caller's: the proxy has added it. The addresses before
    it came with the request, so anybody may have written them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            address = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
            scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
            scope = dict(scope)
            if _is_address(address):
                scope["client"] = (address, 0)
            if scheme in ("http", "https") and scope["type"] == "http":
                scope["scheme"] = scheme
        await self.app(scope, receive, send)


class Shell:
    """ASGI middleware: refuses foreign hosts and puts our headers on every answer.

    One answer in a hundred ends its connection. A connection that is kept stays with the process
    that it was opened to, so after one was restarted its neighbour would have all the work.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str] | None,
        *,
        is_https: bool,
        draw: Callable[[], float] = random,
    ) -> None:
        self.app = app
        self.hosts = hosts
        self.draw = draw
        self.headers = dict(HEADERS)
        if is_https:
            self.headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._is_ours(scope):
            await send({"type": "websocket.close", "code": 1008})  # before accepting it: 403
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                if self.draw() < 1 / ANSWERS_A_CONNECTION:
                    headers.setdefault("Connection", "close")
                if scope["path"].startswith("/v1"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if not self._is_ours(scope):
            problem = ProblemDocument(
                title="Unknown host",
                status=421,
                code="unknown_host",
                detail="This host name is not one of Trainyard's. An administrator can add "
                "it to TRAINYARD_ALLOWED_HOSTS.",
            )
            await problem_response(problem)(scope, receive, dressed)
            return
        await self.app(scope, receive, dressed)

    def _is_ours(self, scope: Scope) -> bool:
        return self.hosts is None or _host_of(scope) in self.hosts


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _host_of(scope: Scope) -> str:
    host = Headers(scope=scope).get("host", "")
    return (urlsplit(f"//{host}").hostname or "").lower() if host.isprintable() else ""
