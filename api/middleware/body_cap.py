"""Caps on request bodies: by address, and stricter as long as the sender is not known.

FastAPI reads and parses a body before it asks who sent it, in the one thread that answers
everybody. So a stranger's body is cut off after a few KB, and every body is bounded by what costs
time: less the number of bytes than the number of values. A thread would not help: the parser holds
the interpreter until it is done, some 10 ms for the worst body that a person may send and 40 ms for
a node's.
"""

import re

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.web.auth import require_known
from api.web.errors import problem_response, service_problem, too_large
from api.web.process import Process
from core.base.errors import Unauthenticated

MAX_STRANGERS_BYTES = 16 << 10  # an enrolment with 16 GPUs has some 3 KB
MAX_VALUES = 20_000  # commas: 2,000 people to import, a line each, have some 10,000
MAX_BATCH_BYTES = 6 << 20  # of a node: a checkpoint of 10,000 files is the largest
MAX_BATCH_VALUES = 150_000  # 128 KiB of a log, each byte a comma
MAX_METRICS_BYTES = 2 << 20  # a worker sends half a MiB of its lines
MAX_METRICS_VALUES = 300_000  # each a digit
# These stream to disk, under caps of their own.
STREAMED = re.compile(
    r"/v1/(?:datasets|models|code|workspace/files|uploads/[^/]+|node/files/.*)"
    r"|/datasets|/workspace/files"  # forms of the dashboard with a file, which it caps
)
BATCHED = "/v1/node/"
METRICS = "/v1/node/metrics"


class BodyCap:
    """ASGI middleware: 413 for a body over its cap, announced or counted; 401 for a stranger's
    body."""

    def __init__(self, app: ASGIApp, process: Process) -> None:
        self.app = app
        self.process = process
        self._threads = anyio.CapacityLimiter(2)  # outside of every lane

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or STREAMED.fullmatch(scope["path"]):
            await self.app(scope, receive, send)
            return
        cap, most_values = self._bounds(scope["path"])
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > cap:
            refused = too_large(int(announced), cap)
            await problem_response(service_problem(refused))(scope, receive, send)
            return
        received = values = 0
        is_known = False

        async def counted() -> Message:
            nonlocal received, values, is_known
            message = await receive()
            piece = message.get("body", b"")
            received += len(piece)
            values += piece.count(b",")
            if received > cap:
                raise HTTPException(413, too_large(received, cap).message)
            if received > MAX_STRANGERS_BYTES and not is_known:
                await self._require_known(scope)
                is_known = True
            if values > most_values:
                raise HTTPException(
                    413,
                    f"The body has {values:,} values or more; the limit is {most_values:,}. "
                    "Send less at once.",
                )
            return message

        await self.app(scope, counted, send)

    def _bounds(self, path: str) -> tuple[int, int]:
        """Return the largest numbers of bytes and values that are read at an address."""
        if path == METRICS:
            return MAX_METRICS_BYTES, MAX_METRICS_VALUES
        if path.startswith(BATCHED):
            return MAX_BATCH_BYTES, MAX_BATCH_VALUES
        return self.process.settings.max_body_bytes, MAX_VALUES

    async def _require_known(self, scope: Scope) -> None:
        try:
            await anyio.to_thread.run_sync(
                require_known, Request(scope), self.process, limiter=self._threads
            )
        except Unauthenticated as error:
            # FastAPI would answer 400 for any other exception while it reads a body.
            raise HTTPException(401, error.message, {"WWW-Authenticate": "Bearer"}) from error
