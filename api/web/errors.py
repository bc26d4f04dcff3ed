"""Every error as a problem document (RFC 9457) that names the field, the number and the way out."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import DataError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.web.schemas import ProblemDocument, ProblemItem
from core.base.errors import (
    BadRequest,
    Conflict,
    ServiceError,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from core.base.strict_text import flaws

MAX_ERRORS = 50
QUEUE_RETRY_S = 60  # a full queue has no known end; a minute is worth another try
CLIENT_GONE = 499  # nobody reads it; not an error of ours in the counts of answers
TITLES = {
    400: ("bad_request", "Bad request"),
    401: ("unauthenticated", "Not signed in"),
    403: ("forbidden", "Not allowed"),
    404: ("not_found", "Not found"),
    405: ("method_not_allowed", "Method not allowed"),
    413: ("too_large", "Too large"),
    415: ("unsupported_media_type", "Unsupported media type"),
    422: ("invalid", "Invalid request"),
    431: ("too_large", "Too large"),
    500: ("internal", "Internal error"),
}

log = structlog.get_logger()


class InvalidRequest(BadRequest):
    """Several errors in one request; all are listed."""

    def __init__(
        self,
        items: Sequence[ProblemItem],
        *,
        code: str | None = None,
        detail: str | None = None,
        choices: Sequence[datetime] = (),
    ) -> None:
        first = items[0]
        more = f" ({len(items) - 1} more below.)" if len(items) > 1 else ""
        super().__init__(
            detail or f"{first.message}{more}", code=code or "invalid", param=first.param
        )
        self.items = list(items[:MAX_ERRORS])
        self.choices = list(choices)


class InTheWay(Conflict):
    """Refusal of a change while the listed things stand in its way."""

    code = "in_the_way"

    def __init__(self, message: str, items: Sequence[ProblemItem]) -> None:
        super().__init__(message)
        self.items = list(items[:MAX_ERRORS])


Page = Callable[[Request], Awaitable[Response]]


def add_error_handlers(app: FastAPI) -> None:
    """Turn everything that can be raised into a problem document; where nothing is, a browser gets
    the page in `app.state.nothing_here`."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _client_gone)
    app.add_exception_handler(OperationalError, _database_away)
    app.add_exception_handler(NoConnection, _database_away)
    app.add_exception_handler(DataError, _not_storable)
    app.add_exception_handler(UnicodeEncodeError, _not_storable)
    app.add_exception_handler(StatementError, _statement_error)
    app.add_exception_handler(OverflowError, _not_storable)
    app.add_exception_handler(Exception, _internal_error)


def problem_response(
    problem: ProblemDocument, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the document as a response."""
    return Response(
        problem.model_dump_json(exclude_none=True),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=dict(headers or {}),
    )


def service_problem(error: ServiceError) -> ProblemDocument:
    """Return the document of one of the platform's own errors."""
    return ProblemDocument(
        title=error.title,
        status=error.status,
        code=error.code,
        detail=error.message,
        param=error.param,
        errors=error.items if isinstance(error, InvalidRequest | InTheWay) else [],
        choices=[moment.isoformat() for moment in getattr(error, "choices", ())],
    )


def validation_items(
    errors: Sequence[Mapping[str, Any]],
    *,
    prefix: str = "",
    lines: Mapping[tuple[str | int, ...], int] | None = None,
) -> list[ProblemItem]:
    """Return Pydantic's errors as sentences that begin with the field; `lines` adds line
    numbers."""
    return [
        ProblemItem(param=flaw.param, code=flaw.code, message=flaw.message)
        for flaw in flaws(errors, prefix=prefix, lines=lines)
    ]


async def _service_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    headers = {}
    if isinstance(error, TooMany):
        headers["Retry-After"] = str(getattr(error, "retry_after_s", QUEUE_RETRY_S))
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(getattr(error, "retry_after_s", 5))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    headers |= getattr(error, "headers", {})
    return problem_response(service_problem(error), headers)


async def _validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(service_problem(InvalidRequest(validation_items(error.errors()))))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wants_page = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    if wants_page and not request.url.path.startswith("/v1/"):
        page: Page = request.app.state.nothing_here
        return await page(request)
    code, title = TITLES.get(error.status_code, ("error", "Error"))
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"{request.url.path[:200]} does not exist."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        detail = f"{request.method} is not allowed at this address" + (
            f"; use {allowed}." if allowed else "."
        )
    return problem_response(
        ProblemDocument(title=title, status=error.status_code, code=code, detail=detail),
        error.headers,
    )


async def _client_gone(_: Request, error: Exception) -> Response:
    """Answer nobody: the client left before its request was read, as a page does that asks anew."""
    return Response(status_code=CLIENT_GONE)


async def _database_away(request: Request, error: Exception) -> Response:
    log.warning("database_away", path=request.url.path, error=str(error))
    away = Unavailable("The database is not answering right now. Nothing was changed; try again.")
    return await _service_error(request, away)


async def _not_storable(request: Request, error: Exception) -> Response:
    log.info("not_storable", path=request.url.path, error=str(error)[:500])
    refused = BadRequest(
        "This request contains a value that cannot be stored: a NUL character, half of a "
        "surrogate pair, or a number beyond 64 bits. Remove it and send the request again.",
        code="not_storable",
    )
    return await _service_error(request, refused)


async def _statement_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StatementError)
    if isinstance(error.orig, UnicodeEncodeError | OverflowError | ValueError):
        return await _not_storable(request, error)
    return await _internal_error(request, error)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("unexpected_error", path=request.url.path, exc_info=error)
    code, title = TITLES[500]
    return problem_response(
        ProblemDocument(
            title=title,
            status=500,
            code=code,
            detail="The server failed on this request and wrote the error to the API's log. "
            "Try again; with the same Idempotency-Key that is safe.",
        ),
        # This answer is made outside of every middleware.
        {"X-Request-Id": structlog.contextvars.get_contextvars().get("request", "")},
    )


def too_large(size: int, max_bytes: int) -> TooLarge:
    """Return the error for a body of `size` bytes or more."""
    return TooLarge(
        f"The body has {size:,} bytes or more; the limit is {max_bytes:,}. Send less at once."
    )
