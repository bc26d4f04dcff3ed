"""A plan as it is answered: with where each rank sits and what a pipeline does when."""

from api.schemas import ClassPlan
from strategies.planning.planner import Plan
from strategies.planning.seats import seats, time_slots
from strategies.spec import TrainSpec


def class_plan(spec: TrainSpec, plan: Plan, *, node_class: str, ready_nodes: int) -> ClassPlan:
    """The plan of a spec on one node class."""
    return ClassPlan(
        node_class=node_class,
        plan=plan,
        ready_nodes=ready_nodes,
        seats=seats(plan),
        timeline=time_slots(spec, plan),
    )
