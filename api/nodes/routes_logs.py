"""POST /v1/node/logs: output of ranks."""

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.nodes.log_pieces import SentPiece, take
from api.nodes.watched import ship_after
from api.web.auth import NodeOnly, sent_token
from api.web.process import Process, ProcessDep
from api.web.short_way import short_way
from core.base.errors import Unauthenticated
from core.wire.messages import LogAck, LogBatch


async def _take_plain(request: Request) -> Response | None:
    """Do what `take_logs` does for a piece in which nothing is wrong; None for others."""
    process: Process = request.app.state.process
    if request.headers.get("content-type") != "application/json":
        return None
    try:
        message = LogBatch.model_validate_json(await request.body())
        sent = SentPiece(sent_token(request), message)
    except (ValidationError, Unauthenticated):
        return None
    ack = await take(process, sent)
    headers = ship_after(process, message.job_id)
    return Response(ack.model_dump_json(), media_type="application/json", headers=headers)


router = APIRouter(prefix="/v1/node", tags=["node protocol"], route_class=short_way(_take_plain))


@router.post("/logs", summary="Send output of a rank")
async def take_logs(
    message: LogBatch, request: Request, response: Response, _: NodeOnly, process: ProcessDep
) -> LogAck:
    """Store the bytes that are new; bytes that were sent before are not stored again.

    The header `Ship-After` says how many seconds later the next ones are wanted; it is missing
    while somebody watches the job.
    """
    ack = await take(process, SentPiece(sent_token(request), message))
    response.headers.update(ship_after(process, message.job_id))
    return ack
