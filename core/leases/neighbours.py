"""Jobs that may start beside the jobs of other owners on one node. Pure."""

from core.states import Sharing
from core.tables.leases import Lease
from core.tables.nodes import Node

ON_NODES_NETWORK = "programs on several nodes of its class have the nodes' own network"


def why_not_beside_others(
    node: Node, lease: Lease, *, is_script: bool, on_nodes_network: bool = False
) -> str:
    """Return the reason why a job cannot start in a lease, in sentences, because the rest of its
    node may be another owner's; empty if it can.

    `on_nodes_network`: it would be in no network of its own.
    """
    if lease.num_slots is None or lease.num_slots >= node.slots:
        return ""
    able = (Sharing.FULL,) if is_script else (Sharing.RECIPES, Sharing.FULL)
    if node.sharing not in able:
        why = node.inventory.get("no_sharing") or "its worker does not report that it can"
    elif is_script and on_nodes_network:
        why = ON_NODES_NETWORK
    else:
        return ""
    what = "a script" if is_script else "a job"
    return (
        f"{node.name} cannot keep {what} apart from the jobs of others: {why}. It starts in a "
        "lease of the whole node, or on another node."
    )
