"""`client.secrets`: values that only your own scripts see."""

from collections.abc import Sequence

from trainyard.connection import Connection, segment
from trainyard.decoding import decode
from trainyard.paging import whole_list
from trainyard.views import Secret


class Secrets:
    """They go in and never come out."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def set(self, name: str, value: str) -> Secret:
        """Make it or give it a new value; scripts find it in the variable `name`."""
        answer = self._connection.put(f"/v1/secrets/{segment(name)}", {"value": value})
        return decode(Secret, answer)

    def list(self) -> Sequence[Secret]:
        """Yours by name, without their values."""
        return whole_list(self._connection, "/v1/secrets", Secret, limit=200)

    def delete(self, name: str) -> None:
        """Jobs that name it can't start any more."""
        self._connection.delete(f"/v1/secrets/{segment(name)}")
