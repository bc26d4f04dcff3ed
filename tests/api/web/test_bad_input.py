"""Bad input gets a 4xx problem document that names the field and the number; nothing is written."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select
from starlette.types import Message
from structlog.testing import capture_logs

from core.process.settings import ApiSettings
from core.tables.jobs import Job
from tests.api.conftest import World, enrol, running_world
from tests.api.shapes import job_spec

# The same on every database: once is enough.
pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

JSON = {"Content-Type": "application/json"}
HUGE = {"width": 65_536, "heads": 64, "layers": 96}
WIDE = {"width": 2560, "layers": 16, "heads": 8}

BAD_SPECS: list[tuple[str, dict[str, Any], str, str]] = [
    ("unknown field", {"colour": "red"}, "colour", "does not exist"),
    ("unknown inner field", {"model": {"depth": 3}}, "model.depth", "does not exist"),
    ("wrong type", {"model": {"layers": "four"}}, "model.layers", "four"),
    ("number as text", {"training": {"steps": "400"}}, "training.steps", "400"),
    ("fraction", {"training": {"steps": 1.5}}, "training.steps", "1.5"),
    ("too large", {"model": {"layers": 5000}}, "model.layers", "1,024"),
    ("zero", {"training": {"steps": 0}}, "training.steps", "1"),
    (
        "world size",
        {"parallelism": {"strategy": "ddp", "data_parallel_replicate_degree": 3}},
        "parallelism.data_parallel_replicate_degree",
        "3",
    ),
    ("heads", {"model": {"heads": 7}}, "model.heads", "160"),
    ("batch", {"training": {"global_batch_size": 7}}, "training.global_batch_size", "7"),
    (
        "strategy",
        {"parallelism": {"strategy": "hsdp"}},
        "parallelism.data_parallel_shard_degree",
        "hsdp",
    ),
    ("optimizer", {"training": {"optimizer": "adamw_triton"}}, "training.optimizer", "CUDA"),
    ("too big", {"model": HUGE}, "model.width", "GiB"),
    ("ranks", {"resources": {"ranks_per_node": 8}}, "resources.ranks_per_node", "8"),
    ("more nodes", {"resources": {"nodes": 2}}, "resources.nodes", "2"),
    ("short", {"resources": {"wall_time": "5s"}}, "resources.wall_time", "60"),
    (
        "is not a valid duration",
        {"resources": {"wall_time": "soon"}},
        "resources.wall_time",
        "soon",
    ),
    ("class", {"resources": {"node_class": "tpu8"}}, "resources.node_class", "tpu8"),
    ("dataset", {"data": {"dataset": "mine"}}, "data.dataset", "mine"),
    ("lease", {"lease": "lease_" + "0" * 26}, "lease", "lease_"),
    ("markup", {"name": "<script>alert(1)</script>"}, "name", "script"),
    ("control", {"name": "a\x1b[2J"}, "name", "x1b"),
    ("newline", {"name": "a\nb"}, "name", "a"),
    ("half a pair", {"name": "a\ud800"}, "name", "ud800"),
    ("own script", {"script": "train.py"}, "script", "group of fields"),
    ("own command", {"command": ["true"]}, "command", "--script FILE"),
]


def test_a_wrong_job_is_refused_by_field_and_number(world: World) -> None:
    for what, changes, param, word in BAD_SPECS:
        body = json.dumps(job_spec(**changes))
        answer = world.ann.post("/v1/jobs", content=body, headers=JSON)
        problem = answer.json()
        assert answer.status_code == 422, (what, answer.text)
        assert answer.headers["content-type"] == "application/problem+json", what
        named = [problem.get("param"), *(item["param"] for item in problem["errors"])]
        assert param in named, (what, named)
        assert word in answer.text.replace("\\\\", "\\"), (what, answer.text)

        planned = world.ann.post("/v1/jobs/plan", content=body, headers=JSON)
        if planned.status_code == 200:  # a plan tells; only a submit refuses
            plan = planned.json()["plans"][0]["plan"]
            assert param in [problem["param"] for problem in plan["problems"]], what
        else:
            assert planned.json() == problem, what
    with world.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_a_missing_wall_time_is_asked_for_kindly(world: World) -> None:
    spec = job_spec()
    del spec["resources"]["wall_time"]
    problem = world.ann.post("/v1/jobs", json=spec).json()
    assert problem["param"] == "resources.wall_time"
    assert "20min" in problem["detail"]


def test_all_wrong_fields_are_named_at_once_with_their_lines(world: World) -> None:
    text = "name: run\nmodel: {name: gpt, layers: 0, width: 160, heads: 4}\nwhat: 1\n"
    problem = world.ann.post(
        "/v1/jobs", content=text, headers={"Content-Type": "application/yaml"}
    ).json()
    messages = {item["param"]: item["message"] for item in problem["errors"]}
    assert "(line 2)" in messages["model.layers"]
    assert "(line 3)" in messages["what"]
    assert "resources.wall_time" in messages
    assert "data" in messages


def test_what_does_not_fit_says_how_much_is_needed_and_how_much_there_is(world: World) -> None:
    problem = world.ann.post("/v1/jobs", json=job_spec(model=HUGE)).json()
    assert problem["code"] == "does_not_fit"
    assert "cpu2" in problem["detail"]
    assert "7.20 GiB" in problem["detail"]  # nine tenths of 16 GiB, shared by two ranks


def test_a_refusal_carries_what_the_plan_found_to_make_it_fit(world: World) -> None:
    spec = job_spec(model=WIDE)
    [plan] = world.ann.post("/v1/jobs/plan", json={"spec": spec}).json()["plans"]
    found = next(advice for advice in plan["plan"]["advice"] if advice["fits"])
    refused = world.ann.post("/v1/jobs", json=spec).json()
    assert refused["code"] == "does_not_fit"
    assert f"changes that would make it fit: {found['title']}" in refused["detail"]
    assert "smaller model" not in refused["detail"]


def test_a_refusal_names_the_class_that_comes_nearest(world: World) -> None:
    enrol(world.app, world.database, "large", slots=6, cores=6, memory_gib=64.0)
    split = {"strategy": "ddp", "data_parallel_replicate_degree": 8}
    spec = job_spec(resources={"ranks_per_node": 8}, parallelism=split)
    for problem in (
        world.ann.post("/v1/jobs", json=spec).json()["detail"],
        world.ann.post("/v1/jobs/plan", json={"spec": spec}).json()["reason"],
    ):
        assert "has only 6" in problem


def test_what_does_not_fit_runs_anyway_for_a_short_while_if_that_is_wanted(world: World) -> None:
    def asking(wall_time: str) -> dict[str, Any]:
        resources = {"wall_time": wall_time, "allow_oom": True}
        return job_spec(model=HUGE, resources=resources)

    refused = world.ann.post("/v1/jobs", json=job_spec(model=HUGE)).json()
    assert "resources.allow_oom" in refused["detail"]
    too_long = world.ann.post("/v1/jobs", json=asking("1801s")).json()
    assert too_long["param"] == "resources.allow_oom"
    assert "at most 30min, not 30min 1s" in too_long["detail"]
    planned = world.ann.post("/v1/jobs/plan", json={"spec": asking("30min")}).json()
    assert planned["chosen"] == "cpu2"
    assert (
        "does not fit on cpu2, but runs there because it may run out of memory" in planned["reason"]
    )
    assert world.ann.post("/v1/jobs", json=asking("30min")).status_code == 201
    wrong = asking("30min") | {"parallelism": {"strategy": "tensor", "tensor_parallel_degree": 7}}
    assert world.ann.post("/v1/jobs", json=wrong).json()["code"] == "cannot_run"


def test_without_a_node_a_job_is_told_to_wait_for_one(settings: ApiSettings) -> None:
    with running_world(settings, with_node=False) as world:
        problem = world.ann.post("/v1/jobs", json=job_spec()).json()
        assert problem["code"] == "no_nodes"
        assert "enrol" in problem["detail"]


def test_a_body_that_is_no_job_at_all_is_refused(world: World) -> None:
    for body, kind, status in (
        (b"{", "application/json", 422),
        (b"a: *b", "application/yaml", 422),
        (b"\xff\xfe", "application/yaml", 422),
        (b"a,b", "text/csv", 422),
        (b"", "application/json", 422),
        (b'{"name": "' + b"x" * 1_100_000 + b'"}', "application/json", 413),
    ):
        answer = world.ann.post("/v1/jobs", content=body, headers={"Content-Type": kind})
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_that_grows_over_the_cap_is_refused_while_it_is_read(world: World) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(2000):
            yield b" " * 1000

    answer = world.ann.post("/v1/jobs", content=pieces(), headers=JSON)
    assert answer.status_code == 413
    assert "1,000,000" in answer.json()["detail"]


def test_an_unknown_path_and_a_wrong_method_are_problem_documents(world: World) -> None:
    lost = world.ann.get("/v1/nothing/here")
    assert (lost.status_code, lost.json()["code"]) == (404, "not_found")
    wrong = world.ann.put("/v1/jobs")
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
    assert "PUT" in wrong.json()["detail"]


def test_a_wrong_query_is_refused(world: World) -> None:
    for path in (
        "/v1/jobs?limit=0",
        "/v1/jobs?limit=1000",
        "/v1/jobs?state=done",
        "/v1/jobs?name=%00",
        "/v1/jobs?after=%1b",
        "/v1/leases/availability?start=2026-11-21T10:00:00",
        "/v1/leases/availability?start=0001-01-01T00:00:00Z",
        "/v1/leases/availability?start=2026-11-21T10:00:00Z&hours=100000",
    ):
        answer = world.ann.get(path)
        assert answer.status_code == 422, (path, answer.text)
        assert answer.json()["param"], path


def test_ids_of_nobody_are_not_found(world: World) -> None:
    for path in ("jobs/x", "jobs/job_1/logs", "leases/x", "nodes/x", "datasets/x"):
        assert world.ann.get(f"/v1/{path}").status_code == 404, path


def test_where_nothing_is_a_browser_gets_a_page_and_a_script_a_problem(world: World) -> None:
    browser = {"accept": "text/html,application/xhtml+xml"}
    page = world.ann.get("/nothing", headers=browser)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "/nothing does not exist." in page.text
    assert 'aria-label="Main"' in page.text, "the way to other pages"
    assert "GET is not allowed at this address" in world.ann.get("/logout", headers=browser).text
    for path, headers in (("/nothing", {}), ("/v1/nothing", browser)):
        answer = world.ann.get(path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("number", ["0.5", "1764600000", "-3", "1e9"])
@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/bands", "start"),
        ("/v1/leases/availability", "start"),
        ("/v1/usage", "end"),
        ("/v1/admin/audit", "until"),
    ],
)
def test_a_bare_number_is_no_time(world: World, path: str, param: str, number: str) -> None:
    answer = world.staff.get(path, params={param: number})
    assert answer.status_code == 422
    [problem] = [one for one in answer.json()["errors"] if one["param"] == param]
    assert "RFC 3339" in problem["message"]


def test_a_client_that_leaves_before_its_form_was_read_is_no_error_of_ours(world: World) -> None:
    """As a page does that asks anew: nothing is logged, and no answer of 5xx is counted."""
    headers = {"host": "127.0.0.1:8471", "sec-fetch-site": "same-origin", "content-length": "9"}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/jobs/new/fields",
        "raw_path": b"/jobs/new/fields",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.7", 50000),
        "server": ("127.0.0.1", 8471),
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    with capture_logs() as lines:
        world.nobody.portal.call(world.app, scope, receive, send)
    assert [line["event"] for line in lines if line["log_level"] == "error"] == []
    assert [one["status"] for one in sent if one["type"] == "http.response.start"] == [499]
