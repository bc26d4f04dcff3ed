"""Upload of a request's body, streamed to disk under a cap."""

import anyio
from fastapi import Request

from api.files.store import IncomingFile
from api.web.errors import too_large

PIECE = 1 << 20  # bytes gathered before a thread writes them


async def receive(request: Request, incoming: IncomingFile, *, max_bytes: int) -> None:
    """Write the whole body to `incoming`. Raises TooLarge as soon as it must exceed `max_bytes`."""
    promised = request.headers.get("content-length", "")
    if promised.isdigit() and int(promised) > max_bytes:
        raise too_large(int(promised), max_bytes)
    pending = bytearray()
    async for piece in request.stream():
        pending += piece
        if incoming.size + len(pending) > max_bytes:
            raise too_large(incoming.size + len(pending), max_bytes)
        if len(pending) >= PIECE:
            await anyio.to_thread.run_sync(incoming.write, bytes(pending))
            pending.clear()
    if pending:
        await anyio.to_thread.run_sync(incoming.write, bytes(pending))
