"""`client.leases`: hours on nodes."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Literal

from trainyard.errors import BadInput
from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages, whole_list
from trainyard.views import Availability, BlockVerdict, Forecast, Lease

Start = datetime | date
"""A moment with its offset; or a day, for any time on it (in your zone, or in `zone`)."""
Prefer = Literal["earliest", "snuggest"]
"""Choice among several possible starts: the first, or the one that fragments free time least."""


class Leases:
    """Booked blocks and walk-ins."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def book(
        self,
        start: Start,
        hours: int,
        *,
        node_class: str | None = None,
        node: str | None = None,
        nodes: Sequence[str] = (),
        count: int = 1,
        gpus: int | None = None,
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> Lease:
        """Book whole hours on one node of a class, on `count` of them, or on named nodes, all or
        none.

        A day instead of a moment asks for the best start on that day, and a `last_start` for the
        best one from `start` to it: the earliest, or the one that fragments free time least
        (`snuggest`). `gpus` is a number of GPUs, or CPU slots, of each node; without it the nodes
        are booked whole.
        """
        body = block(start, hours, node_class, node, nodes, count, zone, last_start, prefer, gpus)
        return decode(Lease, self._connection.post("/v1/leases", body))

    def verdict(
        self,
        start: Start,
        hours: int,
        *,
        node_class: str | None = None,
        node: str | None = None,
        nodes: Sequence[str] = (),
        count: int = 1,
        gpus: int | None = None,
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> BlockVerdict:
        """Return the answer that `book` would give, with every broken rule and the rest of the
        quotas.

        Books nothing.
        """
        body = block(start, hours, node_class, node, nodes, count, zone, last_start, prefer, gpus)
        return decode(BlockVerdict, self._connection.post("/v1/leases/verdict", body))

    def list(self, *, user: str | None = None, limit: int | None = None) -> Iterator[Lease]:
        """Iterate over your leases, newest first. Staff may name another `user`, or `all`."""
        return all_pages(self._connection, "/v1/leases", Lease, limit=limit, user=user)

    def get(self, lease_id: str) -> Lease:
        """Return a lease."""
        return decode(Lease, self._connection.get(f"/v1/leases/{segment(lease_id)}"))

    def extend(self, lease_id: str, hours: int) -> Lease:
        """Extend a lease by `hours`."""
        path = f"/v1/leases/{segment(lease_id)}/extend"
        return decode(Lease, self._connection.post(path, {"hours": hours}))

    def release(self, lease_id: str) -> Lease:
        """Cancel a booked lease, or end an active one early; return the lease afterwards."""
        path = f"/v1/leases/{segment(lease_id)}/release"
        return decode(Lease, self._connection.post(path, {}))

    def cancel(self, lease_id: str) -> None:
        """Release a lease as `release` does, without an answer."""
        self._connection.delete(f"/v1/leases/{segment(lease_id)}")

    def swap(
        self,
        lease_id: str,
        start: Start,
        hours: int,
        *,
        node_class: str | None = None,
        node: str | None = None,
        gpus: int | None = None,
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> Lease:
        """Exchange a booked lease for another block; keep it if the other is refused.

        `gpus` is the size of the new block; without it the whole node is asked for.
        """
        body = block(start, hours, node_class, node, (), 1, zone, last_start, prefer, gpus)
        path = f"/v1/leases/{segment(lease_id)}/swap"
        return decode(Lease, self._connection.post(path, body))

    def restore(self, lease_id: str) -> Lease:
        """Book a cancelled block again, if it is still free."""
        path = f"/v1/leases/{segment(lease_id)}/restore"
        return decode(Lease, self._connection.post(path, {}))

    def availability(
        self,
        start: datetime,
        hours: int = 24,
        *,
        node_class: str | None = None,
        block_hours: int | None = None,
        gpus: int | None = None,
    ) -> Availability:
        """Return, for every hour from `start` on, the bookable nodes and the reasons for the
        others.

        With `block_hours`, they are the nodes on which a block of that length may start for you.
        `gpus` is a number of GPUs, or CPU slots, of a node; without it whole nodes are meant.
        """
        answer = self._connection.get(
            "/v1/leases/availability",
            node_class=node_class,
            start=written(start),
            hours=hours,
            block_hours=block_hours,
            gpus=gpus,
        )
        return decode(Availability, answer)

    def forecast(self) -> Sequence[Forecast]:
        """Forecast the load of the days before a booking window closes.

        It covers every policy whose last window closes within a fortnight.
        """
        return whole_list(self._connection, "/v1/leases/forecast", Forecast)


def block(
    start: Start,
    hours: int,
    node_class: str | None,
    node: str | None,
    nodes: Sequence[str],
    count: int,
    zone: str | None,
    last_start: datetime | None = None,
    prefer: Prefer = "earliest",
    gpus: int | None = None,
) -> dict[str, object]:
    """Return the body that asks for a block, without the fields that were not named."""
    body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
    if nodes:
        body["nodes"] = list(nodes)
    if count != 1:
        body["count"] = count
    if gpus is not None:
        body["gpus"] = gpus
    if prefer != "earliest":
        body["prefer"] = prefer
    if last_start is not None:
        if not isinstance(start, datetime):
            raise BadInput("last_start needs a start that is a moment, not a day")
        body |= {"first_start": written(start), "last_start": written(last_start)}
    elif isinstance(start, datetime):
        body["start"] = written(start)
    else:
        body["on"] = start.isoformat()
    if zone is not None:
        body["zone"] = zone
    return body
