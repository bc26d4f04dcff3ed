"""`client.cleanups`: find invalid leases, remove those that were shown, undo; for staff."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Cleanup

PATH = "/v1/admin/cleanups"


class Cleanups:
    """Clean-ups of leases: preview, apply by the preview's hash, undo."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def preview(
        self,
        wrong: Sequence[str] = (),
        *,
        reason: str,
        user: str | None = None,
        lab: str | None = None,
        node: str | None = None,
        tag: str | None = None,
        starts_from: datetime | None = None,
        starts_before: datetime | None = None,
        include_active: bool = False,
    ) -> Cleanup:
        """Find leases without removing any.

        `reason` is sent to the owners of leases removed later.
        """
        selector = {
            "wrong": list(wrong),
            "user": user,
            "lab": lab,
            "node": node,
            "tag": tag,
            "starts_from": written(starts_from) if starts_from else None,
            "starts_before": written(starts_before) if starts_before else None,
            "include_active": include_active,
        }
        body = {"selector": selector, "reason": reason}
        return decode(Cleanup, self._connection.post(PATH, body, keyed=False))

    def list(self, *, limit: int | None = None) -> Iterator[Cleanup]:
        """Iterate over all clean-ups, newest first."""
        return all_pages(self._connection, PATH, Cleanup, limit=limit)

    def get(self, cleanup_id: str) -> Cleanup:
        """Return one clean-up, with the result of each row."""
        return decode(Cleanup, self._connection.get(f"{PATH}/{segment(cleanup_id)}"))

    def apply(self, cleanup_id: str, hash: str, *, leave: Collection[str] = ()) -> Cleanup:
        """Remove the leases in the preview with this hash, except those in `leave`.

        Safe to repeat.
        """
        body = {"hash": hash, "leave": sorted(leave)}
        return decode(Cleanup, self._connection.post(f"{PATH}/{segment(cleanup_id)}/apply", body))

    def undo(self, cleanup_id: str) -> Cleanup:
        """Book the removed leases again, where their hours are still free. Safe to repeat."""
        return decode(Cleanup, self._connection.post(f"{PATH}/{segment(cleanup_id)}/undo"))

    def tag(self, lease_id: str, tags: Sequence[str], *, protected: bool) -> None:
        """Set a lease's tags, and make clean-ups pass it by if it is `protected`."""
        path = f"/v1/admin/leases/{segment(lease_id)}/tags"
        self._connection.put(path, {"tags": list(tags), "protected": protected})

    def force_release(self, lease_id: str) -> None:
        """End another person's active lease; its node is quarantined first."""
        self._connection.post(f"/v1/admin/leases/{segment(lease_id)}/force-release")
