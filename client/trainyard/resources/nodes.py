"""`client.nodes`: the machines that train."""

from collections.abc import Iterator

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages
from trainyard.views import Node


class Nodes:
    """All nodes; everyone may see their hardware and their work."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> Iterator[Node]:
        """Iterate over all nodes."""
        return all_pages(self._connection, "/v1/nodes", Node)

    def get(self, node: str) -> Node:
        """Return a node by id or name."""
        return decode(Node, self._connection.get(f"/v1/nodes/{segment(node)}"))

    def proof(self, node: str) -> str:
        """Return a node's last proof as JSON text, as `trainyard prove --check` checks it."""
        return self._connection.text(f"/v1/nodes/{segment(node)}/proof")
