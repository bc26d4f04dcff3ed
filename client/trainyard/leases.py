"""`client.leases`, `client.waitlist`, `client.calendars`, `client.maintenance`: hours on nodes."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Literal

from trainyard.connection import Connection, segment
from trainyard.decoding import decode
from trainyard.errors import BadInput
from trainyard.paging import all_pages, whole_list
from trainyard.views import Availability, BlockVerdict, Feed, Forecast, Lease, Maintenance, Wait

Start = datetime | date
"""A moment with its offset; or a day, for any time on it (in your zone, or in `zone`)."""
Prefer = Literal["earliest", "snuggest"]
"""Of several starts that would do: the first, or the one that cuts free time up least."""


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
        """Whole hours on one node of a class, on `count` of them, or on named nodes, all or none.

        With a day instead of a moment, the best start on it; with a `last_start`, the best one
        from `start` to it: the earliest, or the one that cuts free time up least (`snuggest`).
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
        """What `book` would answer, with every rule it breaks and what is left. Books nothing."""
        body = block(start, hours, node_class, node, nodes, count, zone, last_start, prefer)
        return decode(BlockVerdict, self._connection.post("/v1/leases/verdict", body))

    def list(self, *, user: str | None = None, limit: int | None = None) -> Iterator[Lease]:
        """Your leases, the last made first. Staff may name another `user`, or `all`."""
        return all_pages(self._connection, "/v1/leases", Lease, limit=limit, user=user)

    def get(self, lease_id: str) -> Lease:
        """One of them."""
        return decode(Lease, self._connection.get(f"/v1/leases/{segment(lease_id)}"))

    def extend(self, lease_id: str, hours: int) -> Lease:
        """Prolong it."""
        path = f"/v1/leases/{segment(lease_id)}/extend"
        return decode(Lease, self._connection.post(path, {"hours": hours}))

    def release(self, lease_id: str) -> Lease:
        """Cancel a booked one, or end an active one early; the lease as it is then."""
        path = f"/v1/leases/{segment(lease_id)}/release"
        return decode(Lease, self._connection.post(path, {}))

    def cancel(self, lease_id: str) -> None:
        """The same, without an answer."""
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
        """Give a booked lease for another block, or keep it if that is refused."""
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
        """For every hour from `start` on, the nodes that could be booked, and why not the others.

        With `block_hours`: the nodes on which such a block may start for you.
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
        """How full the days become before a window closes, for every policy whose last one does so
        within a fortnight."""
        return whole_list(self._connection, "/v1/leases/forecast", Forecast)


class Waitlist:
    """Wishes for hours that nobody has free."""

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
        """Wait for so many hours with a start from `first_start` to `last_start`, or on a day."""
        body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
        if isinstance(first_start, datetime):
            last = last_start or first_start
            body |= {"first_start": written(first_start), "last_start": written(last)}
        else:
            body |= {"on": first_start.isoformat(), "zone": zone}
        return decode(Wait, self._connection.post("/v1/waitlist", body))

    def list(self, *, limit: int | None = None) -> Iterator[Wait]:
        """Yours, the newest first."""
        return all_pages(self._connection, "/v1/waitlist", Wait, limit=limit)

    def leave(self, wait_id: str) -> None:
        """Take a wish back."""
        self._connection.delete(f"/v1/waitlist/{segment(wait_id)}")

    def accept(self, wait_id: str) -> Lease:
        """Book the block that is held for it."""
        path = f"/v1/waitlist/{segment(wait_id)}/accept"
        return decode(Lease, self._connection.post(path, {}))

    def decline(self, wait_id: str) -> Wait:
        """Let others have it; the wish goes to the end of the line."""
        path = f"/v1/waitlist/{segment(wait_id)}/decline"
        return decode(Wait, self._connection.post(path, {}))


class Calendars:
    """Addresses at which calendar programs read leases."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def make(self, *, node: str | None = None) -> Feed:
        """Of your leases; for staff of a node. Its `url` is told this once."""
        return decode(Feed, self._connection.post("/v1/calendars", {"node": node}))

    def list(self) -> Iterator[Feed]:
        """Those that are not revoked."""
        return all_pages(self._connection, "/v1/calendars", Feed)

    def revoke(self, feed_id: str) -> None:
        """Its address answers no more."""
        self._connection.delete(f"/v1/calendars/{segment(feed_id)}")


class MaintenanceHours:
    """For staff: hours that are kept from bookings."""

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
        """When it would be, and what would become of the leases in its way. Changes nothing."""
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
        """Keep the hours. Over leases it needs the `plan` that was shown."""
        body = _maintenance(nodes, start, hours, why, rule, zone, plan)
        return decode(Maintenance, self._connection.post("/v1/maintenance", body))

    def list(self, *, limit: int | None = None) -> Iterator[Maintenance]:
        """All, the newest first."""
        return all_pages(self._connection, "/v1/maintenance", Maintenance, limit=limit)

    def end(self, maintenance_id: str) -> None:
        """Give its hours back, from now on."""
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
    """The body that asks for a block; what was not named is left out."""
    body: dict[str, object] = {"node_class": node_class, "node": node, "hours": hours}
    if nodes:
        body["nodes"] = list(nodes)
    if count != 1:
        body["count"] = count
    if prefer != "earliest":
        body["prefer"] = prefer
    if last_start is not None:
        if not isinstance(start, datetime):
            raise BadInput("a last_start goes with a first moment, not with a day")
        body |= {"first_start": written(start), "last_start": written(last_start)}
    elif isinstance(start, datetime):
        body["start"] = written(start)
    else:
        body["on"] = start.isoformat()
    if zone is not None:
        body["zone"] = zone
    return body


def written(at: datetime) -> str:
    """RFC 3339. Raises BadInput for a time without offset."""
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
        # A clock time is meant in the zone that is named with it.
        "start": start.isoformat() if zone is not None else written(start),
        "hours": hours,
        "why": why,
        "rule": rule,
        "zone": zone,
        "plan": plan,
    }
