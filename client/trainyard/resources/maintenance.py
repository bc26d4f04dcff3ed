"""`client.maintenance`: hours that staff reserve on nodes."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Maintenance


class MaintenanceHours:
    """Hours that staff keep free of bookings."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan(
        self,
        nodes: Sequence[str],
        start: datetime,
        hours: int,
        *,
        why: str,
        rule: str | None = None,
        zone: str | None = None,
    ) -> Maintenance:
        """Plan maintenance and the treatment of conflicting leases. Changes nothing."""
        body = _maintenance(nodes, start, hours, why, rule, zone, None)
        return decode(Maintenance, self._connection.post("/v1/maintenance/plan", body))

    def keep(
        self,
        nodes: Sequence[str],
        start: datetime,
        hours: int,
        *,
        why: str,
        rule: str | None = None,
        zone: str | None = None,
        plan: str | None = None,
    ) -> Maintenance:
        """Keep the hours. If leases conflict, the `plan` that was shown is required."""
        body = _maintenance(nodes, start, hours, why, rule, zone, plan)
        return decode(Maintenance, self._connection.post("/v1/maintenance", body))

    def list(self, *, limit: int | None = None) -> Iterator[Maintenance]:
        """Iterate over all maintenances, newest first."""
        return all_pages(self._connection, "/v1/maintenance", Maintenance, limit=limit)

    def end(self, maintenance_id: str) -> None:
        """Open the hours of a maintenance for bookings, from now on."""
        self._connection.delete(f"/v1/maintenance/{segment(maintenance_id)}")


def _maintenance(
    nodes: Sequence[str],
    start: datetime,
    hours: int,
    why: str,
    rule: str | None,
    zone: str | None,
    plan: str | None,
) -> dict[str, object]:
    return {
        "nodes": list(nodes),
        # A time of day refers to the zone that is given with it.
        "start": start.isoformat() if zone is not None else written(start),
        "hours": hours,
        "why": why,
        "rule": rule,
        "zone": zone,
        "plan": plan,
    }
