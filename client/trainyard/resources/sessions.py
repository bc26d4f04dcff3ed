"""Signing in and out, and `client.sessions`.

Every way to sign in returns a token with its secret.
"""

from collections.abc import Iterator

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Link, NewToken, Session


class Sessions:
    """Sessions in which you are signed in."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Session]:
        """Iterate over your sessions, newest first."""
        return all_pages(self._connection, "/v1/sessions", Session)

    def end(self, session_id: str) -> None:
        """End a session; its user is signed out at once."""
        self._connection.delete(f"/v1/sessions/{segment(session_id)}")


def sign_in(connection: Connection, name: str, password: str) -> NewToken:
    """Sign in with name and password."""
    body = {"name": name, "password": password}
    return decode(NewToken, connection.post("/v1/sessions", body, keyed=False))


def sign_in_by_link(connection: Connection, secret: str) -> NewToken:
    """Sign in with a login link, which works once."""
    return decode(NewToken, connection.post("/v1/sessions/link", {"secret": secret}, keyed=False))


def start_first(
    connection: Connection, secret: str, name: str, password: str | None = None
) -> NewToken:
    """Create the first administrator with the first-start link, and sign in."""
    body = {"secret": secret, "name": name, "password": password}
    return decode(NewToken, connection.post("/v1/first-start", body, keyed=False))


def sign_out(connection: Connection) -> None:
    """End the current session; its token stops working."""
    connection.delete("/v1/sessions/current")


def login_link(connection: Connection) -> Link:
    """Create a link with which you can sign in once, on another device."""
    return decode(Link, connection.post("/v1/me/login-link", keyed=False))
