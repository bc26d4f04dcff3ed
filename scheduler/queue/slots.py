"""Free slots (GPUs, or CPU slots) of nodes while a cycle assigns them. Pure."""

from collections.abc import Sequence

from core.states import LeaseState
from core.tables.kinds import LeaseKind
from scheduler.snapshot import LeaseSnapshot, Snapshot


class FreeSlots:
    """Slot indices per node that are fit for jobs and that no live attempt has; jobs that start
    take theirs out."""

    def __init__(self, world: Snapshot) -> None:
        self._free = {
            node.id: set(range(world.classes[node.class_name].slots)) - node.unfit
            for node in world.nodes.values()
            if node.class_name in world.classes
        }
        self._lent: dict[str, set[int]] = {node_id: set() for node_id in self._free}
        """Slots of idle workbenches, which others may have until their owners come back."""
        for attempt in world.attempts:
            self._free.get(attempt.node_id, set()).difference_update(attempt.slots)
            if attempt.lends:
                self._lent.get(attempt.node_id, set()).update(attempt.slots)
        for attempt in world.attempts:
            if not attempt.lends:
                self._lent.get(attempt.node_id, set()).difference_update(attempt.slots)
        self._walk_ins: dict[str, list[LeaseSnapshot]] = {}
        for lease in sorted(world.leases.values(), key=lambda each: (each.hold_start, each.id)):
            if lease.kind is LeaseKind.WALK_IN and lease.state is LeaseState.ACTIVE:
                self._walk_ins.setdefault(lease.user_id, []).append(lease)

    def walk_ins_of(self, user_id: str) -> Sequence[LeaseSnapshot]:
        """Return a person's active walk-ins, oldest first."""
        return self._walk_ins.get(user_id, ())

    def lowest(
        self, lease: LeaseSnapshot, count: int, *, lent: bool = False
    ) -> tuple[int, ...] | None:
        """Return the `count` free slots of a lease with the lowest indices; None if fewer are free.
        With `lent`, those that idle workbenches lend count as free."""
        of_node = self._free.get(lease.node_id, set())
        if lent:
            of_node = of_node | self._lent.get(lease.node_id, set())
        free = sorted(of_node if lease.num_slots is None else of_node & lease.slots)
        return tuple(free[:count]) if len(free) >= count else None

    def take(self, node_id: str, slots: Sequence[int]) -> None:
        """Remove slots of a node that a job which starts now has been given."""
        self._free[node_id].difference_update(slots)
        self._lent[node_id].difference_update(slots)
