"""The command line as scripts and people use it."""

import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed, refused, streamed
from trainyard.cli.app import app
from trainyard.config import config_path, read

Run = Callable[..., Result]
JOB = f"/v1/jobs/{d.JOB_ID}"
MAIN = "from trainyard.cli import main; main()"
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/]"


@pytest.fixture
def run(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("jobs", "--json")`, signed in at the fake server."""
    monkeypatch.setenv("TRAINYARD_URL", server.url)
    monkeypatch.setenv("TRAINYARD_TOKEN", "ty_secret")

    def invoke(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(app, list(args), input=input)

    return invoke


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text("name: gpt-ddp\n")
    return str(path)


def everything(server: FakeServer) -> None:
    """Answer all that the commands ask for."""
    gets = {
        "/v1/me": as_json(d.ME),
        "/v1/jobs": listed([d.running(120, 2.5)]),
        JOB: as_json(d.ended()),
        f"{JOB}/attempts": listed([d.ATTEMPT]),
        f"{JOB}/events": listed([d.event(1, "Started.")]),
        f"{JOB}/metrics": as_json(d.METRICS),
        f"{JOB}/logs": as_json(d.LOGS),
        f"{JOB}/checkpoints": listed([d.CHECKPOINT]),
        f"{JOB}/artifacts": listed([d.ARTIFACT]),
        f"{JOB}/artifacts/{d.ARTIFACT['id']}": Answer(200, b"hello", "text/plain"),
        f"{JOB}/checkpoints/{d.CHECKPOINT['id']}": Answer(200, b"tar", "application/x-tar"),
        "/v1/nodes": listed([d.NODE]),
        "/v1/datasets": listed([d.DATASET]),
        "/v1/leases": listed([d.LEASE]),
        "/v1/tokens": listed([d.TOKEN]),
        "/v1/users": listed([d.USER]),
        "/v1/admin/audit": listed([d.AUDIT]),
    }
    for path, answer in gets.items():
        server.answer(f"GET {path}", answer)
    server.answer(f"GET {JOB}/stream", streamed(("1", "job", d.job()), ("2", "end", d.ended())))
    posts = {
        "/v1/jobs": as_json(d.job(), 201),
        "/v1/jobs/plan": as_json(d.PLAN_ANSWER),
        f"{JOB}/clone": as_json(d.job(), 201),
        "/v1/leases": as_json(d.LEASE, 201),
        "/v1/datasets": as_json(d.DATASET, 201),
        "/v1/tokens": as_json(d.NEW_TOKEN, 201),
        "/v1/users": as_json(d.USER, 201),
        "/v1/users/ada/login-link": as_json(d.LINK, 201),
        "/v1/admin/enrolments": as_json(d.ENROLMENT, 201),
        "/v1/sessions": as_json(d.NEW_TOKEN, 201),
        "/v1/sessions/link": as_json(d.NEW_TOKEN, 201),
        "/v1/first-start": as_json(d.NEW_TOKEN, 201),
    }
    for verb in ("cancel", "pause", "resume", "requeue"):
        posts[f"{JOB}/{verb}"] = as_json(d.job())
    for verb in ("drain", "resume", "quarantine", "retire"):
        posts[f"/v1/admin/nodes/this-machine/{verb}"] = as_json(d.NODE)
    for path, answer in posts.items():
        server.answer(f"POST {path}", answer)
    for path in (
        f"/v1/leases/{d.LEASE['id']}",
        "/v1/datasets/my-text",
        f"/v1/tokens/{d.TOKEN['id']}",
        "/v1/sessions/current",
    ):
        server.answer(f"DELETE {path}", Answer(204))
    server.answer("PATCH /v1/users/ada", as_json(d.USER))


COMMANDS = [
    ["whoami"],
    ["jobs"],
    ["jobs", "--state", "running", "--name", "gpt", "--limit", "5"],
    ["show", d.JOB_ID],
    ["metrics", d.JOB_ID],
    ["metrics", d.JOB_ID, "--keys", "loss, lr"],
    ["checkpoints", d.JOB_ID],
    ["artifacts", d.JOB_ID],
    ["nodes"],
    ["datasets", "list"],
    ["datasets", "delete", "my-text"],
    ["leases", "list"],
    ["leases", "book", "2026-11-21T14:00Z", "2", "--class", "cpu2"],
    ["leases", "cancel", d.LEASE["id"]],
    ["tokens", "list"],
    ["tokens", "create", "laptop", "--days", "30"],
    ["tokens", "revoke", d.TOKEN["id"]],
    ["admin", "users"],
    ["admin", "audit"],
    ["admin", "disable-user", "ada"],
    ["admin", "enable-user", "ada"],
    ["admin", "set-role", "ada", "staff"],
    ["admin", "login-link", "ada"],
    ["admin", "enrol", "gpu-7", "--class", "a100x4"],
    ["admin", "drain", "this-machine"],
    ["admin", "resume", "this-machine"],
    ["admin", "quarantine", "this-machine"],
    ["admin", "retire", "this-machine"],
    ["cancel", d.JOB_ID],
    ["pause", d.JOB_ID],
    ["resume", d.JOB_ID],
    ["requeue", d.JOB_ID],
    ["clone", d.JOB_ID],
    ["logout"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_every_command_speaks_to_people_and_to_scripts(
    server: FakeServer, run: Run, command: list[str]
) -> None:
    everything(server)
    spoken = run(*command)
    assert spoken.exit_code == 0, spoken.output
    assert spoken.stdout.strip()
    assert not spoken.stdout.lstrip().startswith("{")
    machine = run(*command, "--json")
    assert machine.exit_code == 0, machine.output
    json.loads(machine.stdout)


def test_every_command_is_in_the_list_above(run: Run) -> None:
    tried = {command[0] for command in COMMANDS}
    elsewhere = {"plan", "submit", "follow", "logs", "download", "login"}  # below, one by one
    assert {info.name for info in app.registered_commands} == (tried | elsewhere) - {
        "datasets", "leases", "tokens", "admin"
    }  # fmt: skip


def test_plan_shows_what_it_costs(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    shown = run("plan", job_file)
    assert shown.exit_code == 0
    for part in ("cpu2, 1 node(s) ready (chosen)", "fits", "ddp on 2 rank(s): replicate 2",
                 "1,300,000", "0.03 of 7.2 GiB per rank", "estimated: formula",
                 "Fits on cpu2 and starts at once."):  # fmt: skip
        assert part in shown.stdout
    assert json.loads(run("plan", job_file, "--json").stdout) == d.PLAN_ANSWER


def test_a_plan_that_cannot_run_exits_2_with_the_reasons(
    server: FakeServer, run: Run, job_file: str
) -> None:
    problem = {"code": "heads", "param": "model.heads", "message": "160 is not divisible by 7"}
    plan = {**d.PLAN, "problems": [problem], "warnings": ["Two ranks share one core."]}
    answer = {
        "plans": [{"node_class": "cpu2", "plan": plan, "ready_nodes": 1}],
        "chosen": None,
        "predicted_start": None,
        "reason": "It cannot run.",
    }
    server.answer("POST /v1/jobs/plan", as_json(answer))
    shown = run("plan", job_file)
    assert shown.exit_code == 2
    assert "model.heads: 160 is not divisible by 7" in shown.stdout
    assert "Two ranks share one core." in shown.stdout
    assert run("plan", job_file, "--json").exit_code == 2


def test_submit_sends_the_file_and_says_how_to_watch(
    server: FakeServer, run: Run, job_file: str
) -> None:
    everything(server)
    shown = run("submit", job_file)
    assert shown.exit_code == 0
    assert f"Submitted gpt-ddp as {d.JOB_ID}" in shown.stdout
    assert f"trainyard follow {d.JOB_ID}" in shown.stdout
    assert server.of("POST /v1/jobs")[0].body == b"name: gpt-ddp\n"
    assert json.loads(run("submit", job_file, "--json").stdout)["id"] == d.JOB_ID


def test_submit_reads_standard_input(server: FakeServer, run: Run) -> None:
    everything(server)
    assert run("submit", "-", input="name: from-stdin\n").exit_code == 0
    assert server.of("POST /v1/jobs")[0].body == b"name: from-stdin\n"


def test_submit_and_follow_ends_with_a_summary(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    shown = run("submit", job_file, "--follow")
    assert shown.exit_code == 0, shown.output
    assert "gpt-ddp succeeded" in shown.stdout
    assert "5.56 → 1.83" in shown.stdout


@pytest.mark.parametrize("command", [["follow", d.JOB_ID], ["submit", "FILE", "--follow"]])
@pytest.mark.parametrize("extra", [[], ["--json"]])
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_followed_job_that_does_not_succeed_exits_1(
    server: FakeServer, run: Run, job_file: str, command: list[str], extra: list[str], state: str
) -> None:
    everything(server)
    server.answer(f"GET {JOB}", as_json(d.ended(state)))
    server.answer(f"GET {JOB}/stream", streamed(("1", "end", d.ended(state))))
    filled = [job_file if word == "FILE" else word for word in command]
    assert run(*filled, *extra).exit_code == 1


def test_follow_as_json_is_one_event_a_line(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    shown = run("submit", job_file, "--follow", "--json")
    assert shown.exit_code == 0
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["job", "job", "end"]
    assert lines[-1]["data"]["state"] == "succeeded"


def test_logs_show_rank_and_text(server: FakeServer, run: Run) -> None:
    indented = {**d.LOG_LINE, "rank": 1, "text": "    raise ValueError(\x1b[31m'x'\x1b[0m) [red]"}
    launcher = {**d.LOG_LINE, "rank": -1, "stream": "stderr", "text": "torchrun says"}
    pages = [
        as_json({**d.LOGS, "lines": [d.LOG_LINE], "has_more": True, "cursor": "c1"}),
        as_json({**d.LOGS, "lines": [indented, launcher], "cursor": "c2"}),
    ]
    server.answer(f"GET {JOB}/logs", *pages)
    shown = run("logs", d.JOB_ID, "--rank", "1", "--search", "Error")
    assert shown.stdout.splitlines() == [
        "1   rank 0 step 1",
        "1   rank 1     raise ValueError('x') [red]",
        "1 launcher torchrun says",
    ]
    first, second = server.of(f"GET {JOB}/logs")
    assert first.query == {"rank": ["1"], "search": ["Error"]}
    assert second.query["cursor"] == ["c1"]


def test_logs_as_json_are_one_line_each(server: FakeServer, run: Run) -> None:
    everything(server)
    server.answer(f"GET {JOB}/logs", as_json({**d.LOGS, "lines": []}))
    silent = run("logs", d.JOB_ID)
    assert (silent.exit_code, silent.stdout) == (0, "")
    assert "It has printed nothing." in silent.stderr
    server.answer(f"GET {JOB}/logs", as_json(d.LOGS))
    [line] = run("logs", d.JOB_ID, "--json").stdout.splitlines()
    assert json.loads(line) == d.LOG_LINE


def test_logs_are_followed_until_the_last_line_after_the_end(server: FakeServer, run: Run) -> None:
    late = {**d.LOG_LINE, "line": 1, "text": "the last words"}
    empty = as_json({**d.LOGS, "lines": []})
    server.answer(f"GET {JOB}", as_json(d.running(1, 2.0)), as_json(d.ended()))
    server.answer(
        f"GET {JOB}/logs", as_json(d.LOGS), empty, as_json({**d.LOGS, "lines": [late]}), empty
    )
    shown = run("logs", d.JOB_ID, "-f")
    assert shown.stdout.splitlines() == ["1   rank 0 step 1", "1   rank 0 the last words"]


def test_a_download_is_checked_and_never_overwrites(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    target = tmp_path / "got.txt"
    assert run("download", d.JOB_ID, "sample.txt", "--to", str(target)).exit_code == 0
    assert target.read_bytes() == b"hello"
    again = run("download", d.JOB_ID, "sample.txt", "--to", str(target))
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    shown = run("download", d.JOB_ID, "step-000400", "--to", str(tmp_path), "--json")
    assert json.loads(shown.stdout)["path"] == str(tmp_path / f"{d.JOB_ID}-step-000400.tar")
    missing = run("download", d.JOB_ID, "step-000007", "--to", str(tmp_path))
    assert missing.exit_code == 4
    assert "trainyard artifacts" in missing.stderr


def test_a_spoilt_download_leaves_nothing(server: FakeServer, run: Run, tmp_path: Path) -> None:
    everything(server)
    path = f"GET {JOB}/artifacts/{d.ARTIFACT['id']}"
    server.answer(path, Answer(200, b"jello", "text/plain"))
    shown = run("download", d.JOB_ID, "sample.txt", "--to", str(tmp_path))
    assert shown.exit_code == 6
    assert "SHA-256" in shown.stderr
    server.answer(path, Answer(200, b"hel", "text/plain", cut=True), Answer(200, b"hello"))
    assert run("download", d.JOB_ID, "sample.txt", "--to", str(tmp_path)).exit_code == 0
    assert [file.name for file in tmp_path.glob("*ample*")] == ["sample.txt"]


def test_a_name_from_the_server_is_no_path(
    server: FakeServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(server)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    evil = {**d.ARTIFACT, "path": "../../etc/cron.d/evil"}
    server.answer(f"GET {JOB}/artifacts", listed([evil]))
    assert run("download", d.JOB_ID, evil["path"]).exit_code == 0
    assert [file.name for file in (tmp_path / "here").iterdir()] == ["evil"]


def test_an_upload_is_streamed_with_its_format(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "empty.txt").write_text("")
    assert run("datasets", "upload", str(tmp_path / "a.jsonl"), "my-text").exit_code == 0
    asked = server.of("POST /v1/datasets")[0]
    assert asked.query == {"name": ["my-text"], "format": ["jsonl"]}
    assert asked.body == b'{"text": "a"}\n'
    assert "idempotency-key" in asked.headers
    empty = run("datasets", "upload", str(tmp_path / "empty.txt"), "x")
    assert empty.exit_code == 2
    assert "is empty (0 bytes)" in empty.stderr
    missing = run("datasets", "upload", str(tmp_path / "none.txt"), "x")
    assert missing.exit_code == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, 3), (403, 3), (404, 4), (409, 5), (429, 5), (400, 2), (413, 2), (422, 2), (500, 6)],
)
def test_exit_codes_tell_what_went_wrong(
    server: FakeServer, run: Run, status: int, code: int
) -> None:
    server.answer("GET /v1/nodes", refused(status, "some_code", "A sentence."))
    shown = run("nodes")
    assert shown.exit_code == code
    assert shown.stdout == ""
    assert "A sentence." in shown.stderr
    machine = run("nodes", "--json")
    assert machine.exit_code == code
    assert machine.stdout == ""
    assert json.loads(machine.stderr)["error"]["code"] == "some_code"


def test_no_server_exits_6(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_URL", "http://127.0.0.1:1")
    shown = run("jobs", "--json")
    assert shown.exit_code == 6
    assert json.loads(shown.stderr)["error"]["code"] == "ConnectionFailed"


@pytest.mark.parametrize(
    "args",
    [
        ["no-such-command"],
        ["jobs", "--limit", "0"],
        ["submit"],
        ["submit", "/no/such/file.yaml"],
        ["leases", "book", "soon", "2", "--class", "cpu2"],
        ["leases", "book", "14:00", "2"],
        ["leases", "book", "14:00", "2", "--class", "a", "--node", "b"],
        ["leases", "book", "14:00", "0", "--class", "a"],
        ["datasets", "upload", "f", "n", "--format", "pdf"],
    ],
)
def test_wrong_usage_exits_2(run: Run, args: list[str]) -> None:
    shown = run(*args)
    assert shown.exit_code == 2
    assert shown.stdout == ""


def test_a_file_that_is_no_text_exits_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"name: \xff\xfe")
    shown = run("submit", str(tmp_path / "job.yaml"))
    assert shown.exit_code == 2
    assert "not UTF-8 text (byte 6)" in shown.stderr


def test_nothing_that_others_wrote_reaches_the_terminal_raw(server: FakeServer, run: Run) -> None:
    everything(server)
    server.answer("GET /v1/jobs", listed([d.job(name=HOSTILE, reason=HOSTILE)]))
    server.answer("GET /v1/nodes", listed([{**d.NODE, "name": HOSTILE, "reason": HOSTILE}]))
    server.answer(f"GET {JOB}", as_json(d.job(name=HOSTILE, reason=HOSTILE, state=HOSTILE)))
    server.answer("GET /v1/users", refused(422, HOSTILE, HOSTILE, param=HOSTILE))
    for command in (["jobs"], ["nodes"], ["show", d.JOB_ID], ["admin", "users"]):
        shown = run(*command)
        assert "\x1b" not in shown.stdout + shown.stderr
        assert "\x07" not in shown.stdout + shown.stderr
        assert "[red]x[/]" in shown.stdout + shown.stderr
        machine = run(*command, "--json")
        assert "\x1b" not in machine.stdout + machine.stderr


def test_login_keeps_the_token_for_the_next_command(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(server)
    runner = CliRunner()
    shown = runner.invoke(app, ["login", server.url], input="ada\ncorrect horse battery\n")
    assert shown.exit_code == 0, shown.output
    assert "correct horse battery" not in shown.output
    assert "ty_secret" not in shown.output
    assert json.loads(server.of("POST /v1/sessions")[0].body) == {
        "name": "ada",
        "password": "correct horse battery",
    }
    assert stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert runner.invoke(app, ["whoami"]).exit_code == 0
    assert server.of("GET /v1/me")[0].headers["authorization"] == "Bearer ty_secret"
    assert runner.invoke(app, ["logout"]).exit_code == 0
    assert (
        server.of("DELETE /v1/sessions/current")[0].headers["authorization"] == "Bearer ty_secret"
    )
    assert read(config_path()).servers == {}


def test_login_by_token_link_and_first_start(server: FakeServer) -> None:
    everything(server)
    runner = CliRunner()
    given = runner.invoke(app, ["login", server.url, "--token", "-", "--json"], input="ty_mine\n")
    assert json.loads(given.stdout) == {"url": server.url, "user": "ada"}
    assert read(config_path()).servers[server.url].token == "ty_mine"
    assert "Forgot the token" in runner.invoke(app, ["logout"]).stdout
    assert server.of("DELETE /v1/sessions/current") == []  # a token that was given stays valid

    linked = runner.invoke(app, ["login", "--link", f"{server.url}/login?secret=abc"])
    assert linked.exit_code == 0, linked.output
    assert json.loads(server.of("POST /v1/sessions/link")[0].body) == {"secret": "abc"}

    first = f"{server.url}/first-start?secret=def"
    made = runner.invoke(
        app, ["login", "--link", first, "--json"], input="ada\nlong password 1\nlong password 1\n"
    )
    assert made.exit_code == 0, made.output
    json.loads(made.stdout[made.stdout.index("{") :])  # the runner echoes what is typed before it
    assert json.loads(server.of("POST /v1/first-start")[0].body) == {
        "secret": "def",
        "name": "ada",
        "password": "long password 1",
    }


def test_a_login_that_fails_keeps_nothing(server: FakeServer) -> None:
    server.answer("POST /v1/sessions", refused(401, "unauthenticated", "Wrong name or password."))
    shown = CliRunner().invoke(app, ["login", server.url], input="ada\nwrong\n")
    assert shown.exit_code == 3
    assert not config_path().exists()
    nothing = CliRunner().invoke(app, ["login", "--link", f"{server.url}/login"])
    assert nothing.exit_code == 2
    both = CliRunner().invoke(app, ["login", "--link", "http://x/login?secret=a", "--token", "t"])
    assert both.exit_code == 2


def test_add_user_asks_for_the_password_on_stderr(server: FakeServer, run: Run) -> None:
    everything(server)
    shown = run("admin", "add-user", "bob", "--role", "staff", "--json", input="\n\n")
    assert shown.exit_code == 0, shown.output
    json.loads(shown.stdout)
    assert json.loads(server.of("POST /v1/users")[0].body) == {
        "name": "bob",
        "role": "staff",
        "password": None,
        "zone": "UTC",
    }


def test_a_booking_in_local_time_carries_its_offset(server: FakeServer, run: Run) -> None:
    everything(server)
    assert run("leases", "book", "2027-01-05 14:00", "3", "--node", "north-02").exit_code == 0
    body = json.loads(server.of("POST /v1/leases")[0].body)
    assert body["hours"] == 3
    assert body["node"] == "north-02"
    assert body["start"].startswith("2027-01-05T14:00:00")
    assert body["start"][19:] != ""


# ----------------------------------------------------------------------------- a process of its own


@contextmanager
def process(*args: str, url: str) -> Iterator["subprocess.Popen[str]"]:
    """`python -m trainyard.cli ...` as a person starts it."""
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN, *args],
        env={**os.environ, "TRAINYARD_URL": url, "TRAINYARD_TOKEN": "t"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize("command", ["follow", "logs"])
def test_ctrl_c_stops_watching_and_not_the_job(server: FakeServer, command: str) -> None:
    release = threading.Event()
    everything(server)
    server.answer(f"GET {JOB}", as_json(d.running(1, 2.0)))
    server.answer(f"GET {JOB}/stream", streamed(("1", "job", d.running(1, 2.0)), hold=release))
    args = [command, d.JOB_ID] if command == "follow" else [command, d.JOB_ID, "-f"]
    awaited = f"GET {JOB}/stream" if command == "follow" else f"GET {JOB}/logs"
    with process(*args, url=server.url) as started:
        server.wait_for(awaited, 1)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=30)
    release.set()
    assert started.returncode == 130, err
    assert "the job goes on" in err
    assert "Traceback" not in out + err
    assert {asked.method for asked in server.asked} == {"GET"}


def test_a_reader_that_goes_away_is_no_traceback(server: FakeServer) -> None:
    everything(server)
    many = [{**d.LOG_LINE, "line": i, "text": "x" * 200} for i in range(4000)]
    server.answer(f"GET {JOB}/logs", as_json({**d.LOGS, "lines": many}))
    with process("logs", d.JOB_ID, url=server.url) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.readline()
        started.stdout.close()
        started.wait(30)
        assert "Traceback" not in started.stderr.read()


def on_a_terminal(*args: str, url: str, columns: int = 80) -> str:
    """What a person with an 80 column terminal gets."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {**os.environ, "TRAINYARD_URL": url, "TRAINYARD_TOKEN": "t", "TERM": "xterm"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        environment.pop(name, None)
    started = subprocess.Popen(
        [sys.executable, "-c", MAIN, *args],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    got = b""
    with suppress(OSError):  # EIO: the last writer is gone
        while select.select([ours], [], [], 30)[0]:
            got += os.read(ours, 65536)
    os.close(ours)
    started.kill()
    started.wait()
    return got.decode()


def test_on_a_narrow_terminal_nothing_is_cut(server: FakeServer) -> None:
    everything(server)
    reason = "Waits for job_01k9 on this-machine, which ends at 15:55 at the latest."
    server.answer("GET /v1/jobs", listed([d.job(name="a-job-with-a-long-name", reason=reason)]))
    shown = on_a_terminal("jobs", url=server.url)
    for part in (d.JOB_ID, "a-job-with-a-long-name", "queued", "0/400", reason):
        assert part in shown


def test_on_a_terminal_the_display_ends_with_the_summary(server: FakeServer) -> None:
    everything(server)
    shown = on_a_terminal("follow", d.JOB_ID, url=server.url)
    assert "\x1b[?25l" in shown  # the cursor was hidden while the display ran
    assert shown.rindex("\x1b[?25h") < shown.index("gpt-ddp succeeded")
