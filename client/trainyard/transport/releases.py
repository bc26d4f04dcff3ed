"""Comparison of the client that a server carries with the running one."""

from contextlib import closing

from trainyard.errors import TrainyardError
from trainyard.transport import config
from trainyard.transport.connection import Connection, Patience, client_version
from trainyard.transport.decoding import decode
from trainyard.views import ClientRelease


def other_release(url: str, *, patience: Patience | None = None) -> ClientRelease | None:
    """Return the release that the server at `url` carries.

    None if it is the running version, or if the server does not name one.
    """
    with closing(Connection(config.Access(url, None), patience=patience)) as connection:
        try:
            carried = decode(ClientRelease, connection.get("/v1/client"))
        except TrainyardError:  # only additional information: the command itself has succeeded
            return None
    return None if carried.version == client_version() else carried
