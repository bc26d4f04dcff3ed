"""How large a body may be, by address; what is larger is refused before it is read."""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import problem_response, service_problem
from core.errors import TooLarge

MAX_BATCH_BYTES = 16 << 20  # metrics, logs, file lists and heartbeats of a node
# These stream to disk, under caps of their own.
STREAMED = ("/v1/datasets", "/v1/models", "/v1/code", "/v1/node/files/")
BATCHED = "/v1/node/"


class BodyCap:
    """ASGI middleware: 413 for a body over its cap, announced or counted."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(STREAMED):
            await self.app(scope, receive, send)
            return
        cap = MAX_BATCH_BYTES if scope["path"].startswith(BATCHED) else self.max_bytes
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > cap:
            refused = too_large(int(announced), cap)
            await problem_response(service_problem(refused))(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > cap:
                raise HTTPException(413, too_large(received, cap).message)
            return message

        await self.app(scope, counted, send)


def too_large(size: int, max_bytes: int) -> TooLarge:
    """The error for a body of `size` bytes, or more."""
    return TooLarge(f"The body has {size:,} bytes or more; at most {max_bytes:,} are taken.")
