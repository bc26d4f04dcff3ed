"""Plans, computed once per (spec, node class, version of the class, slots of a node), outside every
transaction."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.spec.planning import plan_on, plan_training, training_key
from core.spec.spec import AnyJobSpec, AnyPlan, JobSpec
from core.states import NodeState
from core.tables.base import Document
from core.tables.nodes import Node, NodeClass
from strategies.plan.hardware import Hardware
from strategies.plan.planner import NOTHING_LEARNED, Learned, Plan

CAPACITY = 2_000  # of some 14 KiB each
USED_STATES = (NodeState.PENDING, NodeState.READY, NodeState.DRAINING, NodeState.MAINTENANCE)
READY_NODES = func.count(Node.id).filter(Node.state == NodeState.READY)
CLASSES = (  # built once, as each submission asks it
    select(NodeClass.name, NodeClass.version, NodeClass.hardware, READY_NODES, func.count(Node.id))
    .join(Node, Node.class_name == NodeClass.name)
    .where(Node.state.in_(USED_STATES))
    .group_by(NodeClass.name)
)


@dataclass(frozen=True)
class ClassOnOffer:
    """A node class with its hardware, the number of its ready nodes, and the number of all its
    nodes."""

    name: str
    version: int
    hardware: Hardware
    ready_nodes: int
    num_nodes: int

    def part(self, num_slots: int | None) -> "ClassOnOffer":
        """Return the offer for leases of so many slots of each node; None: of whole nodes."""
        if num_slots is None:
            return self
        return replace(self, hardware=self.hardware.part(num_slots))


@dataclass(frozen=True)
class PlanOnClass:
    """A plan on one node class, and the same plan as the JSON that a job's row holds."""

    offer: ClassOnOffer
    plan: AnyPlan
    document: Document


class PlanCache:
    """The newest CAPACITY plans of this process."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, str, int, int], tuple[Plan, Document]] = OrderedDict()
        self._learned = NOTHING_LEARNED
        self._lock = threading.Lock()

    def learn(self, learned: Learned) -> None:
        """Let plans from now on use the memory that runs here have needed."""
        with self._lock:
            if learned != self._learned:
                self._learned = learned
                self._plans.clear()

    def plan(self, spec: AnyJobSpec, offer: ClassOnOffer) -> PlanOnClass:
        """Return the plan of `spec` on one node class."""
        if not isinstance(spec, JobSpec):
            short = plan_on(spec, offer.hardware)
            return PlanOnClass(offer, short, short.model_dump(mode="json"))
        key = (training_key(spec), offer.name, offer.version, offer.hardware.slots)
        with self._lock:
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
                return PlanOnClass(offer, *known)
            learned = self._learned
        made = plan_training(spec, offer.hardware, learned=learned)
        document = made.model_dump(mode="json")
        with self._lock:
            if learned is self._learned:
                self._plans[key] = (made, document)
            while len(self._plans) > CAPACITY:
                self._plans.popitem(last=False)
        return PlanOnClass(offer, made, document)


class Offers:
    """Node classes that have nodes in use, read once for all jobs that a session plans."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def all(self) -> Sequence[ClassOnOffer]:
        """All of them, smallest first."""
        offers = [
            ClassOnOffer(name, version, Hardware.model_validate(hardware), ready_nodes, num_nodes)
            for name, version, hardware, ready_nodes, num_nodes in self._session.execute(CLASSES)
        ]
        return sorted(offers, key=lambda o: (o.hardware.slots, o.hardware.memory_gib, o.name))

    def of(self, node_class: str | None) -> Sequence[ClassOnOffer]:
        """Return the class of this name, if it is on offer; None: all of them."""
        return [offer for offer in self.all if node_class in (None, offer.name)]
