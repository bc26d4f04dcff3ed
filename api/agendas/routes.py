"""/v1/agendas: an ordered list of jobs for one lease, with its timetable and delays."""

from functools import partial
from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from api.agendas import agendas
from api.agendas.agenda_submission import (
    block_of_class,
    block_of_lease,
    plan_agenda,
    read_agenda,
)
from api.agendas.agenda_views import plan_view
from api.agendas.schemas import AgendaPlanView, AgendaView
from api.jobs.plan_cache import PlanCache
from api.jobs.spec_body import EXAMPLE, SpecBody, body_of
from api.leases.schemas import Hours
from api.watching.hub import Hub
from api.watching.routes_stream import STREAM, event_stream
from api.web.auth import SignedIn
from api.web.idempotency import IdempotencyKey, keyed
from api.web.owners import Whose
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest

AGENDA = {
    "name": "lab-1",
    "common": {key: value for key, value in EXAMPLE.items() if key != "name"},
    "jobs": [{"name": "first"}, {"name": "second", "resources": {"wall_time": "30min"}}],
}
AGENDA_BODY = body_of({"$ref": "#/components/schemas/NewAgenda"}, AGENDA)

router = APIRouter(prefix="/v1/agendas", tags=["jobs"])


@router.post("/plan", openapi_extra=AGENDA_BODY, summary="Plan an agenda")
def plan_jobs(
    body: SpecBody,
    person: SignedIn,
    process: ProcessDep,
    lease: Annotated[
        PlainText | None, Query(description="Id of one of your booked leases.")
    ] = None,
    hours: Annotated[
        Hours | None, Query(description="Instead of a lease: the hours of a block,")
    ] = None,
    node_class: Annotated[PlainText | None, Query(description="the class of its node,")] = None,
    nodes: Annotated[
        int | None, Query(ge=1, le=1024, description="and the number of nodes booked together.")
    ] = None,
) -> AgendaPlanView:
    """Plan the start and end of each job as if every one used up its wall time, with the hand-over
    between jobs, and say whether all end in time. Nothing is submitted. The body is JSON or
    YAML."""
    text, _ = body
    agenda = read_agenda(text)
    plans = process.service(PlanCache)
    now = utc_now()
    with process.read() as session:
        if lease is not None and hours is None and node_class is None and nodes is None:
            block = block_of_lease(session, lease, user_id=person.id, now=now)
        elif lease is None and hours is not None and node_class is not None:
            block = block_of_class(session, hours, node_class, nodes or 1, person, now=now)
        else:
            raise BadRequest(
                "Give either lease, or hours and node_class, such as hours=3&node_class=a100x4.",
                param="lease",
            )
        entries = plan_agenda(session, plans, agenda, block, text.lines, user_id=person.id, now=now)
    return plan_view(agenda, entries, block, now=now)


@router.post("", status_code=201, openapi_extra=AGENDA_BODY, summary="Submit an agenda")
def create_agenda(
    body: SpecBody,
    request: Request,
    person: SignedIn,
    process: ProcessDep,
    lease: Annotated[
        PlainText,
        Query(
            description="Id of one of your booked leases; the leases booked together with it "
            "are included."
        ),
    ],
    anyway: Annotated[
        bool,
        Query(
            description="Submit the agenda even if it does not fit; jobs that do not end in "
            "the lease continue in your next lease or in the queue."
        ),
    ] = False,
    key: IdempotencyKey = None,
) -> AgendaView:
    """Queue jobs to run in the lease in their order. All are planned first: if one of them cannot
    run, or not all end in time, none is submitted (`anyway` allows a late end)."""
    text, raw = body
    agenda = read_agenda(text)
    process.limits.count_submission(person.id, jobs=len(agenda.jobs))
    plans = process.service(PlanCache)
    now = utc_now()
    with process.read() as session:
        block = block_of_lease(session, lease, user_id=person.id, now=now)
        entries = plan_agenda(session, plans, agenda, block, text.lines, user_id=person.id, now=now)
    sent = keyed(person, key, f"/v1/agendas?{request.url.query}", raw)
    return process.transact(
        agendas.submit_agenda,
        person,
        process,
        lease,
        anyway,
        sent=sent,
        agenda=agenda,
        entries=entries,
        now=now,
    )


@router.get("", summary="List agendas")
def list_agendas(
    person: SignedIn,
    process: ProcessDep,
    lease: Annotated[PlainText | None, Query(description="Only agendas of this lease.")] = None,
    user: Whose = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[AgendaView]:
    """List your agendas in their present state, newest first."""
    with process.read() as session:
        return agendas.list_agendas(session, person, lease, user, limit=limit, after=after)


@router.get("/{agenda_id}", summary="Get an agenda")
def get_agenda(agenda_id: PlainText, person: SignedIn, process: ProcessDep) -> AgendaView:
    """Return the jobs of an agenda with their planned and real times, their delays, and whether the
    rest still fits."""
    with process.read() as session:
        return agendas.show_agenda(session, agenda_id, person)


@router.get(
    "/{agenda_id}/stream",
    summary="Watch an agenda",
    response_class=StreamingResponse,
    responses=STREAM,
)
async def stream_agenda(
    agenda_id: PlainText, person: SignedIn, process: ProcessDep
) -> StreamingResponse:
    """Stream server-sent events: `agenda` (`AgendaView`) at the start and after every change, `end`
    with the same data once all jobs of the agenda have ended."""
    read = partial(get_agenda, agenda_id, person, process)
    agenda = await anyio.to_thread.run_sync(read)
    job_ids = [line.job for line in agenda.jobs if line.job is not None]
    pieces = process.service(Hub).stream_document("agenda", agenda.id, job_ids, read)
    return event_stream(pieces, person, process)


@router.post("/{agenda_id}/cancel", summary="Cancel the rest of an agenda")
def cancel_agenda(agenda_id: PlainText, person: SignedIn, process: ProcessDep) -> AgendaView:
    """Cancel the waiting jobs of an agenda. A running job continues; it can be cancelled by
    itself."""
    return process.transact(agendas.cancel_agenda, agenda_id, person)
