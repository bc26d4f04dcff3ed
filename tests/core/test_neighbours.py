"""Jobs beside those of other owners: by the node's sharing, the kind of job, and its network."""

import pytest

from core.leases.neighbours import ON_NODES_NETWORK, why_not_beside_others
from core.states import Sharing
from core.tables.leases import Lease
from core.tables.nodes import Node


def node(sharing: Sharing) -> Node:
    return Node(name="box", slots=4, sharing=sharing, inventory={})


@pytest.mark.parametrize(("num_slots", "starts"), [(1, False), (3, False), (4, True), (None, True)])
def test_on_the_nodes_own_network_a_script_has_its_nodes_alone(
    num_slots: int | None, starts: bool
) -> None:
    lease = Lease(num_slots=num_slots)
    why = why_not_beside_others(node(Sharing.FULL), lease, is_script=True, on_nodes_network=True)
    assert (why == "", ON_NODES_NETWORK in why) == (starts, not starts)
    recipe = why_not_beside_others(
        node(Sharing.FULL), lease, is_script=False, on_nodes_network=True
    )
    assert recipe == ""


def test_a_node_that_does_not_say_why_is_named_all_the_same() -> None:
    why = why_not_beside_others(node(Sharing.NONE), Lease(num_slots=1), is_script=False)
    assert why.startswith(
        "box cannot keep a job apart from the jobs of others: its worker does not"
    )
