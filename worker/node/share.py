"""Share of a node that an order's attempt is kept to, where other owners use the node too."""

from collections.abc import Sequence
from fractions import Fraction

from core.wire.messages import Order
from worker.node.attempts import Share
from worker.node.cores import Core, divide


def part_of(order: Order) -> Fraction:
    """Return the part of the node that the slots of an attempt are; 1 if its lease is the node."""
    if order.slots_of_node is None:
        return Fraction(1)
    return min(Fraction(1), Fraction(len(slots_in(order)), order.slots_of_node))


def share_of(order: Order, cores: Sequence[Core], near: Sequence[int | None]) -> Share | None:
    """Return the share of an attempt's slots; None if its lease is the whole node.

    `near` are the NUMA nodes of the slots, as far as they are known. Raises ValueError if the cores
    do not suffice for all slots of the node.
    """
    if order.slots_of_node is None:
        return None
    shares = divide(cores, order.slots_of_node, near)
    slots = slots_in(order)
    if not shares or max(slots) >= len(shares):
        raise ValueError(
            f"{len(cores)} cores cannot be divided among {order.slots_of_node} slots on this node"
        )
    cpus = sorted(cpu for slot in slots for cpu in shares[slot])
    return Share(cpus=cpus, slots=len(slots), slots_of_node=order.slots_of_node)


def slots_in(order: Order) -> Sequence[int]:
    """Return the numbers of an attempt's slots."""
    return order.slots or range(order.plan.ranks_per_node)
