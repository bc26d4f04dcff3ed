"""The client that a server carries, held against the one that runs."""

from contextlib import closing

from trainyard import config
from trainyard.connection import Connection, Patience, client_version
from trainyard.decoding import decode
from trainyard.errors import TrainyardError
from trainyard.views import ClientRelease


def other_release(url: str, *, patience: Patience | None = None) -> ClientRelease | None:
    """The release that the server at `url` carries; None if this is it, or if it tells of none."""
    with closing(Connection(config.Access(url, None), patience=patience)) as connection:
        try:
            carried = decode(ClientRelease, connection.get("/v1/client"))
        except TrainyardError:  # it is told beside something that has been done already
            return None
    return None if carried.version == client_version() else carried
