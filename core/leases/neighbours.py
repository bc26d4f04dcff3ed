"""Jobs that may start beside the jobs of other owners on one node. Pure."""

from core.states import Sharing
from core.tables.leases import Lease
from core.tables.nodes import Node


def why_not_beside_others(node: Node, lease: Lease, *, is_script: bool) -> str:
    """Return the reason why a job cannot start in a lease, in sentences, because the rest of its
    node may be another owner's; empty if it can."""
    is_whole = lease.num_slots is None or lease.num_slots >= node.slots
    able = (Sharing.FULL,) if is_script else (Sharing.RECIPES, Sharing.FULL)
    if is_whole or node.sharing in able:
        return ""
    what = "a script" if is_script else "a job"
    why = node.inventory.get("no_sharing") or "its worker does not report that it can"
    return (
        f"{node.name} cannot keep {what} apart from the jobs of others: {why}. It starts in a "
        "lease of the whole node, or on another node."
    )
