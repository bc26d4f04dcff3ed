"""`client.usage`: hours booked, used and useful, and the rest of quotas."""

from datetime import datetime

from trainyard.resources.timestamps import written
from trainyard.transport.connection import Connection, Parameter
from trainyard.transport.decoding import decode
from trainyard.views import Quotas
from trainyard.views import Usage as UsageView


class Usage:
    """Use: your own, your labs' if you lead them, everyone's for staff."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(
        self,
        *,
        by: str = "user",
        per: str = "week",
        start: datetime | None = None,
        end: datetime | None = None,
        zone: str | None = None,
    ) -> UsageView:
        """Return use by user, lab or node, per day or week on the clock of `zone`.

        The default is the last 28 days.
        """
        answer = self._connection.get("/v1/usage", **_params(by, per, start, end, zone))
        return decode(UsageView, answer)

    def csv(
        self,
        *,
        by: str = "user",
        per: str = "week",
        start: datetime | None = None,
        end: datetime | None = None,
        zone: str | None = None,
    ) -> str:
        """Return the same table as `get`, as CSV."""
        params = {**_params(by, per, start, end, zone), "format": "csv"}
        return self._connection.text("/v1/usage", **params)

    def left(self) -> Quotas:
        """Return the rest of your quota under every policy, as of now."""
        return decode(Quotas, self._connection.get("/v1/me/quotas"))


def _params(
    by: str, per: str, start: datetime | None, end: datetime | None, zone: str | None
) -> dict[str, Parameter | None]:
    return {
        "by": by,
        "per": per,
        "start": written(start) if start else None,
        "end": written(end) if end else None,
        "zone": zone,
    }
