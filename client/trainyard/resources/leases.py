"""`client.leases`, `client.waitlist`, `client.calendars`, `client.maintenance`: hours on nodes."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Literal

from trainyard.errors import BadInput
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages, whole_list
from trainyard.views import Availability, BlockVerdict, Feed, Forecast, Lease, Maintenance, Wait

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
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> Lease:
        """Book whole hours on one node of a class, on `count` of them, or on named nodes, all or
        none.

        A day instead of a moment asks for the best start on that day, and a `last_start` for the
        best one from `start` to it: the earliest, or the one that fragments free time least
        (`snuggest`).
        """
        body = block(start, hours, node_class, node, nodes, count, zone, last_start, prefer)
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
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> BlockVerdict:
        """Return the answer that `book` would give, with every broken rule and the rest of the
        quotas.

        Books nothing.
        """
        body = block(start, hours, node_class, node, nodes, count, zone, last_start, prefer)
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
        last_start: datetime | None = None,
        prefer: Prefer = "earliest",
        zone: str | None = None,
    ) -> Lease:
        """Exchange a booked lease for another block; keep it if the other is refused."""
        body = block(start, hours, node_class, node, (), 1, zone, last_start, prefer)
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
    ) -> Availability:
        """Return, for every hour from `start` on, the bookable nodes and the reasons for the
        others.

        With `block_hours`, they are the nodes on which a block of that length may start for you.
        """
        answer = self._connection.get(
            "/v1/leases/availability",
            node_class=node_class,
            start=written(start),
            hours=hours,
            block_hours=block_hours,
        )
        return decode(Availability, answer)

    def forecast(self) -> Sequence[Forecast]:
        """Forecast the load of the days before a booking window closes.

        It covers every policy whose last window closes within a fortnight.
        """
        return whole_list(self._connection, "/v1/leases/forecast", Forecast)


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
        zone: str | None = None,
    ) -> Wait:
        """Wait for `hours` with a start from `first_start` to `last_start`, or on a day."""
        body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
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


class Calendars:
    """Addresses at which calendar programs read leases."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make(self, *, node: str | None = None) -> Feed:
        """Make a feed of your leases, or, for staff, of a node's.

        Its `url` is shown only this once.
        """
        return decode(Feed, self._connection.post("/v1/calendars", {"node": node}))

    def list(self) -> Iterator[Feed]:
        """Iterate over the feeds that are not revoked."""
        return all_pages(self._connection, "/v1/calendars", Feed)

    def revoke(self, feed_id: str) -> None:
        """Revoke a feed; its address stops answering."""
        self._connection.delete(f"/v1/calendars/{segment(feed_id)}")


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
) -> dict[str, object]:
    """Return the body that asks for a block, without the fields that were not named."""
    body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
    if nodes:
        body["nodes"] = list(nodes)
    if count != 1:
        body["count"] = count
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


def written(at: datetime) -> str:
    """Return a time in RFC 3339. Raises BadInput for a time without offset."""
    if at.tzinfo is None:
        raise BadInput(
            f"{at.isoformat()} has no offset; use datetime.now().astimezone() and the like"
        )
    return at.isoformat()


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
