"""Bodies that tests send, and a way to put a job on the node without a scheduler."""

from datetime import timedelta
from typing import Any

from sqlalchemy import select

from core.base.clock import utc_now
from core.database.database import Database
from core.jobs import attempts
from core.leases import leases, node_slots
from core.tables.jobs import Job
from core.tables.kinds import LeaseKind
from core.tables.nodes import Node

INVENTORY: dict[str, Any] = {
    "hostname": "box.example",
    "cores": 2,
    "memory_gib": 16.0,
    "gpus": [],
    "slots": 2,
    "python": "3.11.7",
    "torch": "2.13.0",
}
TELEMETRY = {"cpu_pct": 12.5, "memory_used_gib": 3.25, "disk_free_gib": 100.0}


def job_spec(**changes: Any) -> dict[str, Any]:
    """The example job; `model={"heads": 5}` lays fields over it."""
    spec: dict[str, Any] = {
        "name": "gpt-ddp",
        "model": {"name": "gpt", "layers": 4, "width": 160, "heads": 4},
        "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 128},
        "training": {
            "steps": 400,
            "global_batch_size": 8,
            "learning_rate": 2.0e-3,
            "warmup_steps": 20,
            "schedule": "cosine",
            "max_grad_norm": 1.0,
            "seed": 1,
        },
        "parallelism": {"strategy": "ddp", "data_parallel_replicate_degree": 2},
        "precision": "float32",
        "checkpoint": {"every_steps": 200, "keep_last": 2},
        "resources": {"nodes": 1, "ranks_per_node": 2, "wall_time": "20min"},
    }
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(spec.get(name), dict):
            spec[name] = {**spec[name], **value}
        else:
            spec[name] = value
    return spec


def heartbeat(*observed: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What `box` says of itself."""
    beat: dict[str, Any] = {
        "incarnation": "one",
        "boot_id": "boot-1",
        "inventory": INVENTORY,
        "telemetry": TELEMETRY,
        "attempts": list(observed),
        "clean": not observed,
    }
    return {**beat, **changes}


def exit_record(job_id: str, epoch: int = 1, **changes: Any) -> dict[str, Any]:
    """A training that went to its end."""
    record: dict[str, Any] = {
        "job_id": job_id,
        "epoch": epoch,
        "boot_id": "boot-1",
        "outcome": "succeeded",
        "reason": "Trained to the end.",
        "code": 0,
        "duration_s": 33.0,
        "result": {
            "finished": True,
            "step": 400,
            "loss_first": 4.6,
            "loss_last": 1.8,
            "eval_loss": 1.9,
            "tokens_per_s": 12000.0,
            "wall_s": 33.0,
            "checkpoint": "step-000400",
            "sample": "class Foo:",
            "reason": "finished",
        },
    }
    return {**record, **changes}


def place(
    database: Database, job_id: str, node_name: str = "box", *, num_slots: int | None = None
) -> int:
    """Do what the scheduler does: give the job its next attempt on a node, or on so many slots of
    it; its epoch."""
    now = utc_now()
    with database.write() as session:
        job = session.get_one(Job, job_id)
        node = session.scalars(select(Node).where(Node.name == node_name)).one()
        lease = leases.take(
            session,
            user_id=job.user_id,
            node=node,
            kind=LeaseKind.WALK_IN,
            start=now,
            end=now + timedelta(hours=2),
            grace_s=300,
            now=now,
            actor="test",
            message="Walk-in.",
            num_slots=num_slots,
        )
        slots = tuple(sorted(node_slots.lease_slots(session, lease)))[:2]
        attempt = attempts.assign(
            session, job, [attempts.NodeAssignment(node, lease, slots)], now=now, actor="test"
        )
        assert attempt is not None
        return attempt.epoch


def free(database: Database, node_name: str = "box") -> None:
    """Do what the scheduler does once the node is clean after a job: end the node's leases."""
    now = utc_now()
    with database.write() as session:
        node = session.scalars(select(Node).where(Node.name == node_name)).one()
        for lease in session.scalars(
            select(leases.Lease).where(leases.Lease.node_id == node.id)
        ).all():
            leases.end(session, lease, at=now, now=now, message="Ended.", actor="test")
        node_slots.set_dirty(session, node, ())
