"""The fewest rows that a job, a node or a lease needs."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from core.base.ids import IdKind, new_id
from core.leases import node_slots
from core.states import Desired, JobState, NodeState
from core.tables.jobs import Job
from core.tables.kinds import Role
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from core.transitions import enter

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def add_user(session: Session, name: str = "ada") -> str:
    """A user; its id."""
    user_id = new_id(IdKind.USER)
    session.add(User(id=user_id, name=name, role=Role.USER, password_hash=None, created_at=NOW))
    session.flush()
    return user_id


def add_node(session: Session, name: str = "north-01", **changes: Any) -> Node:
    """A ready node of class `cpu2`."""
    if session.get(NodeClass, "cpu2") is None:
        session.add(NodeClass(name="cpu2", hardware={}))
        session.flush()
    fields: dict[str, Any] = {
        "id": new_id(IdKind.NODE),
        "name": name,
        "class_name": "cpu2",
        "slots": 2,
        "state": NodeState.READY,
        "inventory": {},
        "boot_id": "boot-1",
        "clean": True,
        "last_seen_at": NOW,
        "created_at": NOW,
    }
    node = Node(**{**fields, **changes})
    session.add(node)
    session.flush()
    node_slots.fit_out(session, node)
    return node


def add_job(session: Session, user_id: str, **changes: Any) -> Job:
    """A queued job with an hour of wall time."""
    fields: dict[str, Any] = {
        "id": new_id(IdKind.JOB),
        "user_id": user_id,
        "name": "tiny",
        "spec": {},
        "plan": {},
        "state": JobState.QUEUED,
        "desired": Desired.RUN,
        "epoch": 0,
        "reason_code": "submitted",
        "reason": "Submitted.",
        "wall_time_s": 3600,
        "used_s": 0,
        "infrastructure_failures": 0,
        "interruptions": 0,
        "steps": 100,
        "last_step": 0,
        "created_at": NOW,
    }
    job = Job(**{**fields, **changes})
    enter(session, job, now=NOW, reason_code="submitted", message="Submitted.", actor=user_id)
    return job
