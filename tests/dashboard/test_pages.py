"""What every page shows and holds, over documents of every state."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from markupsafe import escape
from starlette.testclient import TestClient

from api.jobs.plan_views import class_plan
from api.jobs.schemas import JobInputView, JobView, PlaceView, PlanView
from api.nodes.schemas import SlotView
from api.people.schemas import LinkView
from api.sign_in.schemas import TokenMade
from core.spec.inputs import InputKind
from core.spec.script import plan_script
from core.spec.spec import JobSpec, ScriptJobSpec
from core.states import TERMINAL_JOB, Desired, JobState, LeaseState, NodeState, Outcome, Sharing
from core.tables.kinds import LeaseKind, Role, SlotState
from core.wire.messages import HostUse, Telemetry
from core.wire.workspace_tree import EntryKind
from strategies.plan.attention_kernels import AttentionKernel
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan
from strategies.plan.spec import Float32Matmul
from tests.dashboard.fake_api import (
    ARTIFACT,
    CHECKPOINT,
    CPU2,
    DATASET,
    ENTRY,
    EXAMPLE,
    HOLD,
    NOW,
    PREFLIGHT,
    SESSION,
    SNAPSHOT,
    TOKEN,
    WORKBENCH,
    WORKSPACE,
    FakeApi,
    attempt,
    certificate,
    event,
    job,
    lease,
    me,
    measured,
    node,
    planned,
    refusal,
    result,
    spec,
    study_report,
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202edesrever\x1b[31m"
MARKUP = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
JOB = "/jobs/job_01aaaaaaaaaaaaaaaaaaaaaaaa"
STUDY = "/studies/study_01aaaaaaaaaaaaaaaaaaaaaaaa"
BENCH = "/workbenches/job_01aaaaaaaaaaaaaaaaaaaaaaaa"
PAGES = ["/jobs", JOB, "/jobs/new", "/nodes", "/leases", "/datasets", "/account"]
LEASE, NODE = f"/leases/{lease().id}", "/nodes/east-01"
PAGES += [LEASE, NODE, "/studies", STUDY, "/agendas", "/workspace", "/workbenches", BENCH]
STAFF = me(user=me().user.model_copy(update={"role": Role.STAFF}))


@pytest.fixture
def full(api: FakeApi) -> FakeApi:
    """An API that has one of everything."""
    shown = job()
    api.put("/v1/jobs", [shown])
    api.show(
        shown,
        events=[event()],
        attempts=[attempt()],
        checkpoints=[CHECKPOINT],
        artifacts=[ARTIFACT],
    )
    api.put("/v1/nodes", [node()])
    api.put(f"/v1{NODE}", node())
    api.put(f"/v1{NODE}/holds", [HOLD])
    api.put(f"/v1{NODE}/events", [event()])
    api.put("/v1/leases", [lease(), lease(id="lease_02", state=LeaseState.ENDED)])
    api.put(f"/v1{LEASE}", lease())
    api.put("/v1/templates", [])
    api.put("/v1/workspace/files", [ENTRY])
    api.put("/v1/workbenches", [WORKBENCH])
    api.put("/v1/workspace/snapshots", [SNAPSHOT])
    api.put("/v1/tokens", [TOKEN])
    api.put("/v1/sessions", [SESSION])
    api.put("/v1/studies", [study_report()])
    api.put(f"/v1{STUDY}", study_report())
    return api


@pytest.mark.parametrize(
    "path", [*PAGES, "/login", "/login?link=x", "/first-start", "/invite", "/new-password"]
)
def test_every_page_is_safe_and_can_be_walked_through(
    full: FakeApi, page: TestClient, path: str
) -> None:
    answer = page.get(path)
    text = answer.text
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    allowed = ["style-src-attr 'unsafe-inline'"]
    if path == BENCH:  # xterm.js makes style elements
        allowed.append("style-src 'self' 'unsafe-inline'")
    for one in allowed:
        policy = policy.replace(one, "")
    assert "'unsafe-inline'" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]*(src=|application/json))", text), "a script inside"
    assert not re.search(r"\son[a-z]+=", text), "a handler inside"
    assert "<style" not in text
    assert text.count("<h1") == 1
    assert '<a class="skip" href="#main">' in text
    assert "<main id=" in text
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "an id stands twice"
    labelled = set(re.findall(r'<label[^>]* for="([^"]+)"', text))
    for name in re.findall(r'<(?:input|select|textarea) class="input" id="([^"]+)"', text):
        assert name in labelled


@pytest.mark.parametrize("state", list(JobState))
def test_a_state_is_a_word_with_its_shape(api: FakeApi, page: TestClient, state: JobState) -> None:
    shown = job(state=state, finished_at=NOW if state in ("succeeded", "failed") else None)
    api.put("/v1/jobs", [shown])
    api.show(shown)
    badge = f'<span class="badge" data-state="{state}">{state}</span>'
    assert badge in page.get("/jobs").text
    assert badge in page.get(JOB).text


@pytest.mark.parametrize(
    ("state", "desired", "buttons"),
    [
        (JobState.QUEUED, Desired.RUN, {"pause", "cancel"}),
        (JobState.STARTING, Desired.RUN, {"pause", "cancel", "requeue"}),
        (JobState.RUNNING, Desired.RUN, {"pause", "cancel", "requeue", "profile", "snapshot"}),
        (JobState.RUNNING, Desired.PAUSE, {"resume", "cancel", "profile", "snapshot"}),
        (JobState.STOPPING, Desired.PAUSE, {"resume", "cancel"}),
        (JobState.STOPPING, Desired.CANCEL, set()),
        (JobState.PAUSED, Desired.PAUSE, {"resume", "cancel"}),
        (JobState.SUCCEEDED, Desired.RUN, set()),
        (JobState.CANCELLED, Desired.CANCEL, set()),
    ],
)
def test_only_the_buttons_that_do_something_are_there(
    api: FakeApi, page: TestClient, state: JobState, desired: Desired, buttons: set[str]
) -> None:
    api.show(job(state=state, desired=desired))
    found = re.findall(rf'action="{JOB}/(\w+)"', page.get(JOB).text)
    waits = set() if state in TERMINAL_JOB else {"report"}
    assert set(found) == buttons | {"tags"} | waits


def test_a_job_that_is_shared_has_no_buttons_for_its_readers(
    api: FakeApi, page: TestClient
) -> None:
    running = job(state=JobState.RUNNING, desired=Desired.RUN)
    api.show(running)
    assert 'href="/shares/job/' in page.get(JOB).text
    api.show(job(state=JobState.RUNNING, desired=Desired.RUN, user="grace"))
    for path in (JOB, f"{JOB}/head"):
        text = page.get(path).text
        assert f'action="{JOB}/' not in text
        assert "/shares/job/" not in text


@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "requeue", "profile", "snapshot"])
def test_an_action_goes_to_the_api_and_back_to_the_job(
    full: FakeApi, page: TestClient, action: str
) -> None:
    full.put(f"/v1{JOB}/{action}", job(), method="POST")
    answer = page.post(f"{JOB}/{action}")
    assert (answer.status_code, answer.headers["location"]) == (303, JOB)
    full.sent("POST", f"/v1{JOB}/{action}")


def test_a_refused_action_is_said_on_the_jobs_page(full: FakeApi, page: TestClient) -> None:
    reason = "gpt-ddp is being cancelled and cannot be paused."
    full.put(f"/v1{JOB}/pause", refusal(409, reason), method="POST")
    answer = page.post(f"{JOB}/pause")
    assert answer.status_code == 409
    assert "being cancelled and cannot be paused" in answer.text
    assert "<h1><bdi>gpt-ddp</bdi></h1>" in answer.text


def test_an_unknown_action_is_none(full: FakeApi, page: TestClient) -> None:
    assert page.post(f"{JOB}/explode").status_code == 404


def test_what_others_wrote_is_inert_everywhere(full: FakeApi, page: TestClient) -> None:
    hostile = job(reason=HOSTILE).model_copy(update={"name": HOSTILE})
    full.put("/v1/jobs", [hostile])
    full.show(
        hostile.model_copy(update={"result": result().model_copy(update={"sample": HOSTILE})}),
        events=[event(message=HOSTILE)],
        attempts=[attempt(reason=HOSTILE, last_lines=[HOSTILE])],
        artifacts=[ARTIFACT.model_copy(update={"path": HOSTILE})],
    )
    full.put("/v1/nodes", [node(reason=HOSTILE)])
    full.put("/v1/leases", [lease(reason=HOSTILE, state=LeaseState.ENDED)])
    full.put("/v1/datasets", [DATASET.model_copy(update={"name": HOSTILE, "warnings": [HOSTILE]})])
    link = {"kind": EntryKind.LINK, "target": HOSTILE}
    names = [ENTRY.model_copy(update={"path": HOSTILE, **more}) for more in ({}, link)]
    full.put("/v1/workspace/files", names)
    full.put("/v1/workbenches", [WORKBENCH.model_copy(update={"name": HOSTILE, "reason": HOSTILE})])
    full.put("/v1/workspace", WORKSPACE.model_copy(update={"trouble": HOSTILE}))
    full.put("/v1/tokens", [TOKEN.model_copy(update={"name": HOSTILE})])
    full.put("/v1/sessions", [SESSION.model_copy(update={"name": HOSTILE})])
    study = study_report(name=HOSTILE, summary=HOSTILE, points=[measured(missing=HOSTILE)] * 2)
    full.put("/v1/studies", [study])
    full.put(f"/v1{STUDY}", study)
    full.put("/v1/jobs/plan", refusal(422, HOSTILE, param=HOSTILE), method="POST")
    texts = [page.get(path).text for path in PAGES] + [
        page.get("/jobs", params={"name": MARKUP, "user": MARKUP}).text,
        page.post("/jobs/plan", data={"spec": HOSTILE}).text,
    ]
    for text in texts:
        assert "<script>alert" not in text
        assert "<img" not in text
        # In the document for our scripts JSON escapes them; everywhere else they are spelled out.
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "[U+202E]desrever" in texts[0]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"running": 0, "queued": 0}, "You have no running or waiting jobs."),
        ({"running": 1, "queued": 0}, "1 job is running, none is waiting."),
        ({"running": 3, "queued": 1}, "3 jobs are running, 1 is waiting."),
        ({"running": 0, "queued": 2}, "No job is running, 2 are waiting."),
    ],
)
def test_the_list_begins_with_what_is_going_on(
    api: FakeApi, page: TestClient, counts: dict[str, int], sentence: str
) -> None:
    api.put("/v1/me", me(**counts))
    assert f"<strong>{sentence}</strong>" in page.get("/jobs").text


def test_a_filter_reaches_the_api_and_stays_in_the_addresses(
    api: FakeApi, page: TestClient
) -> None:
    text = page.get("/jobs?view=waiting&search=gpt&order=oldest&after=job_9").text
    query = api.sent("GET", "/v1/jobs").query
    assert query["state"] == ["queued", "paused"]
    assert (query["search"], query["order"]) == (["gpt"], ["oldest"])
    assert query["after"] == ["job_9"]
    assert 'href="/jobs?view=ended&amp;search=gpt&amp;order=oldest"' in text


def test_newer_jobs_wait_behind_a_button(api: FakeApi, page: TestClient) -> None:
    old = job(id="job_01b")
    api.put("/v1/jobs", [old])
    text = page.get("/jobs").text
    assert 'hx-get="/jobs/rows?first=job_01b"' in text
    api.put("/v1/jobs", [job(id="job_01d"), job(id="job_01c"), old])
    rows = page.get("/jobs/rows?first=job_01b", headers={"hx-request": "true"}).text
    assert "2 newer jobs" in rows
    assert "row-job_01b" in rows
    assert "row-job_01c" not in rows


def test_selected_jobs_are_cancelled_and_ended_ones_left_alone(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/jobs/job_1/cancel", refusal(409, "It has ended."), method="POST")
    api.put("/v1/jobs/job_2/cancel", job(), method="POST")
    answer = page.post("/jobs/cancel", data={"job": ["job_1", "job_2"]})
    assert answer.status_code == 303
    api.sent("POST", "/v1/jobs/job_2/cancel")


def test_a_job_page_shows_plan_result_attempts_and_downloads(
    api: FakeApi, page: TestClient
) -> None:
    shown = job(state=JobState.SUCCEEDED, step=400, result=result(), finished_at=NOW)
    api.show(shown, attempts=[attempt()], checkpoints=[CHECKPOINT], artifacts=[ARTIFACT])
    text = page.get(JOB).text
    assert "4.600 \u2192 1.800" in text
    assert "class A:" in text
    assert "killed by signal 9 (SIGKILL) at step 120" in text
    assert f'href="/v1{JOB}/checkpoints/{CHECKPOINT.id}"' in text
    assert f'href="/v1{JOB}/artifacts/{ARTIFACT.id}"' in text
    assert "1,313,600 parameters" in text


def test_a_failed_job_opens_with_the_marked_line_and_the_way_out(
    api: FakeApi, page: TestClient
) -> None:
    lines = ["step 119", "ValueError: bad <row> 7", "cleaning up"]
    first, last = attempt(last_lines=["old"]), attempt(epoch=2, last_lines=lines, culprit_rank=1)
    shown = job(state=JobState.FAILED, reason_code="user_error", finished_at=NOW, epoch=2)
    api.show(shown, attempts=[first, last])
    for path in (JOB, f"{JOB}/lead"):
        text = page.get(path).text
        card = text[text.index('id="failure"') :].partition("</section>")[0]
        assert "3 last lines of rank 1, attempt 2 on east-01" in card
        assert "<mark>ValueError: bad &lt;row&gt; 7</mark>" in card
        assert card.count("<mark>") == 1
        assert f'href="/jobs/new?clone={shown.id}">Edit and run again</a>' in card
        assert 'href="#logs">Full log</a>' in card
    assert text.count("old") == 0
    api.show(job(), attempts=[first])
    assert 'id="failure"' not in page.get(JOB).text


def test_what_the_ranks_proved_is_one_line_and_open_where_it_failed(
    api: FakeApi, page: TestClient
) -> None:
    api.show(job(), attempts=[attempt()])
    assert 'id="preflight"' not in page.get(JOB).text
    api.show(job(), attempts=[attempt(preflight=PREFLIGHT), attempt(epoch=2)])
    text = page.get(JOB).text
    assert "all_reduce (sum, float32, 16 KiB)" in text
    assert "attempt 1: 1 collective run once between 2 ranks, 41 ms" in text
    assert '<details><summary class="row pad"><strong>Preflight</strong>' in text, "one line"
    wrong = PREFLIGHT.model_copy(update={"findings": [HOSTILE]})
    api.show(job(), attempts=[attempt(preflight=wrong)])
    text = page.get(JOB).text
    assert HOSTILE not in text
    assert ">failed</span>" in text
    assert '<details open><summary class="row pad"><strong>Preflight</strong>' in text


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (job(certificate=certificate("pass")), ["match those of one rank", "1.7e-7", "1.0e-6"]),
        (
            job(certificate=certificate("fail", loss=0.03)),
            ["the curve differs from that of one rank", "0.030"],
        ),
        (job(certificate=certificate("fail", loss=None)), ["not finite"]),
        (
            job(certificate=certificate("exempt")),
            ["ddp promises no particular curve", "without a verdict"],
        ),
        (job(spec=spec(verify={"steps": 200})), ["Known after step 200"]),
        (job(spec=spec(verify={"steps": 20})), ["did not train its first 20 steps"]),
    ],
)
def test_a_certificate_is_on_the_page_or_why_there_is_none(
    api: FakeApi, page: TestClient, shown: JobView, words: list[str]
) -> None:
    api.show(shown)
    text = page.get(JOB).text
    assert "Same curve as one rank" in text
    for word in words:
        assert word in text
    is_failed = shown.certificate is not None and shown.certificate.verdict == "fail"
    assert ("Different curve from one rank" in page.get(f"{JOB}/head").text) == is_failed
    assert page.get(f"{JOB}/history").status_code == 200


def test_a_job_that_asked_for_no_certificate_shows_none(api: FakeApi, page: TestClient) -> None:
    api.show(job())
    assert "Same curve as one rank" not in page.get(JOB).text


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_of_an_attempt_has_a_family(
    api: FakeApi, page: TestClient, outcome: Outcome
) -> None:
    api.show(job(), attempts=[attempt(outcome=outcome)])
    text = page.get(JOB).text
    family = re.search(rf'data-state="([a-z]+)">{outcome.replace("_", " ")}</span>', text)
    assert family is not None
    assert family[1] in {"good", "info", "warn", "bad", "paused", "cancelled"}


def test_an_attempts_echo_of_its_jobs_event_is_told_once(api: FakeApi, page: TestClient) -> None:
    told = [
        event(id=1, kind="attempt_running", message="Training."),
        event(id=2, kind="running", message="Training."),
        event(id=3, kind="attempt_starting", to_state="starting", message="Its ranks start."),
    ]
    api.show(job(), events=told)
    text = page.get(f"{JOB}/events").text
    assert text.count("Training.") == 1
    assert "Its ranks start." in text
    assert 'data-last="3"' in text


def test_a_job_of_nobody_is_a_page_that_says_so(api: FakeApi, page: TestClient) -> None:
    answer = page.get("/jobs/job_unknown")
    assert answer.status_code == 404
    assert "<h1>Refused</h1>" in answer.text


@pytest.mark.parametrize("job_id", ["%2e%2e%2fme", "a%3fb", "%00", "..%2f..%2fnodes"])
def test_an_id_cannot_name_another_address(api: FakeApi, page: TestClient, job_id: str) -> None:
    assert page.get(f"/jobs/{job_id}").status_code in (303, 404, 405)
    asked = {call.path for call in api.calls} - {"/v1/me"}
    assert all(path.startswith("/v1/jobs/") for path in asked)


def test_the_form_starts_with_an_example_that_runs(api: FakeApi, page: TestClient) -> None:
    text = page.get("/jobs/new").text
    assert "name: gpt-ddp" in text
    assert not any(call.method == "POST" for call in api.calls), "a link must not make the API plan"
    assert "name: llama-single" in page.get("/jobs/new?example=llama-single").text


def test_a_clone_starts_with_the_spec_of_its_job(full: FakeApi, page: TestClient) -> None:
    text = page.get("/jobs/new?clone=job_01aaaaaaaaaaaaaaaaaaaaaaaa").text
    assert "global_batch_size: 8" in text
    assert "wall_time: 20min" in text
    assert "kv_heads:" not in text


def answer_of_planning(asked: JobSpec, made: Plan) -> PlanView:
    """The answer of the plan on a platform whose only class is cpu2."""
    may_run = made.fits and made.runnable
    return PlanView(
        plans=[class_plan(asked, made, node_class="cpu2", ready_nodes=1)],
        chosen="cpu2" if may_run else None,
        predicted_start=None,
        predicted_finish=None,
        lease_end=None,
        reason="It fits on cpu2." if may_run else "It cannot run.",
    )


def test_the_plan_says_what_fits_and_lets_submit(api: FakeApi, page: TestClient) -> None:
    answer = answer_of_planning(spec(), planned(spec()))
    api.put("/v1/jobs/plan", answer, method="POST")
    text = page.post("/jobs/plan", data={"spec": EXAMPLE.read_text()}).text
    assert "Fits cpu2" in text
    assert "1,313,600" in text
    assert "disabled" not in text
    call = api.sent("POST", "/v1/jobs/plan")
    assert call.headers["content-type"] == "application/yaml"
    assert call.body.decode() == EXAMPLE.read_text()


def test_a_plan_shows_arithmetic_that_is_not_the_usual(api: FakeApi, page: TestClient) -> None:
    usual = planned(spec())
    unusual = usual.model_copy(
        update={
            "compiles": True,
            "float32_matmul": Float32Matmul.TF32,
            "deterministic": True,
            "attention": AttentionKernel.MATH,
        }
    )
    for made, shown in ((usual, False), (unusual, True)):
        answer = answer_of_planning(spec(), made)
        api.put("/v1/jobs/plan", answer, method="POST")
        preview = page.post("/jobs/plan", data={"spec": "x"}).text
        assert "Fits cpu2" in preview
        for line in (
            "<dd>compiled (torch.compile)</dd>",
            "<dt>float32 products</dt><dd>tf32</dd>",
            "<dt>algorithms</dt><dd>deterministic</dd>",
            "<dt>attention</dt><dd>math kernel</dd>",
        ):
            assert (line in preview) is shown
        api.show(job(plan=made))
        text = page.get(JOB).text
        for line in (
            "Layers: compiled (torch.compile)",
            "Float32 products: tf32",
            "Algorithms: deterministic",
        ):
            assert (line in text) is shown


def test_a_plan_that_cannot_run_names_the_fields_and_blocks_submit(
    api: FakeApi, page: TestClient
) -> None:
    odd = spec(model={"name": "gpt", "layers": 4, "width": 161, "heads": 4})
    answer = answer_of_planning(odd, planned(odd))
    assert planned(odd).problems
    api.put("/v1/jobs/plan", answer, method="POST")
    text = page.post("/jobs/plan", data={"spec": "x"}).text
    for problem in planned(odd).problems:
        assert f"<code>{problem.param}</code>" in text
    assert "data-submit disabled" in text


def test_a_plan_that_does_not_fit_says_what_would(api: FakeApi, page: TestClient) -> None:
    big = spec(model={"name": "gpt", "layers": 48, "width": 1600, "heads": 25})
    answer = answer_of_planning(big, planned(big))
    assert planned(big).advice
    api.put("/v1/jobs/plan", answer, method="POST")
    text = page.post("/jobs/plan", data={"spec": "x"}).text
    assert "Ways to make it fit" in text
    fitting, _, short = text.partition("Not enough alone")
    for advice in planned(big).advice:
        assert str(escape(advice.title)) in (fitting if advice.fits else short)
    assert "sent along replicate" in text
    assert "not known for this hardware" in text


def test_a_pipelines_plan_draws_its_ranks_and_its_step(api: FakeApi, page: TestClient) -> None:
    piped = spec(parallelism={"strategy": "pipeline"})
    made = planned(piped)
    answer = answer_of_planning(piped, made)
    api.put("/v1/jobs/plan", answer, method="POST")
    text = page.post("/jobs/plan", data={"spec": "x"}).text
    assert "<b>rank 1</b><span>pipeline 1</span>" in text
    assert text.count('class="fwd"') == text.count('class="bwd"') == 2 * 4
    assert made.cost is not None
    assert "pipeline bubble" in text


def test_submitting_sends_the_text_as_it_is_with_the_forms_key(
    api: FakeApi, page: TestClient
) -> None:
    text = "# a comment stays\nname: x\n"
    api.put("/v1/jobs", job(id="job_new"), method="POST")
    answer = page.post("/jobs/new", data={"spec": text, "key": "k1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/job_new")
    call = api.sent("POST", "/v1/jobs")
    assert call.body.decode() == text
    assert call.headers["idempotency-key"] == "k1"


def test_a_refused_spec_keeps_its_text_and_names_the_fields(api: FakeApi, page: TestClient) -> None:
    errors = [
        ("training.steps", "training.steps (line 4): this field is required."),
        ("resources.wall_time", "resources.wall_time: this field is required."),
    ]
    api.put("/v1/jobs", refusal(422, errors[0][1], errors=errors), method="POST")
    answer = page.post("/jobs/new", data={"spec": "name: mine <b>", "key": "k"})
    assert answer.status_code == 422
    assert "name: mine &lt;b&gt;" in answer.text
    for _, sentence in errors:
        assert sentence in answer.text


def test_nodes_show_use_condition_and_holder(api: FakeApi, page: TestClient) -> None:
    api.put(
        "/v1/nodes",
        [
            node(user="ada", job="job_01aaaaaaaaaaaaaaaaaaaaaaaa"),
            node(id="node_2", name="east-02", reachable=False, unreachable_since=NOW),
            node(id="node_3", name="west-01", state=NodeState.QUARANTINED, telemetry=None),
        ],
    )
    text = page.get("/nodes").text
    assert "1 of 3 nodes is ready; 0 free now." in text
    assert "leased whole" in text
    assert "east-02 has not been heard from since" in text
    assert 'class="condition">unreachable' in text
    assert 'data-state="quarantined"' in text
    assert "/drain" not in text, "only staff may"
    api.put("/v1/me", STAFF)
    assert "/nodes/node_01aaaaaaaaaaaaaaaaaaaaaaaa/drain" in page.get("/nodes").text


def test_a_use_that_is_not_known_is_not_shown_as_idle(api: FakeApi, page: TestClient) -> None:
    gpus = Hardware(class_name="a100x3", device="cuda", model="NVIDIA A100", slots=3, memory_gib=40)
    load = {"cpu_pct": 1, "memory_used_gib": 3, "disk_free_gib": 70}

    def shown(*gpu_pct: float | None) -> str:
        held_gib = [None if pct is None else 1.5 for pct in gpu_pct]
        told = Telemetry.model_validate(
            {**load, "gpu_pct": gpu_pct, "gpu_memory_used_gib": held_gib}
        )
        api.put("/v1/nodes", [node(hardware=gpus, telemetry=told)])
        return page.get("/nodes").text

    some = shown(60, None, 0)
    assert 'aria-label="east-01: 3 GPUs, busy 0 to 60 percent, use of 1 not known"' in some
    assert 'title="GPU 1: use not known"' in some
    assert "mean 60 % when busy, 1 not known" in some
    assert '<td class="num gone">3.00<span class="unit">GiB</span></td>' in some
    none = shown(None, None, None)
    assert 'aria-label="east-01: 3 GPUs, use not known"' in none
    assert " 0 % busy" not in none
    assert "none busy, 3 not known" in none
    assert '<td class="num gone">\u2013</td>' in none


def test_a_nodes_jobs_have_names_where_the_viewer_may_see_them(
    api: FakeApi, page: TestClient
) -> None:
    mine, other = "job_01aaaaaaaaaaaaaaaaaaaaaaaa", "job_01bbbbbbbbbbbbbbbbbbbbzzzz"
    api.put(
        "/v1/nodes",
        [
            node(user="ada", jobs=[mine], job_names={mine: "tune <b>"}),
            node(id="node_2", user="bob", jobs=[other]),
        ],
    )
    text = page.get("/nodes").text
    assert f'<a href="/jobs/{mine}"><bdi>tune &lt;b&gt;</bdi></a>' in text
    assert "…bbzzzz</span>" in text
    assert f"/jobs/{other}" not in text, "it would lead nowhere"


def test_a_node_that_is_shared_names_its_people_and_how_it_is_leased(
    api: FakeApi, page: TestClient
) -> None:
    why = "no memory cgroup can be made <b>"
    shared = node(user="ada", users=["ada", "bob"], sharing=Sharing.RECIPES, no_sharing=why)
    api.put("/v1/nodes", [shared])
    text = page.get("/nodes").text
    assert "ada, bob have it" in text
    assert "leased by parts to recipes: no memory cgroup can be made &lt;b&gt;" in text
    api.put("/v1/nodes", [node(sharing=Sharing.FULL)])
    assert '<div class="why">leased by parts</div>' in page.get("/nodes").text


@pytest.mark.parametrize("state", list(NodeState))
def test_every_state_of_a_node_is_shown(api: FakeApi, page: TestClient, state: NodeState) -> None:
    api.put("/v1/nodes", [node(state=state)])
    assert f'<span class="badge" data-state="{state}">{state}</span>' in page.get("/nodes").text


def test_booking_sends_the_hour_with_the_browsers_offset(full: FakeApi, page: TestClient) -> None:
    full.put("/v1/leases", lease(), method="POST")
    fields = {
        "node_class": "cpu2",
        "start_local": "2026-03-05T15:00",
        "start": "2026-03-05T15:00:00-05:00",
        "hours": "2",
        "key": "k1",
    }
    assert page.post("/leases", data=fields).status_code == 303
    call = full.sent("POST", "/v1/leases")
    assert call.body == (b'{"node_class":"cpu2","start":"2026-03-05T15:00:00-05:00","hours":2}')
    assert call.headers["idempotency-key"] == "k1"
    page.post("/leases", data={**fields, "start": ""})
    assert b'"start":"2026-03-05T15:00Z"' in full.sent("POST", "/v1/leases").body


def test_gpus_are_booked_where_they_are_sold_and_the_largest_free_block_is_told(
    full: FakeApi, page: TestClient
) -> None:
    assert 'name="gpus"' not in page.get("/leases").text
    quad = CPU2.model_copy(update={"slots": 4})
    full.put("/v1/nodes", [node(hardware=quad, users=["ann", "bob"])])
    hours = [
        {
            "start": (NOW + timedelta(hours=number)).isoformat(),
            "free": 0,
            "nodes": [],
            "taken": [],
            "free_gpus": {"east-01": free},
        }
        for number, free in enumerate((1, 4, 2, 3, 3, 0))
    ]
    lengths = [{"node": "east-01", "hours": [2, 3], "sizes": [1, 2, 4]}]
    answer = {"node_class": None, "nodes": 1, "hours": hours, "lengths": lengths}
    full.put("/v1/leases/availability", answer)
    text = page.get("/leases").text
    options = re.findall(r'<option value="(\d*)"( selected)?>([^<]+)</option>', text)
    assert options == [("1", " selected", "1 GPU"), ("2", "", "2 GPUs"), ("", "", "whole node")]
    assert "1 of 4 GPUs" in text
    assert "ann, bob" in text
    begins = (NOW + timedelta(hours=3)).isoformat()
    assert re.search(rf"3 GPUs for 2 h from <time [^>]*{re.escape(begins)}", text)
    full.put("/v1/leases", lease(), method="POST")
    fields = {"node_class": "cpu2", "start": "2026-03-05T15:00Z", "hours": "2", "gpus": "2"}
    assert page.post("/leases", data=fields).status_code == 303
    assert b'"hours":2,"gpus":2}' in full.sent("POST", "/v1/leases").body
    full.put("/v1/leases", refusal(409, "Taken."), method="POST")
    again = page.post("/leases", data={**fields, "gpus": ""}).text
    assert '<option value="" selected>whole node</option>' in again
    assert b"gpus" not in full.sent("POST", "/v1/leases").body


def test_a_lease_of_a_part_tells_its_size_and_once_it_runs_its_gpus(
    api: FakeApi, page: TestClient
) -> None:
    part = {"gpus": 2, "of_gpus": 4, "whole": False}
    running = lease(id="lease_2", state=LeaseState.ACTIVE, slots=[1, 3], **part)
    api.put("/v1/leases", [lease(**part), running, lease(id="lease_3", gpus=4, of_gpus=4)])
    text = page.get("/leases").text
    assert '<div class="sub">2 of 4 GPUs</div>' in text
    assert '<div class="sub">2 of 4 GPUs: GPUs 1, 3</div>' in text
    assert text.count("of 4 GPUs") == 2, "a whole node is not counted out"


def test_a_lease_of_ones_own_has_ways_to_start_in_it_first_of_all_after_booking_it(
    full: FakeApi, page: TestClient
) -> None:
    mine, next_one = lease(), lease(id="lease_2", state=LeaseState.ACTIVE)
    others = lease(id="lease_3", user="somebody")
    walk_in = lease(id="lease_4", kind=LeaseKind.WALK_IN, state=LeaseState.ACTIVE)
    full.put("/v1/leases", [mine, next_one, others, walk_in])
    text = page.get("/leases").text
    linked = re.findall(r'href="/jobs/new\?lease=([^"]+)"', text)
    assert linked == [mine.id, "lease_2"]
    assert text.count("starts when the lease begins") == 1, "the other one has begun"
    assert re.findall(r'name="kind" value="([^"]+)"', text) == 2 * ["terminal", "jupyter"]
    full.put("/v1/leases", mine, method="POST")
    fields = {"node_class": "cpu2", "start": "2026-03-05T15:00Z", "hours": "2"}
    there = page.post("/leases", data=fields).headers["location"]
    assert there == LEASE
    booked = page.get(there).text
    assert "What to do next" in booked
    assert f"/jobs/new?lease={mine.id}" in booked
    assert booked.count(f"/v1/leases/{mine.id}/calendar") == 1
    form = page.get(f"/workbenches?lease={mine.id}").text
    assert f'<option value="{mine.id}" selected>' in form
    assert f"lease: {mine.id}" in page.get(f"/jobs/new?lease={mine.id}").text


def test_a_held_sandbox_is_entered_and_released_where_workbenches_are(
    full: FakeApi, page: TestClient
) -> None:
    full.put("/v1/workbenches", [WORKBENCH.model_copy(update={"is_held": True})])
    text = page.get("/workbenches").text
    assert "held after its failure" in text
    assert f'href="{BENCH}"' in text
    assert f"{BENCH}/stop" not in text
    full.put(f"/v1/jobs/{WORKBENCH.id}/release", job(), method="POST")
    assert page.post(f"{BENCH}/release").status_code == 303
    assert full.sent("POST", f"/v1/jobs/{WORKBENCH.id}/release")


def test_a_refused_booking_keeps_what_was_typed(full: FakeApi, page: TestClient) -> None:
    full.put("/v1/leases", refusal(409, "Taken; free from 18:00."), method="POST")
    answer = page.post("/leases", data={"start_local": "2026-03-05T15:00", "hours": "7"})
    assert answer.status_code == 409
    assert "Taken; free from 18:00." in answer.text
    assert 'value="7"' in answer.text


def test_booked_leases_can_be_given_up_and_walk_ins_not(api: FakeApi, page: TestClient) -> None:
    api.put(
        "/v1/leases",
        [lease(id="lease_1"), lease(id="lease_2", kind=LeaseKind.WALK_IN, job="job_1")],
    )
    text = page.get("/leases").text
    assert "/leases/lease_1/release" in text
    assert "/leases/lease_2/release" not in text
    gone = lease(id="lease_1", state=LeaseState.CANCELLED)
    api.put("/v1/leases/lease_1/release", gone, method="POST")
    assert page.post("/leases/lease_1/release").headers["location"] == "/leases/lease_1"


def test_the_clock_of_a_lease_is_on_every_page(full: FakeApi, page: TestClient) -> None:
    held = lease(state=LeaseState.ACTIVE, hold_start=NOW - timedelta(hours=1))
    full.put("/v1/me", me(lease=held))
    for path in PAGES:
        assert f'data-lease-stop="{held.usable_end.isoformat()}"' in page.get(path).text


def test_a_new_token_is_shown_once(full: FakeApi, page: TestClient) -> None:
    made = TokenMade(**TOKEN.model_dump(), secret="ty_only_now", user=me().user)
    full.put("/v1/tokens", made, method="POST")
    form = {"name": "laptop", "scope": ["read", "jobs"], "expires_in_days": "30"}
    answer = page.post("/account/tokens", data=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/account")
    shown = page.get("/account")
    assert "ty_only_now" in shown.text
    assert shown.headers["cache-control"] == "no-store"
    sent = b'{"name":"laptop","scopes":["read","jobs"],"expires_in_days":30}'
    assert full.sent("POST", "/v1/tokens").body == sent
    assert "ty_only_now" not in page.get("/account").text


def test_a_link_for_another_device_is_shown_to_its_owner(full: FakeApi, page: TestClient) -> None:
    made = LinkView(url="http://x/login?link=ty_once", secret="ty_once", expires_at=NOW)
    full.put("/v1/me/login-link", made, method="POST")
    assert page.post("/account/login-link").headers["location"] == "/account"
    assert 'value="http://x/login?link=ty_once"' in page.get("/account").text
    assert "ty_once" not in page.get("/account").text


def test_nobody_else_puts_words_onto_a_page(full: FakeApi, page: TestClient) -> None:
    full.put("/v1/me/notifications/test", None, method="POST")
    page.post("/account/notifications/test", data={"channel": "mail"})
    text = page.cookies["trainyard_said"].partition(".")[0].strip('"')
    assert "A test notice is on its way" in page.get("/account").text
    page.cookies.set("trainyard_said", f"{text}.forged", path="/account")
    assert "A test notice is on its way" not in page.get("/account").text


@pytest.mark.parametrize(
    ("form", "stands_on"),
    [
        ("/account/tokens", "/account"),
        ("/account/notifications/test", "/account"),
        ("/admin/people/invite", "/admin/people"),
        ("/admin/people/user_1/enable", "/admin/people"),
        ("/jobs/cancel", "/jobs"),
        ("/jobs/columns", "/jobs"),
        ("/jobs/job_1/tags", "/jobs/job_1"),
        ("/jobs/job_1/pause", "/jobs/job_1"),
        ("/nodes/box/resume", "/nodes"),
        ("/leases/lease_1/release", "/leases/lease_1"),
    ],
)
def test_the_address_of_a_form_opens_the_page_that_it_stands_on(
    page: TestClient, form: str, stands_on: str
) -> None:
    answer = page.get(form)
    assert (answer.status_code, answer.headers["location"]) == (303, stands_on)


def test_a_database_that_is_away_is_a_page_that_says_so(api: FakeApi, page: TestClient) -> None:
    api.put("/v1/me", refusal(503, "The database is not answering right now."))
    answer = page.get("/jobs")
    assert answer.status_code == 503
    assert "The database is not answering right now." in answer.text
    assert "Running jobs are not affected." in answer.text


def test_pages_ask_only_what_a_script_may_ask(
    full: FakeApi, browser_of: Callable[..., TestClient]
) -> None:
    """A bearer token in the page's request works as it does for a script."""
    client = browser_of(cookie="")
    client.get("/jobs", headers={"authorization": "Bearer ty_script"})
    assert full.sent("GET", "/v1/me").headers["authorization"] == "Bearer ty_script"


def test_a_scripts_page_shows_what_it_runs(api: FakeApi, page: TestClient) -> None:
    spec = ScriptJobSpec.model_validate(
        {
            "name": "mine",
            "script": {"entry": "train.py", "code": "ab" * 32, "arguments": ["--lr", "<b>1</b>"]},
            "inputs": [{"dataset": "rows", "name": "lab/rows"}],
            "resources": {"ranks_per_node": 2, "wall_time": "20min"},
        }
    )
    made = plan_script(spec.script, nodes=1, ranks_per_node=2, hardware=CPU2)
    rows = JobInputView(
        kind=InputKind.DATASET,
        name="lab/rows",
        source="rows",
        source_id="data_1",
        path="/job/inputs/lab/rows",
        variable="TRAINYARD_INPUT_LAB_ROWS",
        sha256="cd" * 32,
        size=3 << 20,
        files=1,
    )
    shown = job(spec=spec, plan=made, steps=0, loss=None, tokens_per_s=None, inputs=[rows])
    api.show(shown, attempts=[], checkpoints=[], artifacts=[])
    text = page.get(JOB).text
    assert "script, 2 ranks" in text
    assert "train.py" in text
    assert "--lr &lt;b&gt;1&lt;/b&gt;" in text
    assert f"/v1/jobs/{shown.id}/code" in text
    assert "lab/rows" in text
    assert f'title="{rows.sha256}"' in text
    # Its code runs again, with what is changed about it.
    text = page.get(f"/jobs/new?clone={shown.id}").text
    assert 'value="--lr &#39;&lt;b&gt;1&lt;/b&gt;&#39;"' in text
    form = {"name": "mine-2", "arguments": "--lr '2 e'", "ranks": "2", "wall_time": "30min"}
    api.put(f"/v1/jobs/{shown.id}/clone", job(id="job_new"), method="POST")
    answer = page.post(f"/jobs/{shown.id}/again", data={**form, "key": "k"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/job_new")
    call = api.sent("POST", f"/v1/jobs/{shown.id}/clone")
    assert json.loads(call.body) == {
        "name": "mine-2",
        "script": {"arguments": ["--lr", "2 e"]},
        "resources": {"ranks_per_node": 2, "wall_time": "30min"},
    }
    api.put(f"/v1/jobs/{shown.id}/clone", refusal(422, "Too many ranks."), method="POST")
    answer = page.post(f"/jobs/{shown.id}/again", data=form)
    assert answer.status_code == 422
    assert "Too many ranks." in answer.text
    assert 'value="30min"' in answer.text
    answer = page.post(f"/jobs/{shown.id}/again", data={**form, "arguments": "'"})
    assert "Arguments: No closing quotation." in answer.text
    assert "data-spec" not in text


def test_a_programs_page_shows_the_hosts_that_it_reached_and_tried(
    api: FakeApi, page: TestClient
) -> None:
    spec = ScriptJobSpec.model_validate(
        {
            "name": "mine",
            "script": {"entry": "train.py", "code": "ab" * 32},
            "network": ["pypi", "cdn.hf.co"],
            "resources": {"ranks_per_node": 2, "wall_time": "20min"},
        }
    )
    made = plan_script(spec.script, nodes=1, ranks_per_node=2, hardware=CPU2)
    shown = job(spec=spec, plan=made, steps=0, loss=None, tokens_per_s=None)
    uses = [
        HostUse(host="pypi.org:443", connections=3, sent_bytes=2048, received_bytes=5 << 20),
        HostUse(host="evil.example:443", refused=7, why=HOSTILE),
    ]
    place = PlaceView(node="box", lease="l", slots=[0, 1], ranks=[0, 1], reason="", hosts=uses)
    api.show(shown, attempts=[attempt(nodes=[place])], checkpoints=[], artifacts=[])
    text = page.get(JOB).text
    assert "<dt>network</dt><dd><bdi>pypi, cdn.hf.co</bdi></dd>" in text
    assert "pypi.org:443" in text
    assert '5.0<span class="unit">MiB</span>' in text
    assert "evil.example:443" in text
    assert "<script>alert" not in text
    api.show(shown, attempts=[attempt()], checkpoints=[], artifacts=[])
    assert 'id="hosts"' not in page.get(JOB).text


def test_a_piece_that_is_refused_for_now_says_how_long_to_wait(
    api: FakeApi, page: TestClient
) -> None:
    api.put("/v1/jobs", refusal(503, "Too many are reading."))
    api.headers[("GET", "/v1/jobs")] = {"retry-after": "7"}
    headers = {"hx-request": "true", "priority": "u=6"}
    answer = page.get("/jobs/rows", headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert api.sent("GET", "/v1/jobs").headers["priority"] == "u=6"


def test_a_nodes_page_tells_who_has_which_slot_now_and_next(
    full: FakeApi, page: TestClient
) -> None:
    slots = [SlotView(slot=number, state=SlotState.READY, reason="") for number in range(2)]
    now, later = datetime.now(UTC), datetime.now(UTC) + timedelta(hours=4)
    ann = HOLD.model_copy(update={"hold_start": now, "hold_end": later})
    mine = {"lease": lease().id, "user": "ada", "hold_start": later, "slots": []}
    full.put(f"/v1{NODE}/holds", [ann, HOLD.model_copy(update={**mine, "hold_end": later})])
    full.put(f"/v1{NODE}", node(slots=slots, jobs=["job_1"], job_names={"job_1": "tune <b>"}))
    text = page.get(NODE).text
    assert "<strong>ann has it.</strong>" in text
    first, second = re.findall(r'<td data-l="Who has it">(.*?)</td>', text)
    assert "nobody" in first
    assert second == "ann"
    assert f'<a href="{LEASE}">ada</a>' in text
    assert '<a href="/jobs/job_1"><bdi>tune &lt;b&gt;</bdi></a>' in text
    assert f'href="{NODE}"' in page.get("/leases").text
    assert f'href="{NODE}"' in page.get("/nodes").text


def test_a_leases_page_leads_to_work_and_undoes_its_release(
    full: FakeApi, page: TestClient
) -> None:
    full.put("/v1/jobs", [job(name="in it")])
    assert "in it" in page.get(LEASE).text
    assert full.sent("GET", "/v1/jobs").query["lease"] == [lease().id]
    full.put(f"/v1{LEASE}/extend", refusal(409, "The next hour is taken."), method="POST")
    refused = page.post(f"{LEASE}/extend")
    assert (refused.status_code, "The next hour is taken." in refused.text) == (409, True)
    later = datetime.now(UTC) + timedelta(hours=4)
    gone = lease(state=LeaseState.CANCELLED, hold_end=later)
    full.put(f"/v1{LEASE}", gone)
    text = page.get(LEASE).text
    assert "What to do next" not in text
    assert f"{LEASE}/restore" in text
    again = lease(id="lease_again")
    full.put(f"/v1{LEASE}/restore", again, method="POST")
    assert page.post(f"{LEASE}/restore").headers["location"] == "/leases/lease_again"
