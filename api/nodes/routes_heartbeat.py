"""POST /v1/node/heartbeat: a node reports all that it observes, and gets all orders for it."""

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from api.nodes import reports
from api.nodes.pace import NodeCount, is_at_work, pause_s
from api.nodes.unchanged_beats import MarkedBeat, is_unchanged
from api.web.auth import NodeOnly, sent_token
from api.web.places import LaneKind, place_of
from api.web.process import Process, ProcessDep
from api.web.short_way import short_way
from core.base.clock import utc_now
from core.base.errors import Unauthenticated
from core.wire.messages import BEAT_AFTER, ORDERS_MARK, Heartbeat, Orders


async def _beat_plain(request: Request) -> Response | None:
    """Do what `beat` does for a heartbeat in which nothing is wrong; None for others."""
    process: Process = request.app.state.process
    if request.headers.get("content-type") != "application/json":
        return None
    try:
        message = Heartbeat.model_validate_json(await request.body())
        token_sha256 = sent_token(request)
    except (ValidationError, Unauthenticated):
        return None
    mark = request.headers.get(ORDERS_MARK)
    if mark and await is_unchanged(process, MarkedBeat(token_sha256, mark, message)):
        return Response(status_code=204, headers=_pace(process, message))
    await place_of(request).take(LaneKind.WHOLE_BEATS)
    return await run_in_threadpool(_take_whole, process, message, token_sha256)


router = APIRouter(prefix="/v1/node", tags=["node protocol"], route_class=short_way(_beat_plain))


@router.post(
    "/heartbeat",
    response_model=Orders,
    responses={204: {"description": "The orders are those that the node's `Orders-Mark` names."}},
    summary="Report observed attempts and get desired ones",
)
def beat(message: Heartbeat, request: Request, _: NodeOnly, process: ProcessDep) -> Response:
    """Take in the full observed state of the node; return the full desired state.

    The header `Beat-After` says how many seconds after this heartbeat the next one is wanted, if
    the node has no news. A node that sends back the header `Orders-Mark` gets 204 if it has nothing
    new to report and its orders are still the same.
    """
    return _take_whole(process, message, sent_token(request))


def _take_whole(process: Process, message: Heartbeat, token_sha256: str) -> Response:
    finished, orders, mark = process.transact_first(
        reports.beat,
        message,
        token_sha256=token_sha256,
        quota=process.settings.workspace_quota,
        num_nodes=process.service(NodeCount).number,
        now=utc_now(),
    )
    for job_id, attempt_id in finished:  # apart: merging a long curve takes a while
        process.transact(reports.merge_curve, job_id, attempt_id)
    process.service(NodeCount).look(process.database)
    without = None if orders.unread else {"unread"}
    marked = {ORDERS_MARK: mark} if mark else {}
    return Response(
        orders.model_dump_json(exclude=without),
        media_type="application/json",
        headers={**_pace(process, message), **marked},
    )


def _pace(process: Process, message: Heartbeat) -> dict[str, str]:
    """Return the header that says when the next heartbeat is wanted."""
    wait_s = pause_s(
        process.service(NodeCount).number,
        process.settings.unreachable_after_s,
        is_at_work=is_at_work(message),
    )
    return {BEAT_AFTER: f"{wait_s:.2f}"}
