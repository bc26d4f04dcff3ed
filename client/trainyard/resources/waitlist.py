"""`client.waitlist`: hours that are not free yet."""

from collections.abc import Iterator
from datetime import datetime

from trainyard.resources.leases import Start
from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Lease, Wait


class Waitlist:
    """Requests for hours in which no node is free."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def join(
        self,
        first_start: Start,
        hours: int,
        *,
        last_start: datetime | None = None,
        node_class: str | None = None,
        node: str | None = None,
        gpus: int | None = None,
        zone: str | None = None,
    ) -> Wait:
        """Wait for `hours` with a start from `first_start` to `last_start`, or on a day.

        `gpus` is a number of GPUs, or CPU slots, of the node; without it a whole node is wanted.
        """
        body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
        if gpus is not None:
            body["gpus"] = gpus
        if isinstance(first_start, datetime):
            last = last_start or first_start
            body |= {"first_start": written(first_start), "last_start": written(last)}
        else:
            body |= {"on": first_start.isoformat(), "zone": zone}
        return decode(Wait, self._connection.post("/v1/waitlist", body))

    def list(self, *, limit: int | None = None) -> Iterator[Wait]:
        """Iterate over your requests, newest first."""
        return all_pages(self._connection, "/v1/waitlist", Wait, limit=limit)

    def leave(self, wait_id: str) -> None:
        """Withdraw a request."""
        self._connection.delete(f"/v1/waitlist/{segment(wait_id)}")

    def accept(self, wait_id: str) -> Lease:
        """Book the block that is held for the request."""
        path = f"/v1/waitlist/{segment(wait_id)}/accept"
        return decode(Lease, self._connection.post(path, {}))

    def decline(self, wait_id: str) -> Wait:
        """Decline the offered block; the request goes to the end of the line."""
        path = f"/v1/waitlist/{segment(wait_id)}/decline"
        return decode(Wait, self._connection.post(path, {}))
