"""`client.calendars`: leases in calendar programs."""

from collections.abc import Iterator

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Feed


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
