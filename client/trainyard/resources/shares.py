"""`client.shares`: things that you let others read."""

from collections.abc import Iterable, Iterator

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Dataset, Model, Share, Template, Tokenizer


class Shares:
    """Shares of the signed-in user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Share]:
        """Iterate over what you share, newest first."""
        return all_pages(self._connection, "/v1/shares", Share)

    def create(
        self,
        kind: str,
        thing: str,
        *,
        person: str | None = None,
        group: str | None = None,
        everybody: bool = False,
    ) -> Share:
        """Let a person, a group or everybody read a thing of yours, by its name or id."""
        wanted: dict[str, object] = {"kind": kind, "thing": thing}
        if everybody:
            wanted["everybody"] = True
        for name, value in (("person", person), ("group", group)):
            if value is not None:
                wanted[name] = value
        return decode(Share, self._connection.post("/v1/shares", wanted))

    def end(self, share: str) -> None:
        """End a share. Jobs that were submitted with the thing keep its bytes."""
        self._connection.delete(f"/v1/shares/{segment(share)}")


def id_of(things: Iterable[Dataset | Model | Tokenizer | Template], key: str) -> str:
    """Return the id of what another person shares as OWNER/NAME; any other key as it is."""
    if "/" not in key:
        return key
    found = (one.id for one in things if f"{one.owner}/{one.name}" == key)
    return next(found, key)
