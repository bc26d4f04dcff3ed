"""Sentences about the numbers of jobs, nodes and leases. Pure."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import yaml

from dashboard.formats import counted, decimal, span
from trainyard.views import Certificate, Event, Job, Lease, Me, Node

LIVE = ("starting", "running", "stopping")
WAITING = ("queued", "paused")
FINAL = ("succeeded", "failed", "cancelled")
TIMES = " \u00d7 "
SPEC_ORDER = ("name", "model", "data", "training", "adapter", "parallelism", "precision")

# Families of an attempt's outcomes (pages kit): whose turn it is.
OUTCOME_FAMILY = {
    "succeeded": "good",
    "lease_ended": "info",
    "preempted": "info",
    "paused": "paused",
    "cancelled": "cancelled",
    "time_limit": "warn",
    "node_lost": "warn",
    "shim_lost": "warn",
    "start_failed": "warn",
    "gpu_failed": "warn",
}


VERDICT_FAMILY = {"pass": "good", "fail": "bad"}
STUDY_KINDS = {
    "strong": "strong scaling: the batch size stays",
    "weak": "weak scaling: the batch size grows with the ranks",
    "schedules": "pipeline schedules: ranks and batch size stay",
}


def outcome_family(outcome: str | None, state: str) -> str:
    """The colour and shape of an attempt: by outcome once it has one, else by state."""
    return state if outcome is None else OUTCOME_FAMILY.get(outcome, "bad")


def event_family(event: Event) -> str:
    """The colour and shape of an event."""
    if event.to_state is not None and event.to_state != "exited":
        return event.to_state
    if event.kind == "certified":
        return VERDICT_FAMILY.get(event.reason_code, "info")
    if event.reason_code in OUTCOME_FAMILY:
        return OUTCOME_FAMILY[event.reason_code]
    return "warn" if event.kind in ("unreachable", "stalled") else "info"


def certificate_family(certificate: Certificate | None) -> str:
    """The colour and shape of a verdict."""
    return "info" if certificate is None else VERDICT_FAMILY.get(certificate.verdict, "info")


def certificate_sentence(job: Job) -> str:
    """Return a job's certificate, or the reason for its absence; empty if none was asked for."""
    found = job.certificate
    if found is not None:
        steps = counted(found.steps, "step")
        if found.verdict == "pass":
            return f"Over the first {steps}, loss and gradient norm match those of one rank."
        if found.verdict == "fail":
            return (
                f"Over the first {steps}, the curve differs from that of one rank. The job "
                "continues, but do not trust this layout before the cause is known."
            )
        return (
            f"{found.strategy} promises no particular curve, so the first {steps} are shown "
            "without a verdict."
        )
    verify = job.spec.get("verify")
    asked = verify.get("steps") if isinstance(verify, dict) else None
    if not isinstance(asked, int):
        return ""
    if not job.is_final and job.step < asked:
        return f"Known after step {asked:,}: one rank trains these steps alone first."
    return f"None: the job did not train its first {counted(asked, 'step')} without a stop."


def worth_telling(events: Sequence[Event]) -> list[Event]:
    """Return the events without attempts' changes of state that repeat the job's right beside
    them."""
    kept = []
    for index, event in enumerate(events):
        beside = [*events[max(0, index - 1) : index], *events[index + 1 : index + 2]]
        is_echo = event.kind.startswith("attempt_") and any(
            other.message == event.message and other.epoch == event.epoch for other in beside
        )
        if not is_echo:
            kept.append(event)
    return kept


def event_title(event: Event) -> str:
    """`Running, attempt 2`; `Checkpoint kept, attempt 1`."""
    title = event.kind.replace("_", " ").capitalize()
    is_named = event.kind.startswith("attempt_") or not event.epoch
    return title if is_named else f"{title}, attempt {event.epoch}"


def jobs_sentence(me: Me) -> str:
    """Return the number of running and waiting jobs, the first sentence on the list of jobs."""
    if me.running == 0 and me.queued == 0:
        return "You have no running or waiting jobs."
    runs = "1 job is running" if me.running == 1 else f"{me.running:,} jobs are running"
    waits = "1 is waiting" if me.queued == 1 else f"{me.queued:,} are waiting"
    if me.running == 0:
        return f"No job is running, {waits}."
    return f"{runs}, {waits}." if me.queued else f"{runs}, none is waiting."


def nodes_sentence(nodes: list[Node]) -> str:
    """Return the number of nodes that can take work, and of idle ones."""
    if not nodes:
        return "No node is enrolled yet, so no job can run."
    ready = [node for node in nodes if node.state == "ready" and node.reachable]
    free = [node for node in ready if node.free_at is None and node.user is None]
    verb = "is" if len(ready) == 1 else "are"
    return f"{len(ready)} of {counted(len(nodes), 'node')} {verb} ready; {len(free)} free now."


def layout_words(job: Job) -> str:
    """`ddp, 2 ranks`; the degrees are named when there is more than one axis."""
    degrees = [f"{axis} {degree}" for axis, degree in job.plan.layout.items() if degree > 1]
    ranks = counted(job.plan.world_size, "rank")
    if len(degrees) > 1:
        return f"{job.plan.strategy}: {TIMES.join(degrees)}, {ranks}"
    return f"{job.plan.strategy}, {ranks}"


def dataset_words(job: Job) -> str:
    """Names of the datasets that a job reads: those of its training, or its inputs."""
    data = job.spec.get("data")
    if isinstance(data, Mapping):
        names = [data.get("dataset")]
        names += [part.get("dataset") for part in data.get("mixture") or ()]
        return ", ".join(str(name) for name in names if name)
    return ", ".join(one.source for one in job.inputs if one.kind == "dataset")


def predicted_finish(job: Job, now: datetime) -> datetime | None:
    """Return the end of the training at the present speed; None unless it is running."""
    if job.state != "running" or not job.tokens_per_s or job.step == 0:
        return None
    left_s = (job.steps - job.step) * job.plan.tokens_per_step / job.tokens_per_s
    return now + timedelta(seconds=left_s)


def batch_words(job: Job) -> str:
    """`8 = 4 x 1 accumulation step x 2 ranks`: global batch from its factors."""
    plan = job.plan
    if not plan.global_batch_size:
        return ""  # of a script, only itself knows
    copies = plan.global_batch_size // (plan.micro_batch_size * plan.gradient_accumulation_steps)
    steps = counted(plan.gradient_accumulation_steps, "accumulation step")
    return (
        f"{plan.global_batch_size:,} = {plan.micro_batch_size:,} \u00d7 {steps} "
        f"\u00d7 {counted(copies, 'data-parallel rank')}"
    )


def cost_words(job: Job) -> str:
    """`33 s on 2 CPU slots`, or `3 h 2 min on 8 GPUs, 24.3 GPU-hours`: what a job has used."""
    ranks = job.plan.world_size
    on_gpu = job.plan.device == "cuda"
    used = f"{span(job.used_s)} on {counted(ranks, 'GPU' if on_gpu else 'CPU slot')}"
    hours = job.used_s * ranks / 3600
    return f"{used}, {decimal(hours, 3)} GPU-hours" if on_gpu and hours >= 0.1 else used


def change_words(change: Mapping[str, object], before: str = "") -> str:
    """`parallelism.strategy: fsdp, model.width: 512`: a change of a spec, field by field."""
    words = []
    for name, value in change.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping):
            words.append(change_words(value, f"{path}."))
        else:
            words.append(f"{path}: {'left out' if value is None else value}")
    return ", ".join(word for word in words if word)


def given(part: object) -> object:
    """A spec, or a part of it, without what was left open."""
    if not isinstance(part, dict):
        return part
    kept = {name: given(value) for name, value in part.items() if value is not None}
    return {name: value for name, value in kept.items() if value != {}}


def spec_yaml(spec: Mapping[str, object]) -> str:
    """A spec as YAML, its parts in the order in which people write them."""
    return _spec_yaml(json.dumps(spec))


@lru_cache(maxsize=512)  # specs do not change, and to write one takes as long as its whole page
def _spec_yaml(document: str) -> str:
    spec = json.loads(document)
    ordered = {name: spec[name] for name in SPEC_ORDER if name in spec}
    dumped: str = yaml.safe_dump(
        given(ordered | spec), sort_keys=False, default_flow_style=None, width=100
    )
    return dumped


def lease_words(lease: Lease) -> str:
    """`east-01, Sat 21 Nov 19:00 UTC to 21:55 UTC`; the browser writes the moments in its zone."""
    start, end = lease.hold_start.astimezone(UTC), lease.usable_end.astimezone(UTC)
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%a %d %b %H:%M}"
    return f"{lease.node}, {start:%a %d %b %H:%M} UTC to {until} UTC"


def lease_share(lease: Lease) -> str:
    """The part of a node that a lease has: `1 of 4 GPUs`, with its GPUs once it has begun. Empty
    for a whole node."""
    if lease.whole or lease.gpus is None:
        return ""
    share = f"{lease.gpus} of {counted(lease.of_gpus or lease.gpus, 'GPU')}"
    if not lease.slots:
        return share
    noun = "GPU" if len(lease.slots) == 1 else "GPUs"
    return f"{share}: {noun} {', '.join(str(slot) for slot in lease.slots)}"


def lease_can_be_cancelled(lease: Lease) -> bool:
    """Booked ones are given up, active ones end early; walk-ins follow their job."""
    return lease.kind == "booked" and lease.state in ("booked", "active")
