"""`client.nodes`: the machines that train."""

from collections.abc import Iterator

from trainyard.connection import Connection, segment
from trainyard.decoding import decode
from trainyard.paging import all_pages
from trainyard.views import Node


class Nodes:
    """All nodes; what they have and what they do is for everybody."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Node]:
        """Every node."""
        return all_pages(self._connection, "/v1/nodes", Node)

    def get(self, node: str) -> Node:
        """One of them, by id or name."""
        return decode(Node, self._connection.get(f"/v1/nodes/{segment(node)}"))
