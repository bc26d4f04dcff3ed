"""Answers of the API as JSON, with the fields that the client's tests are about.

`test_contract.py` holds them against the API's schemas.
"""

from typing import Any

from core.states import TERMINAL_JOB
from tests.answers import NOW, USUAL, Json, answer

JOB_ID = USUAL["job"]

PLAN = answer(
    "Plan",
    strategy="ddp",
    layout={"pipeline": 1, "replicate": 2, "shard": 1, "context": 1, "tensor": 1},
    world_size=2,
    global_batch_size=8,
    tokens_per_step=1024,
    parameters=1_300_000,
    memory=[
        {"name": "weights", "gib": 0.0048, "exact": True, "source": "parameters x 4 bytes"},
        {"name": "activations", "gib": 0.02, "exact": False, "source": "formula"},
    ],
    needed_gib=0.03,
    capacity_gib=7.2,
    fits=True,
)
SPEC: Json = {
    "name": "gpt-ddp",
    "model": {"name": "gpt", "layers": 4, "width": 160, "heads": 4},
    "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 128},
    "training": {"steps": 400, "global_batch_size": 8, "learning_rate": 0.002},
    "parallelism": {"strategy": "ddp", "data_parallel_replicate_degree": 2},
    "checkpoint": {"every_steps": 200, "keep_last": 2},
    "resources": {"nodes": 1, "ranks_per_node": 2, "wall_time": "20min"},
}
RESULT = answer(
    "Result",
    step=400,
    loss_first=5.56,
    loss_last=1.83,
    eval_loss=1.9,
    tokens_per_s=12345.6,
    wall_s=33.2,
    checkpoint="step-000400",
    sample="class Foo:\n    def bar(self):\n        return 1\n",
    peak_gib=[0.21, 0.2],
)
LOSS_DIFFERENCE = answer(
    "Difference", largest=1.7e-07, step=12, found=3.1000005, expected=3.1, tolerance=1e-06
)
NORM_DIFFERENCE: Json = {**LOSS_DIFFERENCE, "largest": 2.3e-06, "step": 3, "tolerance": 1e-05}
COMPARED: Json = {"steps": 400, "loss": LOSS_DIFFERENCE, "grad_norm": NORM_DIFFERENCE}
CERTIFICATE = answer(
    "Certificate", **{**COMPARED, "steps": 20}, strategy="ddp", layout=PLAN["layout"]
)
COMPARISON = answer("ComparisonView", **COMPARED, other="job_01k9othersghjkmnpqrstvwxyz")
STUDY = answer(
    "StudyView",
    id="study_01k9abcdefghjkmnpqrstvwxyz",
    name="gpt-ddp",
    jobs=[
        {
            "job": f"job_01k9size{ranks}",
            "label": f"{ranks} rank{'s' if ranks > 1 else ''}",
            "ranks": ranks,
            "state": "succeeded",
            "reason": "Trained to the end.",
            "step": 400,
            "steps": 400,
        }
        for ranks in (1, 2)
    ],
    is_final=True,
)
STUDY_REPORT = answer(
    "StudyReport",
    **STUDY,
    summary="2 ranks are 1.60 times as fast as 1 rank, an efficiency of 80 %.",
    points=[
        {
            "label": "1 rank",
            "ranks": 1,
            "step_time_s": 0.128,
            "tokens_per_s": 8000.0,
            "speed_up": 1.0,
            "expected_speed_up": 1.0,
            "efficiency": 1.0,
            "communication": 0.0,
            "judgement": "Computing is the bottleneck: communication costs hardly anything.",
        },
        {
            "label": "2 ranks",
            "ranks": 2,
            "step_time_s": 0.08,
            "tokens_per_s": 12800.0,
            "speed_up": 1.6,
            "expected_speed_up": 2.0,
            "efficiency": 0.8,
            "serial_fraction": 0.25,
            "communication": 0.21,
            "judgement": "Communication costs some time, but computing is the bottleneck.",
            "curve": COMPARED,
        },
    ],
)
AGENDA_JOB = answer(
    "AgendaJobView",
    position=1,
    job="job_01k9lab1",
    name="one",
    wall_time_s=1200,
    standing="running",
    reason="Training.",
    step=100,
    steps=400,
    start=NOW,
    end="2026-11-21T11:17:00+00:00",
    likely_end="2026-11-21T11:05:00+00:00",
    fits=True,
)
AGENDA_PLAN = answer(
    "AgendaPlanView",
    name="lab-1",
    rules="One after the other; if one fails, the others continue.",
    fits=True,
    usable_end="2026-11-21T11:55:00+00:00",
    spare_s=1020,
    summary="It fits with 17min to spare, even if every job uses up its wall time.",
    jobs=[
        AGENDA_JOB,
        {
            **AGENDA_JOB,
            "position": 2,
            "job": "job_01k9lab2",
            "name": "two",
            "standing": "waiting",
            "step": 0,
            "start": "2026-11-21T11:18:00+00:00",
            "end": "2026-11-21T11:38:00+00:00",
            "likely_end": None,
        },
    ],
)
AGENDA = answer("AgendaView", **AGENDA_PLAN)
ENDED_AGENDA: Json = {
    **AGENDA,
    "summary": "Over: 2 done.",
    "is_final": True,
    "jobs": [{**job, "standing": "done", "step": 400} for job in AGENDA["jobs"]],
}
USER = answer("UserView", name="ada", role="admin", attributes={"cohort": "even"})
LAB = answer("LabView", name="vision", groups=["course-s25"], members=["ada", "bob"], leads=["ada"])
INVITE = answer("InviteView", lab="vision", email="cy@example.org", state="open")
INVITE_MADE = answer(
    "InviteMade",
    **INVITE,
    url="http://127.0.0.1:8471/invite?secret=ty_abcdefghijklmnopqrstuvwxyz",
)
GRANT = answer("GrantView", user="bob", rule="quota_main", extra=1, why="Was ill last week.")
WINDOW = answer("WindowView", policy="course-unit-4", pools=["long"])
BANDS = answer("BandsView", policy="course-unit-4", bands=[{"name": "night"}])
POLICY = answer(
    "PolicyView",
    id="course-unit-4",
    version=2,
    active=True,
    zone="America/New_York",
    applied_by="ada",
)
POLICY_TEXT = answer(
    "PolicyText", **POLICY, document="policy: {id: course-unit-4}\n", windows=[WINDOW]
)
AFFECTED_LEASE = answer("AffectedLease", user="bob", codes=["outside_window"])
POLICY_PLAN = answer(
    "PolicyPlan",
    id="course-unit-4",
    version=2,
    replaces=1,
    changes=["grid.horizon_days: changed from 21 to 14."],
    advice=["pools.long: there is no node 307G3Q3 here."],
    refused=[AFFECTED_LEASE],
    num_refused=1,
)
WINDOW_PLAN = answer("WindowPlan", window=WINDOW, orphans=[AFFECTED_LEASE])
IMPORT = answer(
    "ImportView",
    added=1,
    labs=["vision"],
    rows=[
        {
            "line": 2,
            "name": "cy",
            "password_link": "http://127.0.0.1:8471/new-password?secret=ty_abc",
        }
    ],
)
MOVE = answer("MoveView", user=USER, from_lab="vision", to_lab="speech")
CLEANUP = answer(
    "CleanupView",
    id="clean_01k9abcdefghjkmnpqrstvwxyz",
    selector={"wrong": ["over_quota"]},
    reason="Unit 4 is over.",
    hash="41c8" * 16,
    removed=1,
    rows=[
        {
            "user": "bob",
            "code": "over_quota",
            "rule": "quota_main",
            "message": "Two blocks are booked already.",
            "result": "planned",
        }
    ],
)
NOTICE = answer("NoticeView", id=7, channel="mail", error="The mail server said: 450 busy")
CHOICES = answer("ChoicesView", every="digest", kinds={"block_offered": "mail"}, digest_at="08:00")
WEBHOOK = answer("WebhookMade", url="https://example.org/hook")
HOURS = {
    "period": "2026-11-16",
    "name": "ada",
    "booked_hours": 8.0,
    "used_hours": 6.0,
    "useful_hours": 4.0,
}
USAGE = answer("UsageView", rows=[HOURS], total=[HOURS])
LEFT = answer("QuotaRemainderView", quota="main", alternative="two-short", text="one 3-hour block")
QUOTAS = answer("QuotasView", quotas=[{"policy": "course", "version": 3, "left": [LEFT]}])
TOKEN = answer("TokenView", name="laptop", scopes=["jobs"])
SESSION = answer("SessionView", id="token_01k9sessionghjkmnpqrstvwxy", is_this_one=True)
NEW_TOKEN = answer("TokenMade", **TOKEN, secret="ty_secret", user=USER)
LEASE = answer("LeaseView", reason="Booked.", charge={"quota": "main", "hours": 2})
OFFER = answer("OfferView", state="open", expires_at="2026-11-21T12:10:00+00:00")
WAIT = answer(
    "WaitView", hours=2, state="offered", reason="Waiting for the answer to an offer.", offer=OFFER
)
DISPLACED = answer("DisplacedLeaseView", act="move", to_node="other")
OCCURRENCE = answer("OccurrenceView", held=True)
MAINTENANCE = answer(
    "MaintenanceView",
    id="maint_01k9abcdefghjkmnpqrstvwxyz",
    why="New disks.",
    rule="FREQ=WEEKLY;COUNT=2",
    occurrences=[OCCURRENCE],
    displaced=[DISPLACED],
)
FEED = answer("FeedView", url="http://x/v1/leases/calendar.ics?token=s")
REASON = answer(
    "ReasonView",
    code="quota_main",
    param="hours",
    message="You have used 3 of 3 hours.",
    numbers={"used": 3, "limit": 3},
)
NODE_VERDICT = answer(
    "NodeVerdict",
    reasons=[REASON],
    charge={"hours": 2},
    left=[LEFT],
    next_starts=["2026-11-21T17:00:00+00:00"],
    policy="default",
)
BLOCK_VERDICT = answer("VerdictView", can_wait=True, nodes=[NODE_VERDICT])
ME = answer("Me", user=USER, labs=["nlp"], queued=1, running=2, lease=LEASE)
UNSAFE_SETTING = answer("UnsafeSettingView", setting="TRAINYARD_REDIS_URL")
READ_ONLY = answer("ReadOnlyView", read_only=True, reason="Backup.", until="2026-11-21T12:30:00Z")
STORAGE = answer(
    "StorageView",
    used=2_147_483_648,
    by_kind={"checkpoints": 2_000_000_000, "artifacts": 147_483_648},
    limits=[{"name": "ada", "used": 2_147_483_648, "limit": 2_500_000_000}],
    warnings=["ada holds 2.0 GiB of 2.3 GiB."],
    keep_days={"logs": 180, "metrics": 730, "checkpoints": 180, "artifacts": 0},
)
NETWORK = answer(
    "NetworkView",
    lists=[{"node_class": "a100x4", "lab": None, "hosts": ["pypi", "*.hf.co"]}],
    groups={"pypi": ["pypi.org", "files.pythonhosted.org"]},
)
NO_HOSTS = answer("NetworkListView", node_class=None, lab="vision", hosts=[])
NODE = answer(
    "NodeView",
    name="this-machine",
    state="ready",
    hardware={"class_name": "cpu2", "slots": 2, "memory_gib": 16.0},
    inventory={"hostname": "box", "cores": 2, "memory_gib": 16.0, "gpus": [], "slots": 2,
               "python": "3.11.9", "torch": "2.13.0"},
    telemetry={"cpu_pct": 42.0, "memory_used_gib": 3.5},
    reachable=True,
    last_seen_at=NOW,
)  # fmt: skip
SNAPSHOT = answer("WorkspaceSnapshotView", id="snap_01k9", origin="program", files=2, used=2048)
ENTRY = answer("WorkspaceEntryView", path="notes.txt", kind="file", size=5)
WORKSPACE = answer(
    "WorkspaceView",
    used=2048,
    max_bytes=10_737_418_240,
    files=2,
    max_files=100_000,
    snapshot="snap_01k9",
    writer={"name": "gpt-ddp", "job": JOB_ID, "since": NOW},
    trouble="",
)
DATASET = answer("DatasetView", name="my-text", format="text", size=2048, lines=10)
MODEL = answer(
    "ModelView",
    name="tiny",
    owner="ada",
    files=[{"path": "config.json", "size": 10}],
    has_tokenizer=True,
    vocabulary_size=151_936,
    model={"name": "llama", "attention_bias": True, "norm_epsilon": 1e-6, "checkpoint": "tiny"},
)
TEMPLATE = answer(
    "TemplateView",
    id="tmpl_01k9",
    name="lab-1",
    owner="ada",
    kind="job",
    version=2,
    description="The first lab.",
    spec={"name": "lab-1", "training": {"steps": 10}},
    open=[
        {"field": "training.steps", "minimum": 1, "maximum": 100},
        {"field": "parallelism.strategy", "choices": ["ddp", "fsdp"]},
    ],
)
COURSE = answer(
    "CourseView",
    id="course_01k9",
    name="ml-lab",
    title="Training",
    group="ml-students",
    first_day="2027-01-25",
    exercises=[{"name": "two", "title": "Two runs", "hours": 2}],
)
COURSE_PLAN = answer(
    "CoursePlan",
    course="ml-lab",
    first_day="2027-01-25",
    applied=True,
    steps=[{"kind": "policy", "name": "ml-lab", "action": "add", "what": "Version 1."}],
)
STANDING = answer("StandingView", user="sam", next="start", expected=2, left=["One 2 h"])
EXERCISE = answer(
    "MyExercise",
    course="ml-lab",
    exercise={"name": "two", "title": "Two runs", "hours": 2},
    notes="# Two",
    standing=STANDING,
)
STUDENT_RESULT = answer("StudentResult", user="sam", results={"score": 1, "tests": []})
COURSE_TEXTS = answer("CourseTexts", name="ml-lab", texts={"notes/two.md": "# Two"})
START = answer("StartView", job=JOB_ID, agenda=None)
SHARE = answer(
    "ShareView", id="share_01k9", kind="model", name="tiny", audience="group", who="course"
)
HUB = {"job": JOB_ID, "step": None, "epoch": 1, "hub": f"lab/tiny@{'c' * 40}"}
FETCHED = {**MODEL, "origin": HUB}
FETCHED_DATASET = {**DATASET, "origin": {name: HUB[name] for name in ("job", "epoch", "hub")}}
PREFLIGHT = answer("PreflightView", ranks=2, checks=[{"check": "all_reduce", "right": True}])
ATTEMPT = answer(
    "AttemptView",
    epoch=1,
    nodes=[{"slots": [0, 1], "ranks": [0, 1]}],
    state="exited",
    outcome="killed",
    reason="Rank 1 on this-machine was killed by signal 9 (SIGKILL) at step 120.",
    launcher="warm",
    culprit_rank=1,
    last_lines=["step 119", "step 120"],
    preflight=PREFLIGHT,
)
SERIES = answer(
    "Series", key="loss", rank=0, steps=[1, 200, 400], values=[5.5, None, 1.8], points=400
)
METRICS = answer("MetricsView", keys=["loss", "lr"], series=[SERIES])
LOG_LINE = answer("LogLine", epoch=1, stream="stdout", text="step 1")
LOGS = answer("LogsView", lines=[LOG_LINE], cursor="c1", ranks=[0, 1])
CHECKPOINT = answer("CheckpointView", epoch=1, step=400, size=15_000_000, files=3)
ARTIFACT = answer(
    "ArtifactView",
    path="sample.txt",
    size=5,
    sha256="2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",  # of "hello"
)
ENROLMENT = answer(
    "EnrolmentView",
    token="once-only-token-abcdef",
    command="trainyard worker --enrol once-only-token-abcdef",
)
AUDIT = answer(
    "AuditView",
    kind="node.drain",
    message="Drained.",
    subject=NODE["id"],
    details={"name": "this-machine"},
    actor_name="ada",
    subject_name="this-machine",
)
RUNNING_JOB = answer("RunningJobView", id=JOB_ID, name="gpt-ddp")
IN_THE_WAY = answer("InTheWayView", jobs=[RUNNING_JOB], leases=[LEASE])
AVAILABILITY = answer(
    "AvailabilityView",
    hours=[{"free": 1, "nodes": ["this-machine"], "taken": [{"node": "other", "why": "leased"}]}],
)
FORECAST = answer(
    "ForecastView",
    policy="course-unit-4",
    zone="America/New_York",
    days=[{"free_hours": 23.5, "wanted_hours": 2.5}],
    message="Everybody's quotas together have 20 node-hours left.",
)
LINK = answer("LinkView", url="http://x/login?secret=s")
TRAFFIC = answer(
    "Traffic",
    axis="replicate",
    ranks=2,
    num_bytes=5_200_000,
    overlaps=True,
    what="gradients summed, once",
)
STEP_TIME = answer("StepTime", expected_s=0.5, low_s=0.4, high_s=0.9, basis="a data sheet")
COST = answer(
    "Cost",
    traffic=[TRAFFIC],
    bubble=0.2,
    step_time=STEP_TIME,
    tokens_per_s=2048.0,
    total_s=200.0,
    gpu_hours=0.11,
)
ADVICE = answer(
    "Advice",
    title="weights sharded (FSDP)",
    change={"parallelism": {"strategy": "fsdp"}},
    fits=True,
    slow_down=1.1,
)
SEAT = answer("Seat", rank=1, pipeline=1, slot=1)
TIME_SLOT = answer("TimeSlot", rank=1, kind="forward", stage=1, start=1, end=2)
CLASS_PLAN = answer(
    "ClassPlan",
    plan={**PLAN, "cost": COST, "advice": [ADVICE]},
    ready_nodes=1,
    seats=[answer("Seat"), SEAT],
    timeline=[TIME_SLOT],
)
PLAN_ANSWER = answer(
    "PlanView",
    plans=[CLASS_PLAN],
    chosen="cpu2",
    predicted_start=NOW,
    predicted_finish=NOW,
    lease_end=NOW,
    reason="Fits on cpu2 and starts at once.",
)
ACCURACY = answer(
    "AccuracyView",
    rows=[
        {
            "model": "llama",
            "strategy": "fsdp",
            "runs": 12,
            "error_median": -0.074,
            "error_least": -0.1,
            "error_most": 0.031,
            "factor": 1.09,
        }
    ],
)


def job(state: str = "queued", **changes: Any) -> Json:
    """A job that waits, or as changed."""
    fields: Json = {
        "name": "gpt-ddp",
        "state": state,
        "reason_code": "waits",
        "reason": "Waits for the scheduler.",
        "predicted_start": NOW,
        "spec": SPEC,
        "plan": PLAN,
        "steps": 400,
        "wall_time_s": 1200,
        "is_final": state in TERMINAL_JOB,
    }
    return answer("JobView", **{**fields, **changes})


def running(step: int, loss: float) -> Json:
    """A running job."""
    return job(
        state="running",
        reason_code="running",
        reason="Running on this-machine.",
        node="this-machine",
        epoch=1,
        step=step,
        loss=loss,
        tokens_per_s=10240.0,
        started_at=NOW,
    )


def ended(state: str = "succeeded", **changes: Any) -> Json:
    """A job that has ended."""
    return job(
        state=state,
        reason_code=state,
        reason="Trained all 400 steps." if state == "succeeded" else "Rank 1 was killed.",
        epoch=1,
        step=400,
        loss=1.83,
        certificate=CERTIFICATE,
        result=RESULT,
        started_at=NOW,
        finished_at="2026-11-21T10:57:41+00:00",
        **changes,
    )


def event(number: int, message: str, kind: str = "state") -> Json:
    """A job that was started."""
    return answer(
        "EventView", id=number, kind=kind, to_state="running", message=message, actor="scheduler"
    )


JOB_LAYOUT = answer("LayoutView", seats=[SEAT], timeline=[TIME_SLOT], nodes=["box"])
REPORT = answer(
    "ReportView",
    content={
        "format": "trainyard-report/1",
        "title": "gpt-ddp",
        "made_by": "ada",
        "lease": LEASE,
        "jobs": [
            {
                "job": ended(),
                "attempts": [ATTEMPT],
                "events": [event(1, "Started.")],
                "checkpoints": [CHECKPOINT],
                "artifacts": [ARTIFACT],
                "curves": [SERIES],
                "gpu_hours": 0.25,
            }
        ],
    },
)
REPORT_LINE = answer("ReportLine", title="gpt-ddp")
REPORT_VERDICT = answer(
    "ReportVerdict",
    intact=True,
    known=True,
    made_by="ada",
    message="This report is exactly as this platform wrote it for ada.",
)
CODE = answer("CodeView", size=1234, unpacked_size=1100, paths=["lib/net.py", "train.py"])
CODE_LINE = answer("CodeLine", sha256="0" * 64, size=1234, files=2, jobs=["job_1"])
SECRET = answer("SecretView", name="HF_TOKEN")
COURSE_FORECAST = answer(
    "CourseForecast",
    needs=["2 h on a box"],
    students=10,
    have_all=1,
    whole=0.8,
    part=0.0,
    nothing=0.2,
    nodes=[answer("NodeLoadView", node="box", hours=48.0, booked_hours=24.0)],
    pools=[answer("ForecastPoolView", pool="boxes", title="a box", nodes=1)],
    arrivals=[answer("ArrivalView", days_left=1, students=9.0, served=0.7)],
    prospects=[answer("ProspectView", user="sam", has_all=False, whole=0.6, part=0.0)],
    message="Of 10 students 8 will have all that they need, 2 nothing.",
)
