"""/v1/maintenance: hours that staff reserve on nodes, once or repeatedly."""

from datetime import datetime

from fastapi import APIRouter, Response

from api.leases import maintenances
from api.leases.schemas import MaintenanceView, NewMaintenance
from api.web.auth import SignedIn, StaffOnly
from api.web.identity import Person
from api.web.process import Process, ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.leases import maintenance
from core.leases.maintenance import DisplacedLease

router = APIRouter(prefix="/v1/maintenance", tags=["leases"])


@router.post("/plan", summary="Plan a maintenance")
def plan_maintenance(
    wanted: NewMaintenance, person: StaffOnly, process: ProcessDep
) -> MaintenanceView:
    """Plan a maintenance: its times, the leases that stand in its way, and whether each would be
    moved to a free node of the class or refunded. Changes nothing."""
    with process.read() as session:
        return maintenances.plan_of(session, wanted, person)


@router.post("", status_code=201, summary="Create a maintenance")
def create_maintenance(
    wanted: NewMaintenance, person: StaffOnly, process: ProcessDep
) -> MaintenanceView:
    """Reserve hours on nodes. If leases stand in the way, the `plan` that was shown is needed; each
    lease is then moved or refunded in its own transaction, and a lease that has changed meanwhile
    is left alone."""
    now = utc_now()
    made = process.transact(maintenances.create, wanted, person, now)
    results = [
        (one, _displace(process, made.row_id, one, person, now, wanted.why))
        for one in made.displaced
    ]
    with process.read() as session:
        return maintenances.show(session, made, results)


@router.get("", summary="List maintenance")
def list_maintenance(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[MaintenanceView]:
    """List every maintenance, newest first."""
    with process.read() as session:
        return maintenances.list_maintenance(session, limit=limit, after=after)


@router.delete("/{maintenance_id}", status_code=204, summary="End a maintenance")
def delete_maintenance(
    maintenance_id: PlainText, person: StaffOnly, process: ProcessDep
) -> Response:
    """Give the remaining hours of a maintenance back, from now on."""
    now = utc_now()
    process.transact(maintenances.end, maintenance_id, person, now=now)
    return Response(status_code=204)


def _displace(
    process: Process, row_id: str, one: DisplacedLease, person: Person, now: datetime, why: str
) -> str:
    """Displace one lease in its own transaction, and hold its hours for the maintenance."""
    if one.act == maintenance.KEEP:
        return "skipped: it has begun"
    return process.transact(maintenances.displace, row_id, one, person, now, why)
