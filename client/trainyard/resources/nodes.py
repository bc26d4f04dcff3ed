"""`client.nodes`: the machines that train."""

from collections.abc import Iterator, Sequence

from trainyard.transport.connection import Connection, segment
from trainyard.transport.decoding import decode
from trainyard.transport.paging import all_pages, whole_list
from trainyard.views import Event, Node, NodeHold


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

    def holds(self, node: str) -> Sequence[NodeHold]:
        """Return the hours of a node that are taken, now and in the next 7 days."""
        return whole_list(self._connection, f"/v1/nodes/{segment(node)}/holds", NodeHold)

    def events(self, node: str) -> Iterator[Event]:
        """Iterate over the changes of a node's state, newest first."""
        return all_pages(self._connection, f"/v1/nodes/{segment(node)}/events", Event)

    def proof(self, node: str) -> str:
        """Return a node's last proof as JSON text, as `trainyard prove --check` checks it."""
        return self._connection.text(f"/v1/nodes/{segment(node)}/proof")
