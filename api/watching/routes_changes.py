"""/v1/changes/stream: changes of lists, as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from api.watching.hub import Hub
from api.watching.lists import ListName
from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.process import ProcessDep

router = APIRouter(prefix="/v1/changes", tags=["metrics and logs"])


@router.get(
    "/stream",
    summary="Watch lists",
    response_class=StreamingResponse,
    responses=STREAM,
)
async def stream_changes(
    person: SignedIn,
    process: ProcessDep,
    lists: Annotated[
        list[ListName],
        Query(alias="list", min_length=1, description="Names of the lists to watch."),
    ],
) -> StreamingResponse:
    """Stream server-sent events: `changes` (`words`: one for each list, which differs when the list
    may have changed) at the start and whenever a word has changed. Read the list again then."""
    return event_stream(process.service(Hub).stream_lists(person, lists), person, process)
