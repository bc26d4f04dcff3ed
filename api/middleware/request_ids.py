"""Ids of requests: an answer and every line of the log about it carry the same one."""

import re
import uuid

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.base import tracing

HEADER = "X-Request-Id"
TAKEN_OVER = re.compile(r"[A-Za-z0-9._-]{8,64}")  # what a proxy may have given it already
JOB = re.compile(r"/(job_[0-9a-z]{26})\b")


class NameRequests:
    """ASGI middleware: names the request, in the log's context and in the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if TAKEN_OVER.fullmatch(given) else uuid.uuid4().hex
        context = {"request": request_id}
        if (job := JOB.search(scope["path"])) is not None:
            context["job"] = job[1]

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        # Not taken back: each request is a task of its own, and a fault is logged further out.
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**context)
        tracing.note(**context)
        await self.app(scope, receive, named)
