"""Views of plans: place of each rank, timetable of a pipeline, and predicted end."""

from datetime import datetime, timedelta

from api.jobs.inputs import input_view
from api.jobs.plan_cache import PlanOnClass
from api.jobs.schemas import ClassPlan, PlanView
from api.jobs.submission import PlannedSpec
from core.base.words import size_text
from core.policy.grid import usable_end
from core.spec.script import ScriptPlan
from core.spec.spec import AnyJobSpec, AnyPlan, JobSpec, format_duration
from core.tables.leases import Lease
from strategies.plan.planner import Plan
from strategies.plan.seats import seats, time_slots


def plan_view(
    planned: PlannedSpec,
    lease: Lease | None,
    last: Lease | None,
    *,
    size: int,
    fetch_s: float | None,
    workspace: str,
    now: datetime,
) -> PlanView:
    """Return the plan on every class. If the spec names a lease, the plan is compared with the end
    of `last`, the last of the leases in which it would run on without a break. `size` is the number
    of bytes that it reads, `fetch_s` the time in which a node fetches them, if known; `workspace`
    is a sentence about the owner's workspace, if the spec brings it."""
    chosen, starts, ends, finish = planned.chosen, None, None, None
    reason = _verdict(planned)
    if chosen is not None and lease is not None and last is not None:
        starts = max(now, lease.hold_start)
        ends = usable_end(last.hold_end, last.grace_s)
        cost = None if isinstance(chosen.plan, ScriptPlan) else chosen.plan.cost
        total_s = None if cost is None else cost.total_s
        finish = None if total_s is None else starts + timedelta(seconds=total_s)
        left_s = max(0.0, (ends - starts).total_seconds())
        reason += " " + _against_lease(_steps(planned.spec), total_s, left_s)
    if size:
        reason += " " + _fetching(planned, size, fetch_s)
    if workspace:
        reason += " " + workspace
    network = [] if chosen is None else list(planned.networks.get(chosen.offer.name, ()))
    if network:
        reason += f" It may reach: {', '.join(network)}."
    return PlanView(
        plans=[
            class_plan(
                planned.spec,
                each.plan,
                node_class=each.offer.name,
                ready_nodes=each.offer.ready_nodes,
            )
            for each in planned.plans
        ],
        chosen=chosen.offer.name if chosen else None,
        predicted_start=starts,
        predicted_finish=finish,
        lease_end=ends,
        reason=reason,
        inputs=[input_view(one) for one in planned.inputs],
        fetch_s=fetch_s,
        network=network,
    )


def class_plan(spec: AnyJobSpec, plan: AnyPlan, *, node_class: str, ready_nodes: int) -> ClassPlan:
    """Return the plan of a spec on one node class."""
    if not (isinstance(plan, Plan) and isinstance(spec, JobSpec)):
        return ClassPlan(
            node_class=node_class, plan=plan, ready_nodes=ready_nodes, seats=[], timeline=[]
        )
    return ClassPlan(
        node_class=node_class,
        plan=plan,
        ready_nodes=ready_nodes,
        seats=seats(plan),
        timeline=time_slots(spec, plan),
    )


def _verdict(planned: PlannedSpec) -> str:
    if not planned.plans:
        return "No node is enrolled yet, so nothing can be planned."
    chosen = planned.chosen
    if chosen is None:
        problem = planned.nearest.plan.problems[0]
        return f"The job cannot run: {problem.param}: {problem.message}."
    ready = "" if chosen.offer.ready_nodes else " No node of that class is ready now."
    return f"{_fit(chosen)}{ready}"


def _fetching(planned: PlannedSpec, size: int, fetch_s: float | None) -> str:
    """Say how long what it reads takes to be there, and that a booked hour does not pay for it."""
    read = "data and model" if isinstance(planned.spec, JobSpec) else "inputs"
    took = "" if fetch_s is None else f" in about {_about(max(1.0, fetch_s))}"
    ahead = ", in the hour before the lease" if planned.spec.named_leases else ""
    return (
        f"A node without its {read} ({size_text(size)}) fetches them{took} before the start{ahead}."
    )


def _steps(spec: AnyJobSpec) -> int:
    return spec.training.steps if isinstance(spec, JobSpec) else 0


def _fit(chosen: PlanOnClass) -> str:
    if isinstance(chosen.plan, ScriptPlan):
        return f"The script can run on {chosen.offer.name}; its memory use cannot be planned."
    if not chosen.plan.fits:
        return (
            f"The job does not fit on {chosen.offer.name}, but runs there because it may run "
            f"out of memory: {chosen.plan.needed_gib:.2f} of {chosen.plan.capacity_gib:.2f} "
            "GiB per rank."
        )
    return (
        f"The job fits on {chosen.offer.name}: {chosen.plan.needed_gib:.2f} of "
        f"{chosen.plan.capacity_gib:.2f} GiB per rank."
    )


def _against_lease(steps: int, total_s: float | None, left_s: float) -> str:
    """Say whether a training ends before its lease does, and which step it reaches if it does
    not."""
    left = _about(left_s)
    if total_s is None:
        return (
            f"The lease has {left} of usable time; the duration of the job on these nodes "
            "is unknown."
        )
    took = _about(total_s)
    if total_s <= left_s:
        return f"The job takes about {took} of the lease's {left}."
    reached = int(steps * left_s / total_s)
    return (
        f"The job takes about {took}, but the lease has {left} of usable time: the job would "
        f"be stopped with a checkpoint near step {reached:,} of {steps:,} and continue from "
        "there in the queue."
    )


def _about(seconds: float) -> str:
    """Format a duration as `2h 13min`; below ten minutes to the second."""
    grain = 60 if seconds >= 600 else 1
    return format_duration(round(seconds / grain) * grain)
