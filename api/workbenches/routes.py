"""/v1/workbenches: one's workbenches, and the WebSockets that lead into them.

A WebSocket's handshake is a GET that any page may send with a browser's cookies, so it is held to
the rules of a request that changes something (`api.web.auth.enter`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import structlog
from fastapi import APIRouter, Path, Query, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.jobs.job_views import show_job
from api.web.auth import SignedIn, enter, enter_as_node
from api.web.bells import Bells
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import PlainText
from api.workbenches import finding, passes
from api.workbenches.origins import domain_of, host_of, why_off
from api.workbenches.schemas import WorkbenchEntryView, WorkbenchView
from api.workbenches.tunnels import Key, NotConnected, Stream, StreamLost, Tunnels
from core.base.clock import utc_now
from core.base.errors import NotSupportedYet, ServiceError
from core.jobs import idleness
from core.wire.frames import IdleReport

router = APIRouter(prefix="/v1/workbenches", tags=["workbenches"])
sockets = APIRouter()

OVER, TRY_AGAIN, REFUSED = 1000, 1013, 1008
"""Codes of WebSockets' ends: the shell has ended, connect again, do not."""
CHECKED_EVERY_S = 10.0
PUBLIC_KEY = r"^ssh-ed25519 [A-Za-z0-9+/]{68}$"
MAX_SIDE = 1000  # rows or columns of a window

log = structlog.get_logger()

Side = Annotated[int, Query(ge=1, le=MAX_SIDE)]


@router.get("", summary="List my workbenches")
def list_workbenches(person: SignedIn, process: ProcessDep) -> Page[WorkbenchView]:
    """List your workbenches that wait or run, newest first. A workbench is a job: it is started by
    POST /v1/jobs and stopped by POST /v1/jobs/{id}/cancel."""
    with process.read() as session:
        found = finding.list_workbenches(
            session, person, browser_is_off=why_off(process.settings), now=utc_now()
        )
    return Page[WorkbenchView](data=found)


@router.post("/{job_id}/entry", status_code=201, summary="Open a workbench in the browser")
def enter_browser(job_id: PlainText, person: SignedIn, process: ProcessDep) -> WorkbenchEntryView:
    """Return an address that leads a browser into your workbench, once and within 30 seconds. The
    browser stays in until the workbench ends, or the session or token that asked for it does."""
    domain = domain_of(process.settings)
    if not domain:
        raise NotSupportedYet(why_off(process.settings), code="no_workbench_domain")
    with process.read() as session:
        key = finding.find_entry(session, job_id, person)
        finding.require_browser(session, job_id)
    now = utc_now()
    ticket = process.transact(passes.make_ticket, key, person.token_id, now=now)
    scheme = "https" if process.is_https else "http"
    return WorkbenchEntryView(
        url=f"{scheme}://{host_of(key, domain)}/.trainyard/enter#{ticket}",
        expires_at=now + passes.TICKET_LIVES,
    )


@sockets.websocket("/v1/node/workbenches/{job_id}/{epoch}/tunnel")
async def hold_tunnel(websocket: WebSocket, job_id: PlainText, epoch: int) -> None:
    """Hold the connection of a workbench's node."""
    process = process_behind(websocket)
    try:
        node = await run_in_threadpool(enter_as_node, websocket, process)
        await run_in_threadpool(_require_part, process, job_id, epoch, node.id)
    except ServiceError as error:
        await refuse(websocket, error)
        return
    await websocket.accept()

    async def hear() -> bytes | None:
        try:
            return await websocket.receive_bytes()
        except (WebSocketDisconnect, KeyError):  # gone, or it sent text
            return None

    async def say(frame: bytes) -> None:
        try:
            await websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise NotConnected("The workbench's node is not connected now. Try again.") from error

    key = Key(job_id, epoch)

    async def heed(report: IdleReport) -> bool:
        try:
            await run_in_threadpool(process.transact, _take_report, key, report, now=utc_now())
        except (ServiceError, DBAPIError) as error:
            log.warning("idleness_not_recorded", job=job_id, error=str(error)[:300])
            return False
        return True

    with suppress(NotConnected):
        await process.service(Tunnels).hold(key, hear, say, heed)
    with suppress(RuntimeError):
        await websocket.close(TRY_AGAIN)


@sockets.websocket("/v1/workbenches/{job_id}/terminals/{name}")
async def open_terminal(
    websocket: WebSocket,
    job_id: PlainText,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,40}$")],
    rows: Side = 24,
    columns: Side = 80,
    offset: Annotated[int | None, Query(ge=0)] = None,
) -> None:
    """Show a terminal of a workbench, and type into it; it is started if it is not there.

    Bytes are the terminal's own. Texts are JSON: `{"rows": 24, "columns": 80}` of the window to the
    server; `{"offset": 0, "is_new": true, "ends_at": "..."}` to the client, once, with the place
    in the terminal's output at which the bytes begin. Who was cut off gives the number of bytes
    that were seen as `offset`.
    """
    process = process_behind(websocket)
    try:
        person = await enter(websocket, process)
        key, ends_at = await run_in_threadpool(_entry, process, job_id, person)
        wanted = {"terminal": name, "rows": rows, "columns": columns, "offset": offset}
        stream = await process.service(Tunnels).open(key, wanted)
    except StreamLost as error:
        await refuse(websocket, NotConnected(f"The terminal was not opened: {error}."))
        return
    except ServiceError as error:
        await refuse(websocket, error)
        return
    await websocket.accept()
    facts = await stream.facts
    told = {
        "offset": facts.get("offset"),
        "is_new": facts.get("is_new"),
        "ends_at": None if ends_at is None else ends_at.isoformat(),
    }
    await websocket.send_text(json.dumps(told))
    await bridge(websocket, stream, still_allowed=lambda: enter(websocket, process))


@sockets.websocket("/v1/workbenches/{job_id}/ssh")
async def open_ssh(
    websocket: WebSocket, job_id: PlainText, key: Annotated[str, Query(pattern=PUBLIC_KEY)]
) -> None:
    """Pass bytes between a stock SSH client and the server in a workbench, which lets in `key`, an
    ed25519 key as OpenSSH writes it, as long as the workbench runs.

    The first message is a text, `{"host_key": "ssh-ed25519 ..."}`: it comes by the same way as the
    bytes, so a client need trust nothing else.
    """
    process = process_behind(websocket)
    try:
        person = await enter(websocket, process)
        at, _ = await run_in_threadpool(_entry, process, job_id, person)
        stream = await process.service(Tunnels).open(at, {"ssh": key})
    except StreamLost as error:
        await refuse(websocket, NotConnected(f"SSH was not opened: {error}."))
        return
    except ServiceError as error:
        await refuse(websocket, error)
        return
    await websocket.accept()
    facts = await stream.facts
    await websocket.send_text(json.dumps({"host_key": facts.get("host_key")}))
    await bridge(websocket, stream, still_allowed=lambda: enter(websocket, process))


async def bridge(
    websocket: WebSocket, stream: Stream, *, still_allowed: Callable[[], Awaitable[Person]]
) -> None:
    """Pass bytes between a person and a workbench until one of them ends it, or the person may no
    longer: who signs out is out within seconds."""
    ends = [
        asyncio.create_task(_show(websocket, stream)),
        asyncio.create_task(_hear(websocket, stream)),
        asyncio.create_task(_watch_over(still_allowed)),
    ]
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        code, why = done.pop().result()
        with suppress(RuntimeError, WebSocketDisconnect):
            await websocket.close(code, why[:100])
    finally:
        for task in ends:
            task.cancel()
        await stream.close()


async def _show(websocket: WebSocket, stream: Stream) -> tuple[int, str]:
    try:
        while piece := await stream.read():
            await websocket.send_bytes(piece)
            await stream.give_back(len(piece))
    except (WebSocketDisconnect, RuntimeError):
        return OVER, ""
    except NotConnected:
        return TRY_AGAIN, "the connection to the node is lost"
    end = stream.end or {}
    return OVER if end.get("is_over") is True else TRY_AGAIN, str(end.get("why", ""))


async def _hear(websocket: WebSocket, stream: Stream) -> tuple[int, str]:
    try:
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                return OVER, ""
            if (typed := message.get("bytes")) is not None:
                await stream.write(typed)
            else:
                size = json.loads(message["text"])
                rows, columns = int(size["rows"]), int(size["columns"])
                if not (1 <= rows <= MAX_SIDE and 1 <= columns <= MAX_SIDE):
                    return REFUSED, f"a window has 1 to {MAX_SIDE} rows and columns"
                await stream.resize(rows, columns)
    except NotConnected:
        return TRY_AGAIN, "the connection to the node is lost"
    except (ValueError, KeyError, TypeError):
        return REFUSED, "a text must be the size of the window, as JSON"


async def _watch_over(still_allowed: Callable[[], Awaitable[Person]]) -> tuple[int, str]:
    while True:
        await asyncio.sleep(CHECKED_EVERY_S)
        try:
            await still_allowed()
        except ServiceError as error:
            return REFUSED, error.message


async def refuse(websocket: WebSocket, error: ServiceError) -> None:
    """Answer a handshake with an error, as the API answers a request."""
    detail = {"code": error.code, "detail": error.message, "status": error.status}
    await websocket.send(
        {
            "type": "websocket.http.response.start",
            "status": error.status,
            "headers": [(b"content-type", b"application/problem+json")],
        }
    )
    await websocket.send(
        {"type": "websocket.http.response.body", "body": json.dumps(detail).encode()}
    )


def process_behind(websocket: WebSocket) -> Process:
    """Return the process that answers."""
    process = websocket.app.state.process
    assert isinstance(process, Process)
    return process


def _entry(process: Process, job_id: str, person: Person) -> tuple[Key, datetime | None]:
    with process.read() as session:
        key = finding.find_entry(session, job_id, person)
        return key, show_job(session, job_id, person).stops_at


def _take_report(
    session: Session, bells: Bells, key: Key, report: IdleReport, *, now: datetime
) -> None:
    if idleness.take_report(session, key.job_id, key.epoch, report, now=now):
        bells.scheduler = True  # guests come, or leave
        bells.jobs.add(key.job_id)


def _require_part(process: Process, job_id: str, epoch: int, node_id: str) -> None:
    with process.read() as session:
        finding.require_part(session, job_id, epoch, node_id=node_id)
