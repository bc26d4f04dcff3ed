"""/v1/admin: enrol, drain and retire nodes; read the audit log."""

from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query
from pydantic import BeforeValidator

from api.admin import audit_log, node_acts, slot_acts
from api.admin.node_acts import NodeAct
from api.admin.schemas_audit import AuditView
from api.admin.slot_acts import SlotAct
from api.nodes.schemas import EnrolmentView, InTheWayView, NewEnrolment, NodeActReason, NodeView
from api.web.auth import StaffOnly
from api.web.process import ProcessDep
from api.web.schemas import AskedMoment, Page
from api.web.text_types import Limit, PlainText
from core.base.clock import utc_now

router = APIRouter(prefix="/v1/admin", tags=["administration"])


def _is_no_page(named: str) -> str:
    """Return the name of an act. Raises 405 for a page at this address that can only be read."""
    if named == "in-the-way":
        raise HTTPException(405, headers={"Allow": "GET"})
    return named


Act = Annotated[NodeAct, BeforeValidator(_is_no_page)]
SlotNumber = Annotated[int, Path(ge=0, le=1023, description="Number of the slot, from 0.")]


@router.post("/enrolments", status_code=201, summary="Enrol a node")
def create_enrolment(wanted: NewEnrolment, person: StaffOnly, process: ProcessDep) -> EnrolmentView:
    """Make a single-use token for one machine, and the command to run there.

    The token is shown only in this answer.
    """
    token, expires_at = process.transact(node_acts.invite, wanted, person)
    command = (
        f"TRAINYARD_API_URL={process.url} TRAINYARD_REDIS_URL=<redis url> "
        f"TRAINYARD_DATA=/var/lib/trainyard TRAINYARD_ENROL_TOKEN={token} trainyard worker"
    )
    return EnrolmentView(token=token, command=command, expires_at=expires_at)


@router.post("/nodes/{node_id}/{act}", summary="Drain, resume, quarantine or retire a node")
def act_on_node(
    node_id: PlainText,
    act: Act,
    person: StaffOnly,
    process: ProcessDep,
    why: NodeActReason | None = None,
) -> NodeView:
    """Drain, maintain, resume, quarantine or retire a node.

    Jobs on a draining node run to their end. `maintenance` drains a node that is in use; it is in
    maintenance once nothing runs on it. Retiring is refused while jobs run on the node or leases
    are open on it; the answer lists them.
    """
    now = utc_now()
    reason = why.reason if why else ""
    return process.transact(
        node_acts.act_on_node, node_id, act, person, process, reason=reason, now=now
    )


@router.post(
    "/nodes/{node_id}/slots/{slot}/{act}", summary="Take a slot out of service, or put it back"
)
def act_on_slot(
    node_id: PlainText, slot: SlotNumber, act: SlotAct, person: StaffOnly, process: ProcessDep
) -> NodeView:
    """Take one slot of a node (a GPU, or a CPU slot) out of service, or put it back.

    Running jobs go on, and the node's other slots are used as before. Nothing starts on the slot,
    whatever the node reports, until it is put back.
    """
    now = utc_now()
    return process.transact(slot_acts.act_on_slot, node_id, slot, act, person, process, now=now)


@router.get("/nodes/{node_id}/in-the-way", summary="List what blocks retiring a node")
def list_in_the_way(node_id: PlainText, person: StaffOnly, process: ProcessDep) -> InTheWayView:
    """Return the jobs that run on a node, and the leases open on it, sorted by start."""
    with process.read() as session:
        return node_acts.in_the_way(session, node_id)


@router.get("/audit", summary="List the audit log")
def list_audit(
    person: StaffOnly,
    process: ProcessDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**63 - 1, description="Id of the last row seen.")
    ] = None,
    actor: Annotated[
        PlainText | None,
        Query(description="Id or name of a person or a node, or the name of a process."),
    ] = None,
    action: Annotated[
        PlainText | None,
        Query(
            description="An action, such as node.drain; `node.` matches every action that "
            "begins with it."
        ),
    ] = None,
    subject: Annotated[
        PlainText | None, Query(description="Id or name of the object that the action was about.")
    ] = None,
    since: Annotated[AskedMoment | None, Query(description="RFC 3339, with an offset.")] = None,
    until: Annotated[AskedMoment | None, Query(description="RFC 3339, with an offset.")] = None,
) -> Page[AuditView]:
    """Return rows of the audit log, newest first: acts of staff and changes of access."""
    with process.read() as session:
        return audit_log.list_audit(
            session, actor, action, subject, since, until, limit=limit, after=after
        )
