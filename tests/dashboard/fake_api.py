"""A public API that answers from documents, with the real dashboard on top of it.

The documents are made by the API's schemas, so they have the shapes that the real API answers with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

import dashboard
from api.files.schemas import DatasetView
from api.jobs.schemas import (
    ArtifactView,
    AttemptView,
    CheckpointView,
    JobView,
    LayoutView,
    PreflightView,
)
from api.leases.schemas import LeaseView
from api.nodes.schemas import NodeHoldView, NodeView
from api.people.schemas import Me
from api.sign_in.schemas import SessionView, TokenView
from api.studies.schemas import StudyJobView, StudyReport
from api.web.schemas import EventView, ProblemDocument, ProblemItem
from api.workbenches.schemas import WorkbenchView
from api.workspaces.schemas import WorkspaceEntryView, WorkspaceSnapshotView, WorkspaceView
from core.spec.spec import JobSpec
from core.states import AttemptState, Desired, JobState, NodeState, Outcome
from core.tables.kinds import OccupancyKind, Role, Scope
from core.wire.messages import Inventory, Telemetry
from strategies.plan.hardware import Hardware
from strategies.plan.layout import Layout
from strategies.plan.planner import Plan, plan
from strategies.plan.run_directory import Result
from strategies.plan.seats import seats
from strategies.plan.spec import Precision, Strategy
from strategies.plan.trust.certificate import Certificate, Comparison, Difference, Verdict
from strategies.plan.trust.scaling import MeasuredJob, StudyKind
from tests.answers import answer

NOW = datetime(2026, 3, 5, 19, 12, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt-ddp.yaml"
CPU2 = Hardware(class_name="cpu2", device="cpu", slots=2, memory_gib=24)
COOKIE = "trainyard_session=secret-of-ada"
AnyView = TypeVar("AnyView", bound=BaseModel)


def spec(**changes: object) -> JobSpec:
    """The example's spec, some fields changed."""
    return JobSpec.model_validate({**yaml.safe_load(EXAMPLE.read_text()), **changes})


def planned(of: JobSpec) -> Plan:
    """Its plan on two CPU slots."""
    return plan(
        of, nodes=of.resources.nodes, ranks_per_node=of.resources.ranks_per_node, hardware=CPU2
    )


def view(
    schema: type[AnyView], fields: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> AnyView:
    """An answer with these fields, some of them changed."""
    return schema.model_validate({**answer(schema.__name__), **fields, **(changes or {})})


def job(**changes: Any) -> JobView:
    """A running job at step 100 of 400, some fields changed."""
    wanted = spec()
    fields: dict[str, Any] = {
        "id": "job_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "gpt-ddp",
        "state": JobState.RUNNING,
        "desired": Desired.RUN,
        "reason_code": "running",
        "reason": "Training.",
        "spec": wanted,
        "plan": planned(wanted),
        "epoch": 1,
        "node": "east-01",
        "steps": 400,
        "step": 100,
        "loss": 2.5,
        "tokens_per_s": 5120.0,
        "stops_at": NOW + timedelta(minutes=20),
        "wall_time_s": 1200,
        "created_at": NOW - timedelta(minutes=2),
        "started_at": NOW - timedelta(minutes=1),
    }
    return view(JobView, fields, changes)


def attempt(**changes: Any) -> AttemptView:
    """A failed first attempt, some fields changed."""
    fields: dict[str, Any] = {
        "id": "att_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "epoch": 1,
        "node": "east-01",
        "lease": "lease_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "state": AttemptState.EXITED,
        "outcome": Outcome.KILLED,
        "reason": "Rank 1 on east-01 was killed by signal 9 (SIGKILL) at step 120.",
        "launcher": "warm",
        "culprit_rank": 1,
        "signal": 9,
        "last_lines": ["step 119", "step 120"],
        "assigned_at": NOW,
        "started_at": NOW + timedelta(seconds=1),
        "first_step_at": NOW + timedelta(seconds=1.2),
        "ended_at": NOW + timedelta(seconds=30),
    }
    return view(AttemptView, fields, changes)


def event(**changes: Any) -> EventView:
    """A job that began to run."""
    fields: dict[str, Any] = {
        "id": 1,
        "at": NOW,
        "epoch": 1,
        "kind": "running",
        "from_state": "starting",
        "to_state": "running",
        "reason_code": "running",
        "message": "Training.",
        "actor": "node_01aaaaaaaaaaaaaaaaaaaaaaaa",
    }
    return view(EventView, fields, changes)


def node(**changes: Any) -> NodeView:
    """A ready node with two CPU slots."""
    fields: dict[str, Any] = {
        "id": "node_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "east-01",
        "state": NodeState.READY,
        "reason": "Ready.",
        "hardware": CPU2,
        "inventory": Inventory(
            hostname="east", cores=2, memory_gib=24, gpus=[], slots=2, python="3.11", torch="2.13"
        ),
        "telemetry": Telemetry(cpu_pct=42.4, memory_used_gib=3.5, disk_free_gib=70),
        "reachable": True,
        "last_seen_at": NOW,
    }
    return view(NodeView, fields, changes)


HOLD = NodeHoldView(
    kind=OccupancyKind.LEASE,
    walk_in=False,
    hold_start=NOW,
    hold_end=NOW + timedelta(hours=3),
    gpus=1,
    slots=[1],
    user="ann",
    lease=None,
)


def lease(**changes: Any) -> LeaseView:
    """A booked block of two hours."""
    fields: dict[str, Any] = {
        "id": "lease_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "node": "east-01",
        "reason": "Booked.",
        "hold_start": NOW + timedelta(hours=1),
        "hold_end": NOW + timedelta(hours=3),
        "usable_end": NOW + timedelta(hours=3, minutes=-5),
        "counts": True,
        "charged_hours": 3,
        "policy": "default",
        "policy_version": 0,
        "created_at": NOW,
    }
    return view(LeaseView, fields, changes)


def result() -> Result:
    """How a whole training ended."""
    return Result(
        finished=True,
        step=400,
        loss_first=4.6,
        loss_last=1.8,
        eval_loss=1.7,
        tokens_per_s=12000,
        wall_s=33,
        checkpoint="step-000400",
        sample="class A:\n    pass",
        reason="finished",
    )


def certificate(verdict: Verdict, *, loss: float | None = 1.7e-7) -> Certificate:
    """Of the example's first 20 steps."""
    exempt = verdict == "exempt"
    return Certificate(
        verdict=verdict,
        result_class="exempt" if exempt else "exact",
        steps=20,
        loss=Difference(
            largest=loss,
            step=12,
            found=3.1000005,
            expected=3.1,
            tolerance=None if exempt else 1e-6,
        ),
        grad_norm=Difference(
            largest=2.3e-6,
            step=3,
            found=0.9000021,
            expected=0.9,
            tolerance=None if exempt else 1e-5,
        ),
        precision=Precision.FLOAT32,
        strategy=Strategy.DDP,
        layout=Layout(replicate=2),
        device="cpu",
        torch="2.13.0",
    )


def study_report(**changes: Any) -> StudyReport:
    """A strong study of one rank, which is done, and two, which train."""
    jobs = [
        StudyJobView(
            job=f"job_0{ranks}aaaaaaaaaaaaaaaaaaaaaaaa",
            label=label,
            ranks=ranks,
            state=state,
            reason="Training.",
            step=step,
            steps=400,
        )
        for ranks, label, state, step in (
            (1, "1 rank", JobState.SUCCEEDED, 400),
            (2, "2 ranks", JobState.RUNNING, 60),
        )
    ]
    fields: dict[str, Any] = {
        "id": "study_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "gpt-ddp",
        "kind": StudyKind.STRONG,
        "jobs": jobs,
        "created_at": NOW,
        "summary": "2 ranks are 1.60 times as fast as 1 rank, an efficiency of 80 %.",
        "points": [
            measured(),
            measured(
                label="2 ranks",
                ranks=2,
                step_time_s=0.08,
                speed_up=1.6,
                expected_speed_up=2.0,
                efficiency=0.8,
                serial_fraction=0.25,
                communication=0.21,
                judgement="Communication costs some time, but computing is the bottleneck.",
                curve=Comparison(
                    **certificate("pass").model_dump(include=set(Comparison.model_fields))
                ),
            ),
        ],
    }
    return view(StudyReport, fields, changes)


def measured(**changes: Any) -> MeasuredJob:
    """What the first job of a study measured, some fields changed."""
    fields: dict[str, Any] = {
        "label": "1 rank",
        "ranks": 1,
        "global_batch_size": 8,
        "learning_rate": 0.002,
        "timed_steps": 389,
        "step_time_s": 0.128,
        "tokens_per_s": 8000.0,
        "speed_up": 1.0,
        "expected_speed_up": 1.0,
        "efficiency": 1.0,
        "communication": 0.0,
        "judgement": "Computing is the bottleneck: communication costs hardly anything.",
    }
    return view(MeasuredJob, fields, changes)


PREFLIGHT = view(
    PreflightView,
    {
        "seconds": 0.041,
        "backend": "gloo",
        "ranks": 2,
        "checks": [
            {
                "check": "all_reduce (sum, float32, 16 KiB)",
                "right": True,
                "ms": 0.9,
                "bus_gb_per_s": 0.018,
                "slowest_rank": 1,
            }
        ],
    },
)
CHECKPOINT = view(
    CheckpointView,
    {
        "id": "ckpt_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "epoch": 1,
        "step": 200,
        "size": 16_000_000,
        "files": 5,
        "created_at": NOW,
    },
)
ARTIFACT = view(
    ArtifactView,
    {
        "id": "file_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "epoch": 1,
        "path": "sample.txt",
        "size": 226,
        "created_at": NOW,
    },
)
SNAPSHOT = view(
    WorkspaceSnapshotView,
    {
        "id": "snap_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "origin": "program",
        "job": "job_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "epoch": 1,
        "used": 2048,
        "files": 3,
        "left_out": 1,
        "taken_at": NOW,
        "is_current": False,
    },
)
ENTRY = view(
    WorkspaceEntryView,
    {
        "path": "my notes/été.txt",
        "kind": "file",
        "size": 2048,
        "modified_at": NOW,
        "executable": False,
        "sha256": "a" * 64,
        "target": None,
    },
)
WORKBENCH = view(
    WorkbenchView,
    {
        "id": "job_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "terminal",
        "kind": "terminal",
        "state": JobState.RUNNING,
        "reason": "The workbench is open.",
        "node": "east",
        "lease": "lease_01",
        "slots": 1,
        "ends_at": NOW,
        "can_be_entered": True,
        "is_held": False,
    },
)
WORKSPACE = view(
    WorkspaceView,
    {
        "used": 2048,
        "max_bytes": 10_737_418_240,
        "files": 3,
        "max_files": 100_000,
        "snapshot": "snap_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "taken_at": NOW,
        "writer": None,
        "trouble": "",
        "shared_classes": [],
        "shared": None,
    },
)
DATASET = view(
    DatasetView,
    {
        "id": "data_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "my-text",
        "format": "text",
        "size": 2048,
        "lines": 12,
        "characters": 2000,
        "warnings": ["Line 7 is longer than 1,000 characters."],
        "created_at": NOW,
    },
)
TOKEN = view(
    TokenView,
    {
        "id": "token_01aaaaaaaaaaaaaaaaaaaaaaaa",
        "name": "laptop",
        "scopes": [Scope.JOBS],
        "created_at": NOW,
        "expires_at": NOW + timedelta(days=90),
    },
)
SESSION = view(
    SessionView,
    {
        "id": "token_01bbbbbbbbbbbbbbbbbbbbbbbb",
        "name": "Firefox on Linux, 192.0.2.7",
        "created_at": NOW,
        "expires_at": NOW + timedelta(hours=12),
        "last_used_at": NOW,
    },
)


def me(**changes: Any) -> Me:
    """Ada, an ordinary user with one running job."""
    ada = {"id": "user_01aaaaaaaaaaaaaaaaaaaaaaaa", "name": "ada", "created_at": NOW}
    return view(Me, {"user": answer("UserView", role=Role.USER, **ada), "running": 1}, changes)


def refusal(
    status: int, detail: str, *, param: str | None = None, errors: Sequence[tuple[str, str]] = ()
) -> ProblemDocument:
    """A problem document."""
    items = [ProblemItem(param=field_, code="invalid", message=text) for field_, text in errors]
    return ProblemDocument(
        title="Refused", status=status, code="refused", detail=detail, param=param, errors=items
    )


@dataclass
class Call:
    """A request that the API got."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    client: str


@dataclass
class FakeApi:
    """What each address answers, and every request that came."""

    answers: dict[tuple[str, str], object] = field(default_factory=dict)
    cookies: dict[tuple[str, str], str] = field(default_factory=dict)
    headers: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def put(self, path: str, answer: object, *, method: str = "GET") -> None:
        """From now on `path` answers with a view, several, a problem or None (204)."""
        self.answers[(method, path)] = answer

    def show(self, shown: JobView, **past: Sequence[BaseModel]) -> None:
        """`/v1/jobs/{id}` and everything below it."""
        path = f"/v1/jobs/{shown.id}"
        self.put(path, shown)
        sitting = seats(shown.plan) if isinstance(shown.plan, Plan) else []
        self.put(f"{path}/layout", LayoutView(seats=sitting, timeline=[], nodes=["east-01"]))
        for name in ("events", "attempts", "checkpoints", "artifacts"):
            self.put(f"{path}/{name}", list(past.get(name, ())))

    def sent(self, method: str, path: str) -> Call:
        """The last request of that kind."""
        found = [call for call in self.calls if (call.method, call.path) == (method, path)]
        assert found, [(call.method, call.path) for call in self.calls]
        return found[-1]

    def app(self) -> FastAPI:
        """The application: these answers, and the dashboard."""
        app = FastAPI()

        async def answer(request: Request) -> Response:
            key = (request.method, request.url.path)
            self.calls.append(
                Call(
                    *key,
                    query={
                        name: request.query_params.getlist(name) for name in request.query_params
                    },
                    headers=dict(request.headers),
                    body=await request.body(),
                    client=request.client.host if request.client else "",
                )
            )
            if key not in self.answers:
                return _as_json(refusal(404, f"{request.url.path} does not exist."))
            response = _as_json(self.answers[key])
            response.headers.update(self.headers.get(key, {}))
            if key in self.cookies:
                response.headers["set-cookie"] = self.cookies[key]
            return response

        app.add_api_route(
            "/v1/{rest:path}", answer, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
        )
        app.include_router(dashboard.create(app))
        return app


def _as_json(answer: object) -> Response:
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, ProblemDocument):
        body = answer.model_dump(mode="json", exclude_none=True)
        return JSONResponse(body, answer.status, media_type="application/problem+json")
    if isinstance(answer, list):
        data = [item.model_dump(mode="json") for item in answer]
        return JSONResponse({"object": "list", "data": data, "has_more": False})
    if isinstance(answer, dict):
        return JSONResponse(answer)
    assert isinstance(answer, BaseModel)
    return JSONResponse(answer.model_dump(mode="json"))
