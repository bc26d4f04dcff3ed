"""A small world in a database: people, nodes that report, jobs that wait; and a scheduler in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select, update

from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.jobs import attempts
from core.jobs.gang_exit import PartEnd
from core.leases import leases, node_slots
from core.leases.active_policies import fingerprint
from core.leases.appointments import NoShow
from core.leases.leases import Terms
from core.policy.document import load
from core.spec.script import Script, plan_script
from core.spec.spec import JobSpec, ScriptJobSpec, WorkbenchJobSpec
from core.spec.workbench import plan_workbench
from core.states import (
    LIVE_ATTEMPT,
    Desired,
    JobState,
    NodeState,
    Outcome,
    Phase,
    Sharing,
)
from core.tables.files import Checkpoint, StoredFile
from core.tables.jobs import Attempt, AttemptPart, Event, Job
from core.tables.kinds import LeaseKind, Role
from core.tables.leases import Lease
from core.tables.nodes import Node, NodeClass
from core.tables.people import User
from core.tables.policies import AppliedPolicy
from core.transitions import enter
from core.wire.doorbell import Topic
from core.wire.messages import (
    ExitRecord,
)
from scheduler.cycle import Scheduler, run_cycle
from scheduler.leadership import LeadershipClaim
from scheduler.outbox.dispatch import Dispatcher
from scheduler.snapshot import WaitingJob
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from tests.core.holds import OVERBOOKED, SLOTS_WRONG

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
CPU2 = Hardware(class_name="cpu2", device="cpu", slots=2, memory_gib=8.0)
CPU8 = Hardware(class_name="cpu8", device="cpu", slots=8, memory_gib=32.0)
WHY = "no memory cgroup can be made"
CLASSES = {hardware.class_name: hardware for hardware in (CPU2, CPU8)}


@dataclass
class Bells:
    """A doorbell that remembers."""

    nodes: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    def ring_node(self, node_name: str) -> None:
        self.nodes.append(node_name)

    def ring_live(self, job_id: str, news: dict[str, object]) -> None:
        self.jobs.append(job_id)

    def ring_topic(self, topic: Topic) -> None:
        self.topics.append(topic)


class World:
    """Everything a test does to the database between cycles. Time moves only by `now`."""

    def __init__(self, database: Database, now: datetime = NOON) -> None:
        self.database = database
        self.now = now
        self.bells = Bells()
        self.scheduler = self.new_scheduler("first")
        with database.write() as session:
            for name in ("ada", "bob"):
                session.add(
                    User(
                        id=f"user_{name}",
                        name=name,
                        role=Role.USER,
                        password_hash=None,
                        created_at=now,
                    )
                )
            for hardware in CLASSES.values():
                session.add(
                    NodeClass(name=hardware.class_name, hardware=hardware.model_dump(mode="json"))
                )

    def new_scheduler(self, holder: str) -> Scheduler:
        """A scheduler that goes by this world's time; it begins as leader of a minute ago."""
        leadership = LeadershipClaim(
            self.database,
            holder=holder,
            ttl_s=1e9,
            clock=lambda: self.now,
            monotonic=lambda: self.now.timestamp(),
        )
        scheduler = Scheduler(self.database, leadership, Dispatcher(self.bells))
        if leadership.hold():
            leadership.leader_since = self.now - timedelta(minutes=2)
        return scheduler

    # ------------------------------------------------------------------------------- what happens

    def cycle(self, *, after_s: float = 0.0) -> list[str]:
        """One cycle, some time later; the ids of the jobs it started."""
        self.now += timedelta(seconds=after_s)
        return run_cycle(self.scheduler, self.now)

    def go(
        self,
        moment: datetime | None = None,
        *,
        report: bool = True,
        clean: bool = True,
        dirty: Sequence[int] = (),
    ) -> list[str]:
        """One cycle at a moment, or now; all nodes have just reported, if so. What it started.

        No slot may have more than one holder then.
        """
        self.now = moment or self.now
        if report:
            self.report(clean=clean, dirty=dirty)
        started = self.cycle()
        with self.database.read() as session:
            assert session.scalar(OVERBOOKED) == 0
            assert session.scalar(SLOTS_WRONG) == 0
        return started

    def node(
        self,
        name: str = "north-01",
        class_name: str = "cpu2",
        *,
        state: NodeState = NodeState.READY,
        clean: bool = True,
        sharing: Sharing = Sharing.FULL,
    ) -> str:
        """A node that has just reported; its id."""
        with self.database.write() as session:
            node = Node(
                id=new_id(IdKind.NODE),
                name=name,
                class_name=class_name,
                slots=CLASSES[class_name].slots,
                state=state,
                reason="",
                sharing=sharing,
                inventory={
                    "sharing": sharing,
                    "no_sharing": "" if sharing is Sharing.FULL else WHY,
                },
                telemetry=None,
                boot_id="boot-1",
                clean=clean,
                last_seen_at=self.now,
                created_at=self.now,
            )
            session.add(node)
            session.flush()
            node_slots.fit_out(session, node)
            return node.id

    def report(
        self,
        node_id: str | None = None,
        *,
        clean: bool = True,
        boot_id: str = "boot-1",
        missing: bool = False,
        dirty: Sequence[int] = (),
    ) -> None:
        """A heartbeat of one node, or of all: what it lists is live, unless `missing`."""
        with self.database.write() as session:
            for node in session.scalars(select(Node)):
                if node_id not in (None, node.id):
                    continue
                node.last_seen_at, node.boot_id = self.now, boot_id
                node_slots.set_dirty(session, node, dirty if clean else range(node.slots))
                for part in session.scalars(
                    select(AttemptPart)
                    .join(Attempt, Attempt.id == AttemptPart.attempt_id)
                    .where(
                        AttemptPart.node_id == node.id,
                        AttemptPart.ended_at.is_(None),
                        Attempt.state.in_(LIVE_ATTEMPT),
                    )
                ):
                    part.missing_since = (part.missing_since or self.now) if missing else None

    def job(
        self,
        *,
        wall: str = "20min",
        user: str = "ada",
        ranks: int = 2,
        nodes: int = 1,
        lease: str | None = None,
        leases: Sequence[str] = (),
        node_class: str | None = None,
        checkpointable: bool = True,
        allow_oom: bool = False,
        auto: bool = False,
        **changes: Any,
    ) -> str:
        """A queued job, which left its ranks to the planner if `auto`; its id."""
        spec = JobSpec.model_validate(
            {
                "name": "tiny",
                "model": {"name": "gpt", "layers": 2, "width": 32, "heads": 2},
                "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 64},
                "training": {
                    "steps": 40,
                    "global_batch_size": 8,
                    "learning_rate": 1e-3,
                    "warmup_steps": 1,
                    "seed": 1,
                },
                "parallelism": {"strategy": "ddp" if ranks * nodes > 1 else "single"},
                "checkpoint": {"every_steps": 20, "keep_last": 2},
                "resources": {
                    "nodes": nodes,
                    "ranks_per_node": "auto" if auto else ranks,
                    "wall_time": wall,
                    "node_class": node_class,
                    "checkpointable": checkpointable,
                    "allow_oom": allow_oom,
                },
                "lease": lease,
                "leases": list(leases),
            }
        )
        planned = plan(spec, nodes=nodes, ranks_per_node=ranks, hardware=CPU8)
        assert planned.runnable, planned.problems
        fields: dict[str, Any] = {
            "id": new_id(IdKind.JOB),
            "user_id": f"user_{user}",
            "name": spec.name,
            "spec": spec.model_dump(mode="json"),
            "plan": planned.model_dump(mode="json"),
            "lease_id": lease,
            "state": JobState.QUEUED,
            "desired": Desired.RUN,
            "epoch": 0,
            "reason_code": "submitted",
            "reason": "Submitted.",
            "wall_time_s": spec.resources.wall_time,
            "used_s": 0,
            "infrastructure_failures": 0,
            "interruptions": 0,
            "steps": spec.training.steps,
            "last_step": 0,
            "created_at": self.now,
        }
        with self.database.write() as session:
            job = Job(**{**fields, **changes})
            enter(
                session, job, now=self.now, reason_code="submitted", message="Submitted.", actor="t"
            )
            return job.id

    def program(
        self, *, ranks: int = 1, nodes: int = 1, lease: str | None = None, **changes: Any
    ) -> str:
        """A queued program that brings its owner's workspace; its id."""
        script = Script(entry="train.py", code="c" * 64)
        resources = {"nodes": nodes, "ranks_per_node": ranks, "wall_time": "20min"}
        spec = ScriptJobSpec.model_validate(
            {
                "name": "mine",
                "script": script,
                "workspace": True,
                "resources": resources,
                "lease": lease,
            }
        )
        planned = plan_script(script, nodes=nodes, ranks_per_node=ranks, hardware=CPU8)
        documents = {"spec": spec.model_dump(mode="json"), "plan": planned.model_dump(mode="json")}
        return self.job(ranks=ranks, nodes=nodes, lease=lease, **documents, **changes)

    def workbench(
        self, lease: str, *, when_idle: str = "keep", ranks: int = 2, wall: str = "24h"
    ) -> str:
        """A queued workbench of ada's in her lease; its id."""
        terms = {
            "name": "bench",
            "resources": {"ranks_per_node": ranks, "wall_time": wall},
            "lease": lease,
            "workspace": False,
            "workbench": {"kind": "terminal", "when_idle": when_idle},
        }
        spec = WorkbenchJobSpec.model_validate(terms)
        planned = plan_workbench(nodes=1, ranks_per_node=ranks, hardware=CPU8)
        documents = {"spec": spec.model_dump(mode="json"), "plan": planned.model_dump(mode="json")}
        return self.job(ranks=ranks, lease=lease, wall=wall, **documents)

    def file(self) -> str:
        """A stored file, such as the code of a script; its hash."""
        with self.database.write() as session:
            name = new_id(IdKind.NODE).removeprefix("node_").rjust(64, "0")
            session.add(StoredFile(sha256=name, size=1, created_at=self.now))
            return name

    def book(
        self,
        node_id: str,
        start: datetime,
        hours: int,
        *,
        user: str = "ada",
        no_show: NoShow | None = None,
        num_slots: int | None = None,
    ) -> str:
        """A booked lease, of the whole node or a number of its slots; its id."""
        with self.database.write() as session:
            node = session.get_one(Node, node_id)
            return leases.take(
                session,
                user_id=f"user_{user}",
                node=node,
                kind=LeaseKind.BOOKED,
                start=start,
                end=start + timedelta(hours=hours),
                grace_s=300,
                now=self.now,
                actor="t",
                message="Booked.",
                terms=Terms(no_show=no_show),
                num_slots=num_slots,
            ).id

    def apply(self, document: str) -> None:
        """A policy holds from now on, in the place of the one of its id."""
        policy = load(document)
        with self.database.write() as session:
            session.execute(
                update(AppliedPolicy)
                .where(AppliedPolicy.policy_id == policy.id)
                .values(active=False)
            )
            session.add(
                AppliedPolicy(
                    policy_id=policy.id,
                    version=policy.version,
                    document=document,
                    sha256=fingerprint(document),
                    active=True,
                    applied_by="user_ada",
                    applied_at=self.now,
                )
            )

    def runs(self, job_id: str) -> None:
        """Its node has taken the job up and made the first step."""
        with self.database.write() as session:
            job = session.get_one(Job, job_id)
            attempt = attempts.live_attempt(session, job)
            assert attempt is not None
            for part in attempts.parts_of(session, attempt):
                part.phase = Phase.RUNNING
            attempts.run(session, job, attempt, now=self.now, actor="node")

    def exits(
        self,
        job_id: str,
        outcome: Outcome = Outcome.SUCCEEDED,
        *,
        clean: bool = True,
        kept: bool = True,
    ) -> None:
        """Its node reports how the attempt ended, if it is clean, and if all files are stored."""
        with self.database.write() as session:
            job = session.get_one(Job, job_id)
            attempt = attempts.live_attempt(session, job)
            assert attempt is not None
            begun = attempt.started_at or self.now
            record = ExitRecord(
                job_id=job_id,
                epoch=attempt.epoch,
                boot_id="boot-1",
                outcome=outcome,
                reason=f"It ended: {outcome}.",
                duration_s=(self.now - begun).total_seconds(),
            )
            node_ids = []
            for part in attempts.parts_of(session, attempt):
                attempts.end_part(
                    session, job, attempt, part, PartEnd(record), now=self.now, actor="node"
                )
                part.files_kept = kept
                node_ids.append(part.node_id)
            attempt.files_kept = kept
        for node_id in node_ids:
            self.report(node_id, clean=clean)

    def saves(self, job_id: str) -> None:
        """Its attempt has stored a checkpoint."""
        with self.database.write() as session:
            epoch = session.get_one(Job, job_id).epoch
            session.add(
                Checkpoint(
                    id=new_id(IdKind.CHECKPOINT),
                    job_id=job_id,
                    epoch=epoch,
                    step=epoch,
                    size=1,
                    files=[],
                    created_at=self.now,
                )
            )

    def keeps(self, job_id: str) -> None:
        """The files of its last attempt are all in the store now."""
        with self.database.write() as session:
            attempt = session.merge(self.attempt(job_id))
            attempt.files_kept = True
            for part in attempts.parts_of(session, attempt):
                part.files_kept = True

    # ---------------------------------------------------------------------------------- what is so

    def get_job(self, job_id: str) -> Job:
        with self.database.read() as session:
            return session.get_one(Job, job_id)

    def get_lease(self, lease_id: str) -> Lease:
        with self.database.read() as session:
            return session.get_one(Lease, lease_id)

    def get_node(self, node_id: str) -> Node:
        with self.database.read() as session:
            return session.get_one(Node, node_id)

    def attempt(self, job_id: str) -> Attempt:
        """The newest attempt of a job."""
        with self.database.read() as session:
            return session.scalars(
                select(Attempt).where(Attempt.job_id == job_id).order_by(Attempt.epoch.desc())
            ).first() or _fail(f"{job_id} has no attempt")

    def parts(self, job_id: str) -> list[AttemptPart]:
        """The newest attempt of a job, on each of its nodes."""
        with self.database.read() as session:
            return list(attempts.parts_of(session, self.attempt(job_id)))

    def lease_of(self, job_id: str) -> Lease:
        """The lease of the newest attempt of a job."""
        return self.get_lease(self.attempt(job_id).lease_id)

    def events(self, subject: str) -> Iterator[str]:
        """Kinds of what happened to a job, lease or node, in order."""
        with self.database.read() as session:
            yield from session.scalars(
                select(Event.kind).where(Event.subject == subject).order_by(Event.id)
            )


def _fail(message: str) -> Any:
    raise AssertionError(message)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    """A moment of the day on which these tests play."""
    return NOON.replace(hour=hour, minute=minute, second=second)


def waiting_job(job_id: str, **changes: Any) -> WaitingJob:
    """A job of ada's that waits since NOON for both slots of a cpu2 node, for twenty minutes."""
    wall_s = changes.get("wall_time_s", 1200)
    usual: dict[str, Any] = {
        "id": job_id,
        "name": job_id,
        "user_id": "user_ada",
        "epoch": 0,
        "lease_ids": (),
        "ranks": 2,
        "owner_disabled": False,
        "queued_at": NOON,
        "not_before": None,
        "wall_time_s": wall_s,
        "wall_left_s": wall_s,
        "failures": 0,
        "saving_on": None,
        "classes": ("cpu2",),
        "num_nodes": 1,
        "may_be_cut": True,
        "in_vain": 0,
        "told": ("", "", None),
    }
    return WaitingJob(**usual | changes)
