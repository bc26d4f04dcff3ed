"""A platform full of data, without scheduler and worker: the real API and pages over rows written
here. For pictures, for looks at wide or many things, and for tests that need no training.

`python -m tests.dashboard.stage` serves it until Ctrl-C and prints a link that signs in.
"""

import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn
import yaml
from sqlalchemy import insert
from sqlalchemy.orm import Session

from api.app import create_app
from api.records import log_store, metric_store
from api.records.log_store import Piece
from api.records.metric_store import Points
from api.watching.hub import Hub
from api.web.auth import COOKIE
from api.web.credentials import issue_token
from core.base.clock import utc_now
from core.base.ids import IdKind, new_id
from core.database.database import Database
from core.database.schema import upgrade
from core.leases import node_slots
from core.process.settings import ApiSettings
from core.spec.planning import plan_on
from core.spec.spec import AnyJobSpec, JobSpec, ScriptJobSpec, read_job_spec
from core.states import (
    AttemptState,
    Desired,
    GpuHealth,
    JobState,
    LeaseState,
    NodeState,
    Outcome,
    Sharing,
)
from core.tables.agendas import Agenda, AgendaJob
from core.tables.files import Artifact, Checkpoint, StoredFile
from core.tables.jobs import Attempt, AttemptPart, Event, Job, Study, StudyJob
from core.tables.kinds import LeaseKind, OccupancyKind, OnFailure, Role, TokenKind
from core.tables.leases import Lease, Occupancy
from core.tables.nodes import Node, NodeClass
from core.tables.people import Lab, Membership, User
from core.wire.messages import ExitRecord, Gpu, GpuReading, Inventory, Telemetry
from strategies.plan.hardware import Hardware
from strategies.plan.trust.scaling import StudyKind
from tests.running import own_port

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"
NOWHERE = "unix:///nonexistent/trainyard-stage.sock?db=0"
HOUR = timedelta(hours=1)
H100 = Hardware(class_name="h100x8", device="cuda", slots=8, memory_gib=79.6, model="NVIDIA H100")
A100 = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=39.6, model="NVIDIA A100")
CPU = Hardware(class_name="cpu16", device="cpu", slots=16, memory_gib=62.0)
CLASSES = (H100, A100, CPU)
NODES = (
    ("east-01", H100),
    ("east-02", H100),
    ("north-01", A100),
    ("north-02", A100),
    ("south-01", A100),
    ("west-01", A100),
    ("cpu-01", CPU),
)
LOST_GPU = ("north-02", 1)
LLAMA = """
name: llama-7b-python
model: {name: llama, layers: 32, width: 4096, heads: 32, ffn_width: 11008}
data: {dataset: python-stdlib, sequence_length: 4096}
training: {steps: 6000, global_batch_size: 32, micro_batch_size: 2, learning_rate: 3.0e-4,
  warmup_steps: 200, eval_every_steps: 200}
parallelism: {strategy: pipeline, pipeline_parallel_degree: 4, data_parallel_shard_degree: 2,
  tensor_parallel_degree: 2}
precision: bfloat16
activation_checkpointing: full
checkpoint: {every_steps: 600, keep_last: 3}
resources: {nodes: 2, ranks_per_node: 8, wall_time: 5h}
"""
HOMEWORK = """
name: homework-4-ddp
model: {name: gpt, layers: 12, width: 768, heads: 12}
data: {dataset: python-stdlib, sequence_length: 1024}
training: {steps: 2000, global_batch_size: 32, learning_rate: 6.0e-4, warmup_steps: 100}
parallelism: {strategy: ddp}
resources: {nodes: 1, ranks_per_node: 4, wall_time: 2h}
"""
LAYOUTS = (
    ("ddp", {"strategy": "ddp"}, 1.0, 0.0),
    ("fsdp", {"strategy": "fsdp"}, 1.06, 6e-8),
    ("zero2", {"strategy": "zero2"}, 1.03, 2e-7),
    (
        "tensor",
        {"strategy": "tensor", "tensor_parallel_degree": 2, "data_parallel_shard_degree": 2},
        1.41,
        4e-8,
    ),
)
PREFLIGHT = {
    "device": "NVIDIA H100",
    "backend": "nccl",
    "torch": "2.13.0",
    "ranks": [f"east-0{1 + rank // 8}, process {4000 + rank}" for rank in range(16)],
    "seconds": 0.214,
    "timings": [
        {
            "check": {
                "collective": collective,
                "operation": operation,
                "dtype": dtype,
                "size_bytes": 16384,
            },
            "right": True,
            "p50_ms": ms,
            "p95_ms": ms,
            "bus_gb_per_s": 0.03 / ms,
            "slowest_rank": rank,
        }
        for collective, operation, dtype, ms, rank in (
            ("all_reduce", "sum", "float32", 4.1, 11),
            ("all_reduce", "mean", "bfloat16", 0.31, 11),
            ("reduce_scatter", "mean", "float32", 0.28, 3),
            ("all_gather", None, "bfloat16", 0.27, 11),
            ("p2p ring", None, "float32", 0.19, 7),
        )
    ],
}
HOSTILE = "<script>alert(1)</script> \u202etxt.exe \x1b[31mred"


@dataclass
class Stage:
    """Where it is served, and what stands on it."""

    url: str
    database: Database
    people: dict[str, str]
    """Name to id."""
    secrets: dict[str, str]
    """Name to the secret of a session."""
    jobs: dict[str, str] = field(default_factory=dict)
    """Name to id; of several with one name the newest."""
    nodes: dict[str, str] = field(default_factory=dict)
    leases: dict[str, str] = field(default_factory=dict)
    """Name of a person to the id of the last lease that was put there."""
    study: str = ""
    agenda: str = ""

    def storage(self, name: str = "ada") -> dict[str, Any]:
        """A browser's storage in which this person is signed in."""
        cookie = {
            "name": COOKIE,
            "value": self.secrets[name],
            "domain": "127.0.0.1",
            "path": "/",
            "expires": -1,
            "httpOnly": True,
            "secure": False,
            "sameSite": "Lax",
        }
        return {"cookies": [cookie], "origins": []}


def openapi() -> dict[str, Any]:
    """The committed document: an API takes 3 s to make its own, which the form of a job reads."""
    return dict(json.loads(OPENAPI.read_text()))


@contextmanager
def raised(folder: Path, *, port: int | None = None) -> Iterator[Stage]:
    """The stage with people and nodes but no job, served until the end of the block."""
    address = f"sqlite:///{folder / 'trainyard.db'}"
    database = Database(address)
    upgrade(database)
    port = port or own_port()
    settings = ApiSettings(
        database_url=address,
        redis_url=NOWHERE,
        store=folder / "store",
        port=port,
        submissions_per_minute=100_000,
        max_queued_jobs=1000,
    )
    app = create_app(settings)
    app.openapi_schema = openapi()
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", loop="asyncio")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the API of the stage did not start"
        time.sleep(0.02)
    stage = Stage(f"http://127.0.0.1:{port}", database, {}, {})
    with database.write() as session:
        _add_people(stage, session)
        _add_nodes(stage, session)
    try:
        yield stage
    finally:
        app.state.process.service(Hub).close_soon()
        server.should_exit = True
        thread.join(timeout=10)
        database.close()


def fill(stage: Stage) -> None:
    """A working afternoon: jobs in every state, four layouts of one training, leases, a study, and
    a lab in one lease."""
    now = utc_now()
    with stage.database.write() as session:
        _add_leases(stage, session, now)
        _add_homework(stage, session, now)
        _add_others(stage, session, now)
        _add_llama(stage, session, now)
        _add_study(stage, session, now)
        _add_agenda(stage, session, now)


POLICY = """\
policy: {id: course-ml, version: 1, zone: America/New_York}
grid: {grace_min: 5, min_lead_min: 0, horizon_days: 21}
pools:
  east: {class: h100x8, hours: [3]}
  north: {class: a100x4, hours: [2, 3]}
bands:
  night: {local: ["22:00", "06:00"]}
  day: {complement_of: night}
windows:
  - {pool: all, usable: ["%s", "%s"], opens_at: now}
quotas:
  main:
    period: window
    one_of:
      - {name: one-long, slots: [{pool: east, hours: 3}]}
      - {name: two-short, slots: [{pool: north, hours: 2}, {pool: north, hours: 2}]}
  each: {period: window, max_node_hours: {all: 60}}
walk_in: {allowed: true, max_hours: 8, charged: false}
"""


def policy_text() -> str:
    """Rules like a course's, with a window around now."""
    now = utc_now()
    days = (now + number * 24 * HOUR for number in (-20, 9))
    return POLICY % tuple(f"{day:%Y-%m-%dT00:00}" for day in days)


def apply_policy(stage: Stage) -> None:
    """Put them into force."""
    with httpx2.Client(base_url=stage.url) as client:
        answer = client.post(
            "/v1/policies",
            content=policy_text(),
            headers={
                "authorization": f"Bearer {stage.secrets['ada']}",
                "content-type": "application/yaml",
            },
        )
    assert answer.status_code == 200, answer.text


def add_many(stage: Stage, count: int) -> None:
    """So many ended jobs of ada, in one transaction."""
    spec = _spec(HOMEWORK)
    dumped, planned = spec.model_dump(mode="json"), _planned(spec, A100)
    now = utc_now()
    rows = [
        {
            "id": new_id(IdKind.JOB),
            "user_id": stage.people["ada"],
            "name": f"sweep-{index:05d}",
            "spec": dumped,
            "plan": planned,
            "state": JobState.SUCCEEDED,
            "desired": Desired.RUN,
            "reason_code": "succeeded",
            "reason": "All steps done.",
            "wall_time_s": 7200,
            "steps": 2000,
            "last_step": 2000,
            "last_loss": 1.5,
            "created_at": now,
            "finished_at": now,
        }
        for index in range(count)
    ]
    with stage.database.write() as session:
        session.execute(insert(Job), rows)


def add_job(
    stage: Stage,
    session: Session,
    text: str,
    *,
    hardware: Hardware = A100,
    user: str = "ada",
    state: JobState = JobState.QUEUED,
    reason: str = "Waiting for the scheduler's next cycle.",
    age: timedelta = HOUR,
    **changes: Any,
) -> Job:
    """A job as if it had been submitted so long ago."""
    now = utc_now()
    spec = _spec(text, **changes.pop("spec", {}))
    created = now - age
    fields: dict[str, Any] = {
        "id": new_id(IdKind.JOB),
        "user_id": stage.people[user],
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "plan": _planned(spec, hardware),
        "dataset_id": None,
        "model_id": None,
        "lease_id": None,
        "cloned_from": None,
        "state": state,
        "desired": Desired.RUN,
        "reason_code": str(state),
        "reason": reason,
        "wall_time_s": spec.resources.wall_time,
        "steps": spec.training.steps if isinstance(spec, JobSpec) else 0,
        "created_at": created,
    }
    if isinstance(spec, ScriptJobSpec):
        fields["code_sha256"] = _code(session, spec, now)
    job = Job(**{**fields, **changes})
    session.add(job)
    session.flush()
    stage.jobs[job.name] = job.id
    _event(session, job.id, created, "submitted", None, JobState.QUEUED, "Submitted.")
    return job


def add_attempt(
    stage: Stage,
    session: Session,
    job: Job,
    *,
    node: str,
    start: datetime,
    end: datetime | None = None,
    outcome: Outcome | None = None,
    reason: str = "Training.",
    lease: Lease | None = None,
    others: Sequence[str] = (),
) -> Attempt:
    """A try of a job; without an end it runs."""
    if lease is None:
        lease = add_lease(stage, session, "ada", node, start, start + HOUR, LeaseKind.WALK_IN)
        lease.state = LeaseState.ENDED
        lease.hold_end = end or lease.hold_end
    job.epoch += 1
    attempt = Attempt(
        id=new_id(IdKind.ATTEMPT),
        job_id=job.id,
        epoch=job.epoch,
        node_id=stage.nodes[node],
        lease_id=lease.id,
        state=AttemptState.EXITED if end else AttemptState.RUNNING,
        outcome=outcome,
        reason=reason,
        launcher="warm",
        assigned_at=start - timedelta(seconds=2),
        started_at=start,
        first_step_at=start + timedelta(seconds=1),
        ended_at=end,
    )
    session.add(attempt)
    session.flush()
    for position, name in enumerate([node, *others]):
        session.add(
            AttemptPart(
                attempt_id=attempt.id,
                position=position,
                node_id=stage.nodes[name],
                lease_id=lease.id,
                slots=list(range(int(job.plan["ranks_per_node"]))),
                phase=None,
                ended_at=end,
            )
        )
    session.flush()
    job.started_at = job.started_at or start
    _event(
        session, job.id, start, "starting", "queued", "starting", f"Starting on {node}.", attempt
    )
    _event(session, job.id, start, "running", "starting", "running", "Training.", attempt)
    return attempt


def add_metrics(
    session: Session, attempt: Attempt, columns: dict[str, Sequence[float]], *, rank: int = 0
) -> None:
    """Curves by step; `step` is one of the columns."""
    steps = np.asarray(columns["step"], np.int64)
    lines = np.arange(len(steps), dtype=np.int64)
    found = {}
    for key, values in columns.items():
        if key == "step":
            continue
        numbers = np.asarray(values, np.float64)
        kept = ~np.isnan(numbers) | (key == "loss")
        if kept.any():
            found[key] = Points(steps[kept], lines[kept], numbers[kept])
    metric_store.insert_rows(session, metric_store.batch_rows(attempt.id, rank, 0, found))


def add_log(session: Session, attempt: Attempt, lines: Sequence[str], *, rank: int = 0) -> None:
    """What a rank printed."""
    log_store.append(
        session,
        [Piece(attempt.id, rank, "stdout", 0, "".join(f"{line}\n" for line in lines))],
        now=utc_now(),
    )


def curve(
    steps: int, *, step_s: float, tokens: int, start: datetime, off: float = 0.0, speed_dip: int = 0
) -> dict[str, Sequence[float]]:
    """What rank 0 writes of a training that goes well; `off` is how far the loss is from another
    layout's, relative; from `speed_dip` on steps take a tenth longer."""
    draw = np.random.default_rng(7)
    step = np.arange(1, steps + 1)
    noise = draw.normal(0, 0.012, steps)
    loss = 0.95 + 4.6 * np.exp(-step / 420) + 0.55 * np.exp(-step / 2500) + noise
    loss *= 1 + off * draw.normal(0, 1, steps).cumsum() / 20
    took = step_s * (1 + np.abs(draw.normal(0, 0.012, steps)))
    if speed_dip:
        took[speed_dip:] *= 1.1
    took[::600] *= 1.18
    warm = np.minimum(1, step / 200)
    rate = 3e-4 * warm * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * step / (2 * steps))))
    norm = 0.4 + 2.1 * np.exp(-step / 200) + np.abs(draw.normal(0, 0.03, steps))
    if steps > 1000:
        norm[steps // 2] = 1.6
    columns: dict[str, Any] = {
        "step": step,
        "time": start.timestamp() + took.cumsum(),
        "loss": loss,
        "grad_norm": norm,
        "lr": rate,
        "tokens_seen": step * tokens,
        "tokens_per_s": tokens / took,
        "step_time_s": took,
        "data_time_s": 0.004 + np.abs(draw.normal(0, 0.002, steps)),
        "mfu": 36.0 * step_s / took,
        "max_active_gib": np.full(steps, 0.0),
        "eval_loss": np.where(step % 200 == 0, loss + 0.04, np.nan),
    }
    looks = (step == 20) | (step % 500 == 0)
    for key, share in (
        ("forward_time_s", 0.26),
        ("backward_time_s", 0.52),
        ("optimizer_time_s", 0.04),
        ("exposed_comm_time_s", 0.05),
        ("look_time_s", 1.0),
    ):
        columns[key] = np.where(looks, step_s * share * (1 + 0.01 * noise / 0.012), np.nan)
    columns["gpu_pct"] = 100 - np.abs(draw.normal(0, 3, steps))
    return columns


def phases(columns: dict[str, Sequence[float]], held: dict[str, float]) -> None:
    """Adds what memory held at the moments of the steps that were looked into, GiB."""
    looks = ~np.isnan(np.asarray(columns["forward_time_s"], np.float64))
    kept = {"before_forward": 0.08, "after_forward": 1.0, "after_backward": 0.15}
    for moment, rest in {**kept, "after_optimizer": 0.08}.items():
        for kind, gib in held.items():
            amount = gib * rest if kind == "rest" else gib
            if kind == "gradients" and moment in ("before_forward", "after_optimizer"):
                amount = 0.0
            columns[f"{moment}_{kind}_gib"] = np.where(looks, amount, np.nan)


# ------------------------------------------------------------------------------------ the rows


def _add_people(stage: Stage, session: Session) -> None:
    now = utc_now()
    lab = Lab(id=new_id(IdKind.LAB), name="vision", created_at=now)
    session.add(lab)
    for name, role in (
        ("ada", Role.ADMIN),
        ("student-04", Role.USER),
        ("student-17", Role.USER),
        ("student-22", Role.USER),
        ("ta-03", Role.STAFF),
    ):
        user = User(
            id=new_id(IdKind.USER),
            name=name,
            role=role,
            password_hash=None,
            zone="America/New_York",
            created_at=now - 30 * 24 * HOUR,
        )
        session.add(user)
        session.flush()
        session.add(Membership(lab_id=lab.id, user_id=user.id))
        _, secret = issue_token(
            session,
            kind=TokenKind.SESSION,
            name="browser",
            now=now,
            user_id=user.id,
            lifetime=12 * HOUR,
        )
        stage.people[name], stage.secrets[name] = user.id, secret


def _add_nodes(stage: Stage, session: Session) -> None:
    now = utc_now()
    for hardware in CLASSES:
        session.add(NodeClass(name=hardware.class_name, hardware=hardware.model_dump(mode="json")))
    session.flush()
    for index, (name, hardware) in enumerate(NODES):
        is_gpu = hardware.device == "cuda"
        gpus = [
            Gpu(
                index=slot,
                name=hardware.model or "",
                memory_gib=hardware.memory_gib,
                uuid=f"GPU-{slot:08}",
                health=GpuHealth.LOST if (name, slot) == LOST_GPU else GpuHealth.HEALTHY,
                reason="The GPU has fallen off the bus. Reboot the node when its other jobs end."
                if (name, slot) == LOST_GPU
                else "",
            )
            for slot in range(hardware.slots if is_gpu else 0)
        ]
        busy = [96.0, 95.0, 97.0, 96.0, 94.0, 96.0, 95.0, 97.0][: hardware.slots]
        idle = name in ("south-01", "west-01")
        telemetry = Telemetry(
            cpu_pct=31.0 if not idle else 2.0,
            memory_used_gib=18.4 if not idle else 4.1,
            disk_free_gib=812.0,
            gpu_pct=[0.0] * hardware.slots if idle else busy if is_gpu else [],
            gpu_memory_used_gib=[1.0 if idle else 21.0 - index] * (hardware.slots if is_gpu else 0),
            gpus=[
                GpuReading(
                    index=slot,
                    clock_mhz=1005 if slot == 3 else 1395,
                    max_clock_mhz=1410,
                    throttled=["thermal slowdown"] if slot == 3 else [],
                    temperature_c=91 if slot == 3 else 63,
                    power_w=287.4,
                    power_limit_w=400.0,
                    pcie_generation=4,
                    pcie_width=16,
                    max_pcie_width=16,
                    pcie_replays=0,
                    nvlink_errors=0,
                )
                for slot in range(hardware.slots if is_gpu and not idle else 0)
            ],
        )
        node = Node(
            id=new_id(IdKind.NODE),
            name=name,
            class_name=hardware.class_name,
            slots=hardware.slots,
            state={
                "west-01": NodeState.QUARANTINED,
                "cpu-01": NodeState.DRAINING,
            }.get(name, NodeState.READY),
            reason={
                "west-01": "GPU 1 failed its check: 14 uncorrectable memory errors.",
                "cpu-01": "By ta-03 for a disk swap.",
            }.get(name, "Ready."),
            sharing=Sharing.FULL,
            inventory=Inventory(
                sharing=Sharing.FULL,
                hostname=name,
                cores=64,
                memory_gib=503,
                gpus=gpus,
                slots=hardware.slots,
                python="3.11",
                torch="2.13.0",
            ).model_dump(mode="json"),
            telemetry=telemetry.model_dump(mode="json"),
            clean=True,
            last_seen_at=now
            - (timedelta(minutes=4) if name == "south-01" else timedelta(seconds=2)),
            unreachable_since=now - timedelta(minutes=4) if name == "south-01" else None,
            created_at=now - 60 * 24 * HOUR,
        )
        session.add(node)
        session.flush()
        node_slots.fit_out(session, node, gpus)
        stage.nodes[name] = node.id


def add_lease(
    stage: Stage,
    session: Session,
    user: str,
    node: str,
    start: datetime,
    end: datetime,
    kind: LeaseKind = LeaseKind.BOOKED,
    state: LeaseState = LeaseState.BOOKED,
) -> Lease:
    """A lease, with its hold if it is open and was booked."""
    lease = Lease(
        id=new_id(IdKind.LEASE),
        user_id=stage.people[user],
        node_id=stage.nodes[node],
        kind=kind,
        state=state,
        reason="Booked." if kind is LeaseKind.BOOKED else "For a job.",
        hold_start=start,
        hold_end=end,
        grace_s=300,
        created_at=start - HOUR,
    )
    session.add(lease)
    session.flush()
    stage.leases[user] = lease.id
    if state in (LeaseState.BOOKED, LeaseState.ACTIVE) and kind is LeaseKind.BOOKED:
        session.add(
            Occupancy(
                node_id=stage.nodes[node],
                lease_id=lease.id,
                kind=OccupancyKind.LEASE,
                hold_start=start,
                hold_end=end,
            )
        )
    return lease


def _add_leases(stage: Stage, session: Session, now: datetime) -> None:
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    for user, node, after, hours in (
        ("student-04", "north-01", 1, 3),
        ("student-17", "north-01", 5, 2),
        ("student-22", "north-02", 2, 4),
        ("ada", "north-02", 8, 3),
        ("student-04", "east-01", 20, 3),
        ("student-17", "east-02", 22, 3),
        ("student-22", "south-01", 26, 2),
        ("ada", "east-01", 30, 3),
        ("student-17", "cpu-01", 4, 2),
        ("student-22", "cpu-01", 12, 1),
        ("student-04", "north-01", 44, 4),
    ):
        start = hour + after * HOUR
        add_lease(stage, session, user, node, start, start + hours * HOUR)


def _add_homework(stage: Stage, session: Session, now: datetime) -> None:
    for index, (name, parallelism, slow, off) in enumerate(LAYOUTS):
        step_s = 1.12 * slow
        start = now - (9 - index) * HOUR
        end = start + timedelta(seconds=2000 * step_s + 4)
        job = add_job(
            stage,
            session,
            HOMEWORK,
            state=JobState.SUCCEEDED,
            reason="All 2,000 steps done.",
            age=now - start,
            spec={"name": f"homework-4-{name}", "parallelism": parallelism},
        )
        attempt = add_attempt(
            stage,
            session,
            job,
            node="north-01",
            start=start,
            end=end,
            outcome=Outcome.SUCCEEDED,
            reason="All steps done.",
        )
        tokens = int(job.plan["tokens_per_step"])
        columns = curve(2000, step_s=step_s, tokens=tokens, start=start, off=off)
        columns["max_active_gib"] = np.full(2000, {"tensor": 9.1, "fsdp": 8.2}.get(name, 12.4))
        add_metrics(session, attempt, columns)
        add_log(
            session,
            attempt,
            [f"step {step:,} loss {columns['loss'][step - 1]:.4f}" for step in range(50, 2001, 50)],
        )
        job.last_step, job.last_loss = 2000, float(columns["loss"][-1])
        job.last_tokens_per_s = float(columns["tokens_per_s"][-1])
        job.finished_at, job.used_s = end, int((end - start).total_seconds())
        job.result = {
            "finished": True,
            "step": 2000,
            "loss_first": 6.1,
            "loss_last": job.last_loss,
            "eval_loss": job.last_loss + 0.04,
            "eval_accuracy": None,
            "tokens_per_s": job.last_tokens_per_s,
            "wall_s": 2000 * step_s,
            "checkpoint": "step-002000",
            "sample": "class Yard:\n    def __init__(self):\n        self.tracks = []",
            "reason": "finished",
        }
        _event(session, job.id, end, "succeeded", "running", "succeeded", job.reason, attempt)


def _add_others(stage: Stage, session: Session, now: datetime) -> None:
    small = {"spec": {"name": "sweep-lr-3e-4"}}
    add_job(
        stage,
        session,
        HOMEWORK,
        user="student-22",
        reason="Starts about 15:00 on north-02, when its lease has ended. Now, if you take 1 node.",
        predicted_start=now + 2 * HOUR,
        **small,
    )
    add_job(
        stage,
        session,
        HOMEWORK,
        state=JobState.PAUSED,
        reason="Paused by ada at step 210; the checkpoint is in the store. Holds no GPU.",
        last_step=210,
        last_loss=2.204,
        spec={"name": "paused-for-the-night"},
    )
    failed = add_job(
        stage,
        session,
        HOMEWORK,
        state=JobState.FAILED,
        reason="Out of memory on rank 2 (north-01 GPU 2) in backward of step 12: asked 2.1 GiB, "
        "0.8 GiB free.",
        last_step=12,
        last_loss=6.92,
        finished_at=now - HOUR,
        spec={"name": "a-long-name-that-is-kept-whole-2026-spring-retrain-of-it-all"},
    )
    attempt = add_attempt(
        stage,
        session,
        failed,
        node="north-01",
        start=now - HOUR - timedelta(minutes=1),
        end=now - HOUR,
        outcome=Outcome.OUT_OF_MEMORY,
        reason=failed.reason,
    )
    attempt.exit = ExitRecord(
        job_id=failed.id,
        epoch=1,
        boot_id="boot-1",
        outcome=Outcome.OUT_OF_MEMORY,
        reason=failed.reason,
        culprit_rank=2,
        last_lines=["step 11 loss 6.95", "torch.OutOfMemoryError: CUDA out of memory"],
        duration_s=60.0,
    ).model_dump(mode="json")
    columns = curve(12, step_s=1.2, tokens=32768, start=now - HOUR)
    columns["max_active_gib"] = np.full(12, 36.2)
    columns["max_reserved_gib"] = np.full(12, 39.4)
    columns["num_alloc_retries"] = np.append(np.full(9, np.nan), [1, 2, 3])
    add_metrics(session, attempt, columns)
    add_log(
        session,
        attempt,
        ["step 11 loss 6.95", HOSTILE, "torch.OutOfMemoryError: CUDA out of memory"],
        rank=2,
    )
    add_job(
        stage,
        session,
        HOMEWORK,
        state=JobState.CANCELLED,
        reason="Cancelled by ada while queued; nothing was charged.",
        finished_at=now - HOUR,
        spec={"name": "test-do-not-use"},
    )


def _add_llama(stage: Stage, session: Session, now: datetime) -> None:
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    lease = add_lease(
        stage, session, "ada", "east-01", hour - 2 * HOUR, hour + 2 * HOUR, state=LeaseState.ACTIVE
    )
    done, step_s = 3118, 2.1
    start = now - timedelta(seconds=done * step_s * 0.6 + 30)
    job = add_job(
        stage,
        session,
        LLAMA,
        hardware=H100,
        state=JobState.RUNNING,
        reason="Running on east-01 and east-02.",
        age=3 * HOUR,
        lease_id=lease.id,
    )
    first_end = now - 2.4 * HOUR
    add_attempt(
        stage,
        session,
        job,
        node="east-02",
        start=now - 2.9 * HOUR,
        end=first_end,
        outcome=Outcome.PREEMPTED,
        reason="A job with a stronger claim needed the node; saved at step 1,200.",
    )
    attempt = add_attempt(
        stage, session, job, node="east-01", start=start, lease=lease, others=["east-02"]
    )
    attempt.preflight = PREFLIGHT
    tokens = int(job.plan["tokens_per_step"])
    columns = curve(done, step_s=step_s, tokens=tokens, start=start, speed_dip=2500)
    columns["max_active_gib"] = np.minimum(20.4, 18 + np.arange(done) / 400)
    columns["exposed_comm_time_s"] = np.asarray(columns["look_time_s"]) * 0.13
    phases(columns, {"weights": 1.5, "gradients": 3.0, "optimizer": 3.0, "rest": 12.4})
    for expert in range(4):
        columns[f"router/load/expert-{expert}"] = 0.25 + 0.02 * np.sin(
            np.arange(done) / 99 + expert
        )
    columns["val/accuracy"] = 1 - np.exp(-np.arange(done) / 2000)
    add_metrics(session, attempt, columns)
    for rank in range(1, 16):
        waits_s = 0.02 if rank == 11 else step_s * (0.13 + 0.01 * math.sin(rank))
        steps = np.append(np.arange(500, 3001, 500), np.arange(done - 50, done + 1))
        looks = steps % 500 == 0
        add_metrics(
            session,
            attempt,
            {
                "step": steps,
                "look_time_s": np.where(looks, step_s, np.nan),
                "exposed_comm_time_s": np.where(looks, waits_s, np.nan),
                "max_active_gib": np.full(len(steps), 20.2 - rank // 4 + rank / 50),
                "gpu_pct": np.where(looks, np.nan, 99.0 - rank % 4),
            },
            rank=rank,
        )
        add_log(
            session,
            attempt,
            [f"rank {rank} joined", f"micro-batch queue depth {rank % 5}"]
            + (["UserWarning: GPU 3 is slower than its neighbours"] if rank == 11 else []),
            rank=rank,
        )
    add_log(
        session,
        attempt,
        [
            f"step {step:,} loss {columns['loss'][step - 1]:.4f} grad_norm "
            f"{columns['grad_norm'][step - 1]:.3f}"
            for step in range(20, done, 20)
        ],
    )
    job.last_step, job.last_loss = done, float(columns["loss"][-1])
    job.last_tokens_per_s = float(columns["tokens_per_s"][-1])
    for step in (1800, 2400, 3000):
        at = start + timedelta(seconds=step * step_s * 0.6)
        session.add(
            Checkpoint(
                id=new_id(IdKind.CHECKPOINT),
                job_id=job.id,
                epoch=job.epoch,
                step=step,
                size=81_000_000_000,
                files=[],
                created_at=at,
            )
        )
        _event(
            session, job.id, at, "checkpoint_kept", None, None, f"Step {step:,}, 75.4 GiB.", attempt
        )
    sha256 = "ab" * 32
    session.add(StoredFile(sha256=sha256, size=4_100_000, created_at=now))
    session.flush()
    session.add(
        Artifact(
            id=new_id(IdKind.FILE),
            job_id=job.id,
            epoch=1,
            path="profile-step-1100-rank-00.json",
            sha256=sha256,
            size=4_100_000,
            created_at=first_end,
        )
    )


def _add_study(stage: Stage, session: Session, now: datetime) -> None:
    """One training on 1, 2 and 4 ranks; the last of them is still training."""
    study = Study(
        id=new_id(IdKind.STUDY),
        user_id=stage.people["ada"],
        name="how-far-does-ddp-scale",
        kind=StudyKind.STRONG,
        created_at=now - 3 * HOUR,
    )
    session.add(study)
    session.flush()
    stage.study = study.id
    for position, ranks in enumerate((1, 2, 4)):
        step_s = 1.2 / ranks + 0.03 * position
        is_over = ranks < 4
        start = now - (2 - 0.5 * position) * HOUR
        spec = {
            "name": f"how-far-does-ddp-scale-{ranks}",
            "parallelism": {"strategy": "ddp"},
            "resources": {"nodes": 1, "ranks_per_node": ranks, "wall_time": "2h"},
        }
        state = JobState.SUCCEEDED if is_over else JobState.RUNNING
        job = add_job(stage, session, HOMEWORK, state=state, reason="Training.", spec=spec)
        end = start + timedelta(seconds=600 * step_s) if is_over else None
        outcome = Outcome.SUCCEEDED if is_over else None
        attempt = add_attempt(
            stage, session, job, node="south-01", start=start, end=end, outcome=outcome
        )
        tokens = int(job.plan["tokens_per_step"])
        columns = curve(600, step_s=step_s, tokens=tokens, start=start, off=1e-7 * position)
        add_metrics(session, attempt, columns)
        job.last_step, job.last_loss = 600, float(columns["loss"][-1])
        job.last_tokens_per_s, job.finished_at = float(columns["tokens_per_s"][-1]), end
        session.add(StudyJob(job_id=job.id, study_id=study.id, position=position))


def _add_agenda(stage: Stage, session: Session, now: datetime) -> None:
    """A lab of four parts in a lease of three hours: the first took long, the last will not fit."""
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = hour - HOUR
    lease = add_lease(stage, session, "ada", "north-02", start, hour + 2 * HOUR)
    lease.state = LeaseState.ACTIVE
    agenda = Agenda(
        id=new_id(IdKind.AGENDA),
        user_id=stage.people["ada"],
        name="lab-4",
        lease_id=lease.id,
        side_by_side=False,
        on_failure=OnFailure.GO_ON,
        created_at=start,
    )
    session.add(agenda)
    session.flush()
    stage.agenda = agenda.id
    for position, (name, wall_time, state) in enumerate(
        (
            ("ddp", "20min", JobState.SUCCEEDED),
            ("fsdp", "50min", JobState.RUNNING),
            ("zero2", "50min", JobState.QUEUED),
            ("tensor", "90min", JobState.QUEUED),
        )
    ):
        spec = {
            "name": f"lab-4-{name}",
            "resources": {"nodes": 1, "ranks_per_node": 4, "wall_time": wall_time},
        }
        reason = "Waits for its turn in the agenda." if state is JobState.QUEUED else "Training."
        job = add_job(
            stage, session, HOMEWORK, state=state, reason=reason, lease_id=lease.id, spec=spec
        )
        session.add(AgendaJob(job_id=job.id, agenda_id=agenda.id, position=position))
        if state is JobState.QUEUED:
            continue
        begins = start if state is JobState.SUCCEEDED else max(start + HOUR / 2, now - HOUR / 2)
        end = start + HOUR / 4 if state is JobState.SUCCEEDED else None
        attempt = add_attempt(
            stage,
            session,
            job,
            node="north-02",
            start=begins,
            end=end,
            outcome=Outcome.SUCCEEDED if end else None,
            lease=lease,
        )
        tokens = int(job.plan["tokens_per_step"])
        add_metrics(session, attempt, curve(400, step_s=1.1, tokens=tokens, start=begins))
        job.last_step, job.last_loss = 2000 if end else 400, 2.5
        job.started_at, job.finished_at = begins, end
        job.used_s = int((end - begins).total_seconds()) if end else 0


def _event(
    session: Session,
    subject: str,
    at: datetime,
    kind: str,
    from_state: str | None,
    to_state: str | None,
    message: str,
    attempt: Attempt | None = None,
) -> None:
    session.add(
        Event(
            at=at,
            subject=subject,
            epoch=attempt.epoch if attempt else None,
            kind=kind,
            from_state=from_state,
            to_state=to_state,
            message=message,
        )
    )
    session.flush()


def _spec(text: str, **changes: object) -> AnyJobSpec:
    return read_job_spec({**yaml.safe_load(text), **changes})


def _planned(spec: AnyJobSpec, hardware: Hardware) -> dict[str, Any]:
    return plan_on(spec, hardware).model_dump(mode="json")


def _code(session: Session, spec: ScriptJobSpec, now: datetime) -> str:
    """The hash of a program's code, of which the stage keeps no more than that."""
    sha256 = spec.script.code
    if session.get(StoredFile, sha256) is None:
        session.add(StoredFile(sha256=sha256, size=2048, created_at=now))
        session.flush()
    return sha256


def main() -> None:
    """Serve until Ctrl-C."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as folder, raised(Path(folder), port=port) as stage:
        fill(stage)
        sys.stdout.write(f"{stage.url}\n{COOKIE}={stage.secrets['ada']}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
