"""`client.leases`: hours on a node that are yours alone."""

from collections.abc import Iterator
from datetime import datetime

from trainyard.connection import Connection, segment
from trainyard.decoding import decode
from trainyard.errors import BadInput
from trainyard.paging import all_pages
from trainyard.views import Availability, Lease


class Leases:
    """Booked blocks and walk-ins."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def book(
        self,
        start: datetime,
        hours: int,
        *,
        node_class: str | None = None,
        node: str | None = None,
    ) -> Lease:
        """Whole hours on one node of a class, or on the named node. `start` needs an offset."""
        body = {"node_class": node_class, "node": node, "start": written(start), "hours": hours}
        return decode(Lease, self._connection.post("/v1/leases", body))

    def list(self, *, user: str | None = None, limit: int | None = None) -> Iterator[Lease]:
        """Your leases, the last made first. Staff may name another `user`, or `all`."""
        return all_pages(self._connection, "/v1/leases", Lease, limit=limit, user=user)

    def get(self, lease_id: str) -> Lease:
        """One of them."""
        return decode(Lease, self._connection.get(f"/v1/leases/{segment(lease_id)}"))

    def cancel(self, lease_id: str) -> None:
        """Give a booked one back, or end an active one early."""
        self._connection.delete(f"/v1/leases/{segment(lease_id)}")

    def availability(
        self, start: datetime, hours: int = 24, *, node_class: str | None = None
    ) -> Availability:
        """For every hour from `start` on, the nodes that could be booked for it."""
        answer = self._connection.get(
            "/v1/leases/availability", node_class=node_class, start=written(start), hours=hours
        )
        return decode(Availability, answer)


def written(at: datetime) -> str:
    """RFC 3339. Raises BadInput for a time without offset."""
    if at.tzinfo is None:
        raise BadInput(
            f"{at.isoformat()} has no offset; use datetime.now().astimezone() and the like"
        )
    return at.isoformat()
