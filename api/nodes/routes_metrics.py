"""POST /v1/node/metrics: lines of metrics.jsonl."""

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from api.nodes.metric_batches import SentBatch, take
from api.nodes.watched import ship_after
from api.records.metric_store import read_batch
from api.web.auth import NodeOnly, sent_token
from api.web.process import Process, ProcessDep
from api.web.short_way import short_way
from core.base.errors import BadRequest, Unauthenticated
from core.wire.messages import MetricsAck, MetricsBatch


async def _take_plain(request: Request) -> Response | None:
    """Do what `take_metrics` does for a batch in which nothing is wrong; None for others."""
    process: Process = request.app.state.process
    if request.headers.get("content-type") != "application/json":
        return None
    try:
        message = MetricsBatch.model_validate_json(await request.body())
        batch = read_batch(message.lines, message.first_line)
        sent = SentBatch(sent_token(request), message, batch)
    except (ValidationError, BadRequest, Unauthenticated):
        return None
    ack = await take(process, sent)
    headers = ship_after(process, message.job_id)
    return Response(ack.model_dump_json(), media_type="application/json", headers=headers)


router = APIRouter(prefix="/v1/node", tags=["node protocol"], route_class=short_way(_take_plain))


@router.post("/metrics", summary="Send lines of metrics.jsonl")
async def take_metrics(
    message: MetricsBatch, request: Request, response: Response, _: NodeOnly, process: ProcessDep
) -> MetricsAck:
    """Store the lines that are new; lines that were sent before are not stored again.

    The header `Ship-After` says how many seconds later the next ones are wanted; it is missing
    while somebody watches the job.
    """
    batch = read_batch(message.lines, message.first_line)
    ack = await take(process, SentBatch(sent_token(request), message, batch))
    response.headers.update(ship_after(process, message.job_id))
    return ack
