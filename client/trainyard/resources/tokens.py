"""`client.tokens`: your API tokens."""

from collections.abc import Iterator, Sequence

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import NewToken, Token


class Tokens:
    """Tokens for scripts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self, name: str, *, scopes: Sequence[str] = ("read",), expires_in_days: int = 90
    ) -> NewToken:
        """Create a token; its secret is shown only this once.

        Scopes: `read`, `jobs`, `leases`, `account`, each including `read`; `all` covers everything
        that you may do.
        """
        body = {"name": name, "scopes": list(scopes), "expires_in_days": expires_in_days}
        return decode(NewToken, self._connection.post("/v1/tokens", body))

    def list(self) -> Iterator[Token]:
        """Iterate over your tokens, without their secrets."""
        return all_pages(self._connection, "/v1/tokens", Token)

    def revoke(self, token_id: str) -> None:
        """Revoke a token; it stops working at once."""
        self._connection.delete(f"/v1/tokens/{segment(token_id)}")
