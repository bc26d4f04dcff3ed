"""The viewer of a page: requests to the public API, made in the viewer's own name.

Nothing here knows more than a script with the same session would: the viewer's cookie or token,
origin and address travel on, the API alone decides, and its refusals become pages.
"""

from collections.abc import Awaitable, Collection
from json import dumps
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.types import ASGIApp

from dashboard.inner_calls import Answer, Query, ask
from trainyard.transport.decoding import View, decode
from trainyard.views import Me

AnyAnswer = TypeVar("AnyAnswer")
AnyView = TypeVar("AnyView", bound=View)

# What the API judges a browser's request by.
FORWARDED = (
    *("authorization", "cookie", "host", "origin", "priority", "sec-fetch-site", "user-agent"),
)
MAX_FORM_BYTES = 1_000_000  # as much as the API takes
MAX_FIELDS = 2000
TOO_LARGE = f"This form is larger than the limit of {MAX_FORM_BYTES:,} bytes."


class TooLarge(Exception):
    """A form larger than is read here; the message says how much is."""


class ApiProblem(Exception):
    """The API said no; its problem document says why."""

    def __init__(self, answer: Answer) -> None:
        problem = _problem_of(answer)
        self.status = answer.status
        self.retry_after = answer.headers.get("retry-after", "")
        self.title = str(problem.get("title") or f"Answer {answer.status}")
        self.code = str(problem.get("code") or "")
        self.param = str(problem.get("param") or "")
        self.detail = str(problem.get("detail") or "No reason was given.")
        self.items = [item for item in problem.get("errors", []) if isinstance(item, dict)]
        super().__init__(self.detail)

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """(field, sentence) of everything that is wrong."""
        listed = [(str(one.get("param", "")), str(one.get("message", ""))) for one in self.items]
        return listed or [(self.param, self.detail)]


class Viewer:
    """One request of a browser, and the API behind the page."""

    def __init__(self, app: ASGIApp, request: Request) -> None:
        self.request = request
        self._app = app
        self._state: dict[str, Any] = {}

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        json: object = None,
        yaml: str | None = None,
        content: bytes | None = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        """One answer of the API. Raises ApiProblem for 4xx and 5xx."""
        headers = {
            name: value
            for name in FORWARDED
            if (value := self.request.headers.get(name)) is not None
        }
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        if method != "GET":
            self._state = {}  # a change may be one of what the viewer may do
        body = b""
        if yaml is not None:
            body, headers["content-type"] = yaml.encode(), "application/yaml"
        elif content is not None:
            body, headers["content-type"] = content, "application/octet-stream"
        elif json is not None:
            body = dumps(json, ensure_ascii=False, separators=(",", ":")).encode()
            headers["content-type"] = "application/json"
        if body:
            headers["content-length"] = str(len(body))
        answer = await ask(
            self._app,
            method,
            path,
            outer=self.request.scope,
            state=self._state,
            headers=headers,
            query=query or {},
            body=body,
        )
        if answer.is_error:
            raise ApiProblem(answer)
        return answer

    @staticmethod
    async def or_refusal(
        asked: Awaitable[AnyAnswer], shown: Collection[int]
    ) -> AnyAnswer | ApiProblem:
        """Return the answer, or the refusal if its status is one that the page can show."""
        try:
            return await asked
        except ApiProblem as refused:
            if refused.status not in shown:
                raise
            return refused

    async def get(self, kind: type[AnyView], path: str, query: Query | None = None) -> AnyView:
        """One thing."""
        return decode(kind, (await self.call("GET", path, query=query)).json())

    async def page(
        self, kind: type[AnyView], path: str, query: Query | None = None
    ) -> tuple[list[AnyView], bool]:
        """One page of a list, and whether there is more."""
        document = (await self.call("GET", path, query=query)).json()
        return [decode(kind, item) for item in document["data"]], bool(document["has_more"])

    async def me(self) -> Me:
        """Return the signed-in user. Raises ApiProblem (401) if nobody is signed in."""
        return await self.get(Me, "/v1/me")

    async def form(self) -> dict[str, str]:
        """The fields of a form that was sent; of a repeated one the last."""
        return dict(await self.form_fields())

    async def form_fields(self) -> list[tuple[str, str]]:
        """The same, in order, with repetitions. Raises TooLarge over a million bytes, or over as
        many fields as no form has."""
        body = b""
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > MAX_FORM_BYTES:
                raise TooLarge(TOO_LARGE)
        try:
            return parse_qsl(
                body.decode(errors="replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS
            )
        except ValueError as error:
            raise TooLarge(TOO_LARGE) from error

    def part(self, name: str) -> str:
        """An id in the page's address, fit to stand in an address of the API."""
        return quote(str(self.request.path_params[name]), safe="")

    @staticmethod
    def quoted(name: str) -> str:
        """Any text, fit to stand in an address of the API."""
        return quote(name, safe="")

    def query(self, name: str) -> str:
        """A parameter of the page's address, or an empty text."""
        return self.request.query_params.get(name, "").strip()

    @property
    def is_fragment(self) -> bool:
        """True if a page requests a piece of itself."""
        return "hx-request" in self.request.headers


def local_path(target: str) -> str:
    """`target` if it is a page of ours, else the start page: no way out to another site."""
    plain = all(" " < character < "\x7f" and character != "\\" for character in target)
    return target if plain and target.startswith("/") and not target.startswith("//") else "/jobs"


def _problem_of(answer: Answer) -> dict[str, Any]:
    if "json" not in answer.headers.get("content-type", ""):
        return {}
    document = answer.json()
    return document if isinstance(document, dict) else {}
