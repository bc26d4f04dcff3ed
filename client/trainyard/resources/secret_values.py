"""`client.secrets`: values that only your own scripts can read."""

from collections.abc import Sequence

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import whole_list
from trainyard.views import Secret


class Secrets:
    """Secrets; their values can be set but never read back."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def set(self, name: str, value: str) -> Secret:
        """Create a secret or replace its value; scripts find it in the environment variable
        `name`."""
        answer = self._connection.put(f"/v1/secrets/{segment(name)}", {"value": value})
        return decode(Secret, answer)

    def list(self) -> Sequence[Secret]:
        """Return your secrets by name, without their values."""
        return whole_list(self._connection, "/v1/secrets", Secret, limit=200)

    def delete(self, name: str) -> None:
        """Delete a secret; jobs that name it can no longer start."""
        self._connection.delete(f"/v1/secrets/{segment(name)}")
