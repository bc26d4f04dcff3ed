"""Things are named by id, by part of it, by name, or by their place; a shell completes them."""

import json
from typing import Any

import pytest

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, listed, streamed
from tests.client.scripted import JOB, Run, everything

OLD, NEW = "job_01k9aaaaaaaaaaaaaaaaaaaaaa", "job_01k9bbbbbbbbbbbbbbbbb7x2kq"


@pytest.fixture
def jobs(server: FakeServer) -> list[dict[str, Any]]:
    """Two jobs of one name: the newer one runs, the older one has ended."""
    everything(server)
    found = [{**d.running(120, 2.5), "id": NEW}, {**d.ended("failed"), "id": OLD}]
    server.answer("GET /v1/jobs", listed(found))
    for one in found:
        server.answer(f"GET /v1/jobs/{one['id']}", as_json(one))
        server.answer(f"GET /v1/jobs/{one['id']}/attempts", listed([d.ATTEMPT]))
        server.answer(f"POST /v1/jobs/{one['id']}/cancel", as_json({**one, "state": "stopping"}))
    return found


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("gpt-ddp", NEW),
        ("@1", NEW),
        ("@2", OLD),
        ("7x2kq", NEW),
        ("01k9aaaa", OLD),
        ("job_01k9bb", NEW),
    ],
)
def test_a_job_is_shown_by_any_of_its_names(
    run: Run, jobs: list[dict[str, Any]], key: str, meant: str
) -> None:
    shown = run("show", key, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["id"] == meant


def test_a_whole_id_is_asked_for_at_once(
    server: FakeServer, run: Run, jobs: list[dict[str, Any]]
) -> None:
    assert run("show", OLD).exit_code == 0
    assert not server.of("GET /v1/jobs")


@pytest.mark.parametrize("key", ["01k9", "job_01k9"])
def test_a_part_of_several_ids_is_refused_with_all_of_them(
    run: Run, jobs: list[dict[str, Any]], key: str
) -> None:
    shown = run("show", key)
    assert shown.exit_code == 2
    assert f"'{key}' may mean 2 jobs. Name one by its id:" in shown.stderr
    assert f"  {NEW[-6:]}  gpt-ddp, running, " in shown.stderr
    assert f"  {OLD[-6:]}  gpt-ddp, failed, " in shown.stderr


@pytest.mark.parametrize("key", ["gpt", "7x2", "kq", "job_01", "nothing"])
def test_what_names_no_job_is_refused_with_the_way_to_one(
    run: Run, jobs: list[dict[str, Any]], key: str
) -> None:
    shown = run("show", key)
    assert shown.exit_code == 4
    assert f"You have no job '{key}'." in shown.stderr
    assert "trainyard jobs" in shown.stderr


def test_there_is_no_place_after_the_last(run: Run, jobs: list[dict[str, Any]]) -> None:
    shown = run("show", "@3")
    assert shown.exit_code == 2
    assert "You have 2 jobs, so there is no @3." in shown.stderr


def test_a_change_takes_the_only_job_of_that_name_that_has_not_ended(
    server: FakeServer, run: Run, jobs: list[dict[str, Any]]
) -> None:
    assert run("cancel", "gpt-ddp").exit_code == 0
    assert server.of(f"POST /v1/jobs/{NEW}/cancel")
    third = {**jobs[0], "id": "job_01k9cccccccccccccccccccccc"}
    server.answer("GET /v1/jobs", listed([third, *jobs]))
    refused = run("cancel", "gpt-ddp")
    assert refused.exit_code == 2
    assert "may mean 2 jobs" in refused.stderr
    assert OLD[-6:] not in refused.stderr
    assert len(server.of(f"POST /v1/jobs/{NEW}/cancel")) == 1


def test_leases_studies_and_agendas_are_named_in_the_same_way(
    server: FakeServer, run: Run, job_file: str
) -> None:
    everything(server)
    assert run("leases", "release", d.LEASE["id"][-5:]).exit_code == 0
    assert server.of(f"POST /v1/leases/{d.LEASE['id']}/release")
    assert run("leases", "cancel", "@1").exit_code == 0
    assert run("studies", "show", d.STUDY["name"]).exit_code == 0
    assert run("agenda", "show", d.AGENDA["name"]).exit_code == 0
    assert run("submit", job_file, "--lease", "@1").exit_code == 0
    [changes] = server.of("POST /v1/jobs")[0].query["changes"]
    assert json.loads(changes) == {"lease": d.LEASE["id"], "leases": None}


def test_a_group_without_a_command_lists(server: FakeServer, run: Run) -> None:
    everything(server)
    for group in ("leases", "studies", "datasets", "tokens", "agenda"):
        assert run(group).stdout == run(group, "list").stdout
        assert json.loads(run(group, "--json").stdout)
        assert "Usage:" in run(group, "--help").stdout


def test_a_shell_is_offered_names_that_exist(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, jobs: list[dict[str, Any]]
) -> None:
    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_ROOT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["root", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        answered = run()
        monkeypatch.delenv("_ROOT_COMPLETE")
        return answered.stdout.split()

    assert offered("show", "gp") == ["gpt-ddp"]
    assert offered("leases", "release", d.LEASE["id"][-6:-3]) == [d.LEASE["id"][-6:]]
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:9")
    assert offered("show", "gp") == []


def test_status_says_where_one_stands_and_what_is_next(
    server: FakeServer, run: Run, jobs: list[dict[str, Any]]
) -> None:
    shown = run()
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == run("status").stdout
    assert "2 running, 1 waiting." in shown.stdout
    assert f"trainyard follow {NEW[-6:]}" in shown.stdout
    server.answer("GET /v1/jobs", listed(jobs[1:]))
    assert f"trainyard show {OLD[-6:]}" in run().stdout
    server.answer("GET /v1/jobs", listed([]))
    assert "trainyard submit FILE --follow" in run().stdout


def test_without_a_login_help_is_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_TOKEN")
    assert "Usage:" in run().output


def test_a_followed_program_prints_its_output_and_the_end_of_a_failed_one(
    server: FakeServer, run: Run
) -> None:
    everything(server)
    spec = {**d.job()["spec"], "script": {"entry": "train.py"}}
    lines = [{**d.LOG_LINE, "text": "epoch 1"}, {**d.LOG_LINE, "rank": 1, "text": "epoch one"}]
    failed = {**d.ended("failed"), "spec": spec}
    server.answer(f"GET {JOB}", as_json({**d.job(), "spec": spec}), as_json(failed))
    server.answer(
        f"GET {JOB}/stream", streamed(("1", "log", {"lines": lines}), ("2", "end", failed))
    )
    attempt = {**d.ATTEMPT, "last_lines": ["ValueError: no such file"]}
    server.answer(f"GET {JOB}/attempts", listed([attempt]))
    shown = run("follow", d.JOB_ID)
    assert shown.exit_code == 1
    assert "[0] epoch 1\n[1] epoch one\n" in shown.stdout
    assert "  | ValueError: no such file\n" in shown.stdout
    assert f"trainyard logs {d.JOB_ID}" in shown.stdout
    assert f"{server.url}/jobs/{d.JOB_ID}" in shown.stdout
