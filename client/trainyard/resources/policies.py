"""`client.policies`: the booking rules, and the windows in which leases may lie."""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import whole_list
from trainyard.views import (
    AffectedLease,
    Bands,
    Policy,
    PolicyPlan,
    PolicyText,
    Window,
    WindowPlan,
)


class Policies:
    """Booking policies: everyone may read them, staff may change them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Sequence[Policy]:
        """Return the policies in force, the last applied first."""
        return whole_list(self._connection, "/v1/policies", Policy)

    def get(self, policy: str, *, version: int | None = None) -> PolicyText:
        """Return the active version of a policy, or the given one."""
        path = f"/v1/policies/{segment(policy)}"
        return decode(PolicyText, self._connection.get(path, version=version))

    def versions(self, policy: str) -> Sequence[Policy]:
        """Return every version that was applied, newest first."""
        return whole_list(self._connection, f"/v1/policies/{segment(policy)}/versions", Policy)

    def apply(self, document: str, *, dry_run: bool = False) -> PolicyPlan:
        """Put a document (YAML) into force, or, with `dry_run`, only return the effects."""
        answer = self._connection.post_yaml("/v1/policies", document, params={"dry_run": dry_run})
        return decode(PolicyPlan, answer)

    def withdraw(self, policy: str) -> None:
        """Withdraw a policy; booked leases stay."""
        self._connection.delete(f"/v1/policies/{segment(policy)}")

    def bands(self, start: datetime, hours: int = 168) -> Sequence[Bands]:
        """Return the nights, other bands and windows that overlap the given hours.

        Each is returned whole, for each group of nodes that one policy treats alike for you.
        """
        return whole_list(self._connection, "/v1/bands", Bands, start=written(start), hours=hours)

    def moved_leases(self, *, tell: bool = False) -> Sequence[AffectedLease]:
        """Return leases whose clock time has moved with their zone's rules; `tell` notifies the
        owners."""
        path = "/v1/admin/moved-leases"
        if tell:
            return [decode(AffectedLease, item) for item in self._connection.post(path)["data"]]
        return whole_list(self._connection, path, AffectedLease)

    # --------------------------------------------------------------------------------- windows

    def windows(self, *, policy: str | None = None) -> Sequence[Window]:
        """Return the windows in which leases may lie, with their pools."""
        return whole_list(self._connection, "/v1/windows", Window, policy=policy)

    def add_window(
        self,
        policy: str,
        pools: Sequence[str],
        starts_at: datetime,
        ends_at: datetime,
        *,
        opens_at: datetime | None = None,
    ) -> Window:
        """Allow leases in more hours on the given pools."""
        body = {
            "policy": policy,
            "pools": list(pools),
            "starts_at": written(starts_at),
            "ends_at": written(ends_at),
            "opens_at": None if opens_at is None else written(opens_at),
        }
        return decode(Window, self._connection.post("/v1/windows", body))

    def change_window(
        self,
        window: str,
        *,
        starts_at: datetime | None = None,
        ends_at: datetime | None = None,
        opens_at: datetime | None = None,
        orphans: str = "keep",
        plan: str | None = None,
    ) -> WindowPlan:
        """Change a window. Without `plan` nothing changes, and the plan of the change is returned.

        With that plan's `hash` as `plan`, the change is made.
        """
        given = {"starts_at": starts_at, "ends_at": ends_at, "opens_at": opens_at}
        body: dict[str, object] = {
            name: written(value) for name, value in given.items() if value is not None
        }
        body |= {"orphans": orphans, "plan": plan}
        path = f"/v1/windows/{segment(window)}"
        return decode(WindowPlan, self._connection.patch(path, body))

    def delete_window(
        self, window: str, *, orphans: str = "keep", plan: str | None = None
    ) -> WindowPlan:
        """Delete a window. Without `plan` nothing changes, and the plan of the deletion is
        returned.

        With that plan's `hash` as `plan`, the deletion is made.
        """
        asked = {"orphans": orphans} | ({} if plan is None else {"plan": plan})
        path = f"/v1/windows/{segment(window)}?{urlencode(asked)}"
        return decode(WindowPlan, self._connection.delete(path))
