"""The command line as scripts and people use it."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed, refused, streamed
from tests.client.scripted import JOB, Run, everything
from trainyard.cli.app import app
from trainyard.cli.exit_codes import ExitCode
from trainyard.cli.jobs import following
from trainyard.cli.jobs.scripts import named_input
from trainyard.errors import BadInput
from trainyard.transport.connection import Patience

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "cli.md"
LEASE_A, LEASE_B = (f"lease_01k9{letter * 22}" for letter in "ab")
HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]x[/]"


COMMANDS = [
    ["status"],
    ["whoami"],
    ["storage"],
    ["jobs"],
    ["jobs", "--state", "running", "--name", "gpt", "--limit", "5"],
    ["show", d.JOB_ID],
    ["metrics", d.JOB_ID],
    ["metrics", d.JOB_ID, "--keys", "loss, lr"],
    ["verify", d.JOB_ID],
    ["verify", d.JOB_ID, "--against", "job_01k9othersghjkmnpqrstvwxyz"],
    ["scale", "-", "--ranks", "1,2"],
    ["studies", "list"],
    ["studies", "show", d.STUDY["id"]],
    ["studies", "follow", d.STUDY["id"]],
    ["studies", "cancel", d.STUDY["id"]],
    ["agenda", "plan", "-", "--hours", "2", "--class", "cpu2"],
    ["agenda", "submit", "-", "--lease", d.LEASE["id"]],
    ["agenda", "list"],
    ["agenda", "show", d.AGENDA["id"]],
    ["agenda", "follow", d.AGENDA["id"]],
    ["agenda", "cancel", d.AGENDA["id"]],
    ["checkpoints", d.JOB_ID],
    ["artifacts", d.JOB_ID],
    ["nodes"],
    ["datasets", "list"],
    ["datasets", "delete", "my-text"],
    ["workspace", "show"],
    ["workspace", "list", "--all"],
    ["workspace", "rm", "notes.txt"],
    ["workspace", "snapshots"],
    ["workspace", "restore", "snap_01k9"],
    ["models", "list"],
    ["models", "show", "tiny"],
    ["models", "promote", d.JOB_ID, "step-400", "tiny"],
    ["models", "delete", "tiny"],
    ["leases", "list"],
    ["leases", "book", "2026-11-21T14:00Z", "2", "--class", "cpu2"],
    ["leases", "cancel", d.LEASE["id"]],
    ["share", "model", "tiny", "--group", "course"],
    ["shares"],
    ["course", "list"],
    ["course", "delete", "ml-lab"],
    ["course", "exercise", "ml-lab", "two"],
    ["course", "hand-in", "ml-lab", "two"],
    ["course", "roster", "ml-lab", "two"],
    ["templates", "list"],
    ["templates", "show", "lab-1"],
    ["templates", "start", "lab-1"],
    ["templates", "delete", "lab-1"],
    ["unshare", "model", "tiny"],
    ["leases", "verdict", "2026-11-21", "2", "--node", "this-machine"],
    ["leases", "extend", d.LEASE["id"], "1"],
    ["leases", "release", d.LEASE["id"]],
    ["leases", "swap", d.LEASE["id"], "2026-11-21T14:00Z", "2", "--class", "cpu2"],
    ["leases", "restore", d.LEASE["id"]],
    ["leases", "availability", "--class", "cpu2", "--block", "2"],
    ["leases", "waitlist", "list"],
    ["leases", "waitlist", "join", "2026-11-21", "2", "--class", "cpu2"],
    ["leases", "waitlist", "accept", d.WAIT["id"]],
    ["leases", "waitlist", "decline", d.WAIT["id"]],
    ["leases", "waitlist", "leave", d.WAIT["id"]],
    ["leases", "calendar", "new"],
    ["leases", "calendar", "list"],
    ["leases", "calendar", "revoke", d.FEED["id"]],
    ["tokens", "list"],
    ["tokens", "create", "laptop", "--scope", "jobs", "--expires", "30d"],
    ["tokens", "revoke", d.TOKEN["id"]],
    ["sessions", "list"],
    ["sessions", "end", d.SESSION["id"]],
    ["admin", "users"],
    ["admin", "audit"],
    ["admin", "disable-user", "ada"],
    ["admin", "enable-user", "ada"],
    ["admin", "set-role", "ada", "staff"],
    ["admin", "login-link", "ada"],
    ["admin", "unlink", "ada"],
    ["admin", "network", "show"],
    ["admin", "network", "set", "pypi", "--class", "a100x4"],
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
    ["profile", d.JOB_ID],
    ["snapshot", d.JOB_ID],
    ["tag", d.JOB_ID, "lab-1"],
    ["report", d.JOB_ID, "--when-ended"],
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
    elsewhere = {
        "plan",
        "submit",
        "follow",
        "logs",
        "download",
        "code",
        "login",
        "usage",
        "doctor",
        "ssh",
    }  # below, one by one
    assert {info.name for info in app.registered_commands} == (tried | elsewhere) - {
        "course", "datasets", "models", "templates", "workspace", "studies", "agenda", "leases",
        "nodes", "tokens", "sessions", "admin",
    }  # fmt: skip


def test_the_documentation_names_every_command_and_exit_code() -> None:
    text = DOCUMENTATION.read_text()
    for command in app.registered_commands:
        assert f"`{command.name}" in text or f"trainyard {command.name}" in text, command.name
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            name = f"{group.name} {command.name}"
            assert name in text or f"`{command.name}`" in text, name
    for code in ExitCode:
        assert f"\n| {code.value} | " in text


def test_plan_shows_what_it_costs(server: FakeServer, run: Run, job_file: str) -> None:
    everything(server)
    shown = run("plan", job_file)
    assert shown.exit_code == 0
    for part in ("cpu2, 1 node ready (chosen)", "fits", "ddp on 2 ranks: replicate 2",
                 "1,300,000", "0.03 of 7.2 GiB per rank", "estimated: formula",
                 "0.5 s (0.4 to 0.9), 2,048 tokens/s; a data sheet",
                 "3 min 20 s, 0.11 GPU-hours", "20% of a step", "gradients summed, once",
                 "while computing", "weights sharded (FSDP)", '{"strategy": "fsdp"}', "x 1.10",
                 "rank 1  .0", "Fits on cpu2 and starts at once."):  # fmt: skip
        assert part in shown.stdout, part
    assert json.loads(run("plan", job_file, "--json").stdout) == d.PLAN_ANSWER


def test_plan_shows_arithmetic_that_is_not_the_usual(
    server: FakeServer, run: Run, job_file: str
) -> None:
    lines = ("compiled (torch.compile)", "float32 products", "algorithms", "math kernel")
    everything(server)
    usual = run("plan", job_file).stdout
    assert not [line for line in lines if line in usual]
    plan = {**d.PLAN, "compiles": True, "float32_matmul": "tf32", "deterministic": True}
    plan["attention"] = "math"
    answer = {**d.PLAN_ANSWER, "plans": [{**d.CLASS_PLAN, "plan": plan}]}
    server.answer("POST /v1/jobs/plan", as_json(answer))
    shown = run("plan", job_file).stdout
    assert not [line for line in (*lines, "tf32", "deterministic") if line not in shown]


def test_bars_of_a_plan_without_totals_fit_on_the_line(
    server: FakeServer, run: Run, job_file: str
) -> None:
    plan = {**d.PLAN, "needed_gib": 0.0, "capacity_gib": 0.0}
    nothing = {**plan, "memory": [{**term, "gib": 0.0} for term in d.PLAN["memory"]]}
    for made, longest in ((plan, 24), (nothing, 0)):
        answer = {**d.PLAN_ANSWER, "plans": [{**d.CLASS_PLAN, "plan": made}]}
        server.answer("POST /v1/jobs/plan", as_json(answer))
        shown = run("plan", job_file).stdout
        assert max(line.count("█") for line in shown.splitlines()) == longest


def test_plan_accuracy_tells_by_kind_of_run_what_was_learned(
    server: FakeServer, run: Run, job_file: str
) -> None:
    server.answer("GET /v1/jobs/plan/accuracy", as_json(d.ACCURACY))
    shown = run("plan", "--accuracy")
    assert shown.exit_code == 0
    for part in ("llama", "fsdp", "12", "-7.4%", "-10.0%", "+3.1%", "x 1.09"):
        assert part in shown.stdout, part
    assert json.loads(run("plan", "--accuracy", "--json").stdout) == d.ACCURACY
    assert run("plan", "--accuracy", job_file).exit_code == 2
    assert run("plan").exit_code == 2


def test_a_plan_that_cannot_run_exits_2_with_the_reasons(
    server: FakeServer, run: Run, job_file: str
) -> None:
    problem = {"code": "heads", "param": "model.heads", "message": "160 is not divisible by 7"}
    plan = {**d.PLAN, "problems": [problem], "warnings": ["Two ranks share one core."]}
    answer = {
        **d.PLAN_ANSWER,
        "plans": [{**d.CLASS_PLAN, "node_class": "cpu2", "plan": plan}],
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
    assert "The job has printed nothing." in silent.stderr
    server.answer(f"GET {JOB}/logs", as_json(d.LOGS))
    [line] = run("logs", d.JOB_ID, "--json").stdout.splitlines()
    assert json.loads(line) == d.LOG_LINE


def test_logs_are_followed_until_the_last_line_after_the_end(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "POLL_S", 0.0)
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


def test_a_models_folder_is_sent_as_an_archive_of_what_is_needed(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    folder = tmp_path / "My model"
    folder.mkdir()
    contents = {"config.json": b"{}", "model.safetensors": b"x" * 700, "tokenizer.json": b"[]"}
    for name, content in {**contents, "README.md": b"hi", "pytorch_model.bin": b"no"}.items():
        (folder / name).write_bytes(content)
    uploaded = run("models", "upload", str(folder))
    assert uploaded.exit_code == 0, uploaded.stderr
    assert "  norm_epsilon: 1.0e-06\n" in uploaded.stdout
    assert "  tokenizer: huggingface\n  vocabulary_size: 151936\n" in uploaded.stdout
    asked = server.of("POST /v1/models")[0]
    assert asked.query == {"name": ["My-model"]}
    assert int(asked.headers["content-length"]) == len(asked.body)
    with tarfile.open(fileobj=io.BytesIO(asked.body)) as archive:
        found = {one.name: archive.extractfile(one) for one in archive}
        assert {name: file.read() for name, file in found.items() if file} == contents
    (folder / "model.safetensors").unlink()
    refused = run("models", "upload", str(folder), "x")
    assert refused.exit_code == 2
    assert "Save the model as safetensors" in refused.stderr
    assert run("models", "upload", str(tmp_path / "none"), "x").exit_code == 2


def test_a_checkpoint_is_promoted_by_its_step(server: FakeServer, run: Run) -> None:
    everything(server)
    done = run("models", "promote", d.JOB_ID, "step-400", "tiny")
    assert done.exit_code == 0, done.stderr
    assert "  checkpoint: tiny\n" in done.stdout
    [asked] = server.of("POST /v1/models/promoted")
    assert json.loads(asked.body) == {"job": d.JOB_ID, "step": 400, "name": "tiny"}
    refused = run("models", "promote", d.JOB_ID, "last", "tiny")
    assert (refused.exit_code, "such as step-400" in refused.stderr) == (2, True)


def test_a_model_is_fetched_by_a_job_that_asks_for_the_hub(server: FakeServer, run: Run) -> None:
    everything(server)
    asked = ("models", "fetch", "lab/tiny", "--revision", "v1", "--secret", "HF_TOKEN")
    done = run(*asked)
    assert done.exit_code == 0, done.output
    assert f"fetched from {d.FETCHED['origin']['hub']} by {d.JOB_ID}" in done.stdout
    [sent] = server.of("POST /v1/jobs")
    spec = json.loads(sent.body)
    assert spec["network"] == ["huggingface"]
    assert spec["script"]["secrets"] == ["HF_TOKEN"]
    assert spec["script"]["arguments"][:3] == ["model", "lab/tiny", "v1"]
    assert not any(name.endswith((".bin", ".pt")) for name in spec["script"]["arguments"])
    [taken] = server.of("POST /v1/models/fetched")
    assert json.loads(taken.body) == {"job": d.JOB_ID, "name": "tiny"}
    later = run("models", "fetch", "lab/tiny", "mine", "--job", d.JOB_ID, "--json")
    assert json.loads(later.stdout)["origin"] == d.FETCHED["origin"]
    assert len(server.of("POST /v1/jobs")) == 1
    refused = run("models", "fetch", "../tiny")
    assert (refused.exit_code, "as owner/name" in refused.stderr) == (2, True)


def test_a_dataset_is_fetched_by_the_patterns_that_are_asked_for(
    server: FakeServer, run: Run
) -> None:
    everything(server)
    done = run("datasets", "fetch", "lab/rows", "mine", "--files", "data/*.parquet")
    assert done.exit_code == 0, done.output
    assert f"fetched from {d.FETCHED_DATASET['origin']['hub']}" in done.stdout
    spec = json.loads(server.of("POST /v1/jobs")[0].body)
    assert spec["script"]["arguments"] == ["dataset", "lab/rows", "main", "data/*.parquet"]
    assert (spec["name"], spec["network"]) == ("fetch-mine", ["huggingface"])
    [taken] = server.of("POST /v1/datasets/fetched")
    assert json.loads(taken.body) == {"job": d.JOB_ID, "name": "mine"}


def test_a_mirror_is_asked_for_by_its_host(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(server)
    done = run("models", "fetch", "lab/tiny", "--hub", "https://hub.lab.example:8443/api/hf/")
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("TRAINYARD_HUB", "https://hub.lab.example")
    assert run("datasets", "fetch", "lab/rows").exit_code == 0
    model, dataset = (json.loads(sent.body) for sent in server.of("POST /v1/jobs"))
    assert model["network"] == ["hub.lab.example:8443"]
    assert model["script"]["environment"] == {"HF_ENDPOINT": "https://hub.lab.example:8443/api/hf"}
    assert dataset["network"] == ["hub.lab.example"]
    for wrong in ("http://hub.lab.example", "hub.lab.example", "https://me@hub", "https://a:x"):
        refused = run("models", "fetch", "lab/tiny", "--hub", wrong)
        assert (refused.exit_code, "write its address as https://" in refused.stderr) == (2, True)
    assert len(server.of("POST /v1/jobs")) == 2


def test_hosts_are_listed_for_a_class_or_a_lab(server: FakeServer, run: Run) -> None:
    everything(server)
    shown = run("admin", "network", "show")
    assert "class a100x4  pypi, *.hf.co" in shown.stdout
    assert "pypi: pypi.org, files.pythonhosted.org" in shown.stderr
    done = run("admin", "network", "set", "pypi", "*.hf.co", "--class", "a100x4")
    assert "Programs of class a100x4 may reach: pypi, *.hf.co" in done.stdout
    [asked] = server.of("PUT /v1/admin/network/node-classes/a100x4")
    assert json.loads(asked.body) == {"hosts": ["pypi", "*.hf.co"]}
    removed = run("admin", "network", "set", "--none", "--lab", "vision")
    assert "Lab vision has no list any more." in removed.stdout
    for wrong in (
        ["pypi"],
        ["pypi", "--class", "a", "--lab", "b"],
        ["--class", "a"],
        ["pypi", "--none", "--class", "a"],
    ):
        assert run("admin", "network", "set", *wrong).exit_code == 2


def test_an_input_is_named_by_its_kind_and_the_name_inside() -> None:
    assert named_input("dataset=rows") == {"dataset": "rows"}
    assert named_input("model=tiny,name=lab/tiny") == {"model": "tiny", "name": "lab/tiny"}
    for wrong in ("rows", "dataset=rows,lab/rows", "dataset=a,dataset=b"):
        with pytest.raises(BadInput, match="write dataset=NAME"):
            named_input(wrong)


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
    monkeypatch.setattr(Patience, "wait_s", lambda *_, **__: 0.0)
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
        ["leases", "waitlist", "join", "14:00", "2"],
        ["leases", "swap", "l", "14:00", "2", "--node", "a", "--node", "b"],
        ["leases", "book", "14:00", "2", "--class", "a", "--node", "b"],
        ["leases", "book", "14:00", "0", "--class", "a"],
        ["leases", "book", "2026-11-22", "2", "--class", "a", "--until", "14:00"],
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


def test_a_range_of_starts_is_sent_with_its_preference(server: FakeServer, run: Run) -> None:
    everything(server)
    args = ["2027-01-05 08:00", "3", "--class", "a100x4", "--until", "14:00", "--snug"]
    for command, path in (("verdict", "/v1/leases/verdict"), ("book", "/v1/leases")):
        assert run("leases", command, *args).exit_code == 0
        body = json.loads(server.of(f"POST {path}")[0].body)
        assert body["first_start"].startswith("2027-01-05T08:00:00")
        assert body["last_start"].startswith("2027-01-05T14:00:00")
        assert (body["prefer"], "start" in body) == ("snuggest", False)


def test_a_number_of_gpus_is_sent_and_shown(server: FakeServer, run: Run) -> None:
    everything(server)
    for command, path in (("verdict", "/v1/leases/verdict"), ("book", "/v1/leases")):
        args = ["2027-01-05 08:00", "3", "--class", "a100x4"]
        assert run("leases", command, *args, "--gpus", "1").exit_code == 0
        assert run("leases", command, *args).exit_code == 0
        part, whole = (json.loads(sent.body) for sent in server.of(f"POST {path}"))
        assert (part["gpus"], "gpus" in whole) == (1, False)


def test_a_booking_in_local_time_carries_its_offset(server: FakeServer, run: Run) -> None:
    everything(server)
    assert run("leases", "book", "2027-01-05 14:00", "3", "--node", "north-02").exit_code == 0
    body = json.loads(server.of("POST /v1/leases")[0].body)
    assert body["hours"] == 3
    assert body["node"] == "north-02"
    assert body["start"].startswith("2027-01-05T14:00:00")
    assert body["start"][19:] != ""


def test_submit_packs_and_uploads_the_folder_of_a_script(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    server.answer("POST /v1/code", as_json({**d.CODE, "sha256": "ab" * 32}, 201))
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / ".env").write_text("TOKEN=1")
    shown = run(
        *("submit", "--script", str(tmp_path / "train.py"), "--ranks", "2", "--wall-time", "20min"),
        *(
            "--folder",
            str(tmp_path),
            "--env",
            "MODE=fast",
            "--secret",
            "HF_TOKEN",
            "--",
            "--lr",
            "1e-3",
            "-v",
        ),
    )
    assert shown.exit_code == 0, shown.output
    assert "Packed 1 file of" in shown.stderr
    assert "  train.py (7 B)" in shown.stderr
    assert "Left out: .env" in shown.stderr
    assert f"trainyard follow {d.JOB_ID}" in shown.stdout
    sent = json.loads(server.of("POST /v1/jobs")[0].body)
    assert sent["name"] == "train"
    assert sent["script"] == {
        "entry": "train.py",
        "code": "ab" * 32,
        "arguments": ["--lr", "1e-3", "-v"],
        "launcher": "torchrun",
        "environment": {"MODE": "fast"},
        "secrets": ["HF_TOKEN"],
        "requirements": None,
    }
    assert sent["resources"] == {"ranks_per_node": 2, "wall_time": "20min"}
    own = ("submit", "--script", str(tmp_path / "train.py"), "--wall-time", "20min")
    for words, named in (
        (
            ["--lease", LEASE_A],
            {"lease": LEASE_A},
        ),
        (
            [
                "--lease",
                LEASE_A,
                "--lease",
                LEASE_B,
            ],
            {"leases": [LEASE_A, LEASE_B]},
        ),
    ):
        assert run(*own, "--nodes", "2", *words).exit_code == 0
        sent = json.loads(server.of("POST /v1/jobs")[-1].body)
        assert sent["resources"]["nodes"] == 2
        assert {key: sent[key] for key in ("lease", "leases") if key in sent} == named
    for wrong in (
        ["submit"],
        ["submit", "--script", str(tmp_path / "train.py")],
        ["submit", "--script", str(tmp_path / "other.py"), "--wall-time", "20min"],
        ["submit", "--script", str(tmp_path / "train.py"), "--wall-time", "20min", "--env", "A"],
    ):
        assert run(*wrong).exit_code == 2, wrong


def test_archives_of_code_are_listed_with_who_needs_them_and_deleted_by_their_beginning(
    server: FakeServer, run: Run
) -> None:
    other = {**d.CODE_LINE, "sha256": "0" * 11 + "1" * 53, "jobs": []}
    server.answer("GET /v1/code", listed([d.CODE_LINE, other]))
    server.answer(f"DELETE /v1/code/{other['sha256']}", Answer(204, b"", "text/plain"))
    shown = run("archives", "list").stdout
    assert "job_1" in shown
    assert "no job" in shown
    assert run("archives", "delete", "0" * 7).exit_code == 2
    vague = run("archives", "delete", "0" * 11)
    assert (vague.exit_code, "2 archives begin with" in vague.stderr) == (2, True)
    done = run("archives", "delete", "0" * 11 + "1")
    assert done.exit_code == 0, done.output
    assert "Deleted 000000000001" in done.stdout


def test_what_is_sent_is_shown_and_what_was_left_out_is_remembered(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    server.answer("POST /v1/code", as_json({**d.CODE, "sha256": "ab" * 32}, 201))
    (tmp_path / "train.py").write_text("import net")
    (tmp_path / ".gitignore").write_text("data/")
    for name in [f"part{number}.py" for number in range(11)] + ["net.py", "data/x", "deploy.key"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1" if name != "net.py" else "1" * 5000)
    own = ("submit", "--script", str(tmp_path / "train.py"), "--wall-time", "20min")
    said = run(*own).stderr
    assert "Packed 13 files of" in said
    assert "  net.py (4.9 KiB)" in said
    assert "and 3 more; the largest is net.py (4.9 KiB)" in said
    assert "Left out: data/ (named by an ignore file)" in said
    assert "Left out: deploy.key (it may hold a key" in said
    assert "--include PATH" in said
    assert json.loads(server.of("POST /v1/jobs")[-1].body)["script"]["left_out"] == ["data/"]
    said = run(*own, "--include", "data").stderr
    assert "Packed 14 files" in said
    assert "left_out" not in json.loads(server.of("POST /v1/jobs")[-1].body)["script"]
    (tmp_path / "train.py").write_text("import sys")
    assert "It uses no file beside it" in run(*own).stderr


def test_options_of_submit_are_laid_over_a_file_or_refused(
    server: FakeServer, run: Run, job_file: str
) -> None:
    everything(server)
    terms = ("--nodes", "4", "--ranks", "2", "--name", "other", "--wall-time", "9h")
    terms += ("--allow-oom", "--report-when-ended")
    shown = run(
        "submit",
        job_file,
        *terms,
        "--node-class",
        "big",
        "--lease",
        LEASE_A,
    )
    assert shown.exit_code == 0, shown.output
    sent = server.of("POST /v1/jobs")[-1]
    assert sent.body.decode() == Path(job_file).read_text()
    assert json.loads(sent.query["changes"][0]) == {
        "name": "other",
        "resources": {
            "nodes": 4,
            "ranks_per_node": 2,
            "wall_time": "9h",
            "node_class": "big",
            "allow_oom": True,
        },
        "report_when_ended": True,
        "lease": LEASE_A,
        "leases": None,
    }
    for option in ("--env=A=1", "--launcher=python", "--include=data", "--secret=TOKEN", "--yes"):
        refused = run("submit", job_file, option)
        assert refused.exit_code == 2
        assert f"{option.partition('=')[0]} does not apply to a file" in refused.stderr
    refused = run("submit", "raise.py")
    assert refused.exit_code == 2
    assert "trainyard submit --script raise.py" in refused.stderr


def test_secrets_are_set_from_a_pipe_and_listed_without_values(
    server: FakeServer, run: Run
) -> None:
    server.answer("PUT /v1/secrets/HF_TOKEN", as_json(d.SECRET))
    server.answer("GET /v1/secrets", listed([d.SECRET]))
    shown = run("secrets", "set", "HF_TOKEN", input="hf_value\n")
    assert shown.exit_code == 0, shown.output
    assert json.loads(server.of("PUT /v1/secrets/HF_TOKEN")[0].body) == {"value": "hf_value"}
    assert "hf_value" not in shown.output
    assert "HF_TOKEN" in run("secrets", "list").stdout


def test_the_use_of_gpus_is_the_mean_of_those_that_report_it(server: FakeServer, run: Run) -> None:
    for told, said in (([90, None, 30], "60 % GPU"), ([None, None], "not known")):
        telemetry = {**d.NODE["telemetry"], "gpu_pct": told}
        server.answer("GET /v1/nodes", listed([{**d.NODE, "telemetry": telemetry}]))
        assert said in run("nodes").stdout


@pytest.mark.parametrize(
    ("sharing", "why", "said"),
    [
        ("full", "", "Parts of it can be leased."),
        ("recipes", "no cgroup", "leased for recipes; scripts run alone: no cgroup."),
        ("none", "it has one slot", "Leased whole: it has one slot."),
    ],
)
def test_a_node_says_how_it_is_leased(
    server: FakeServer, run: Run, sharing: str, why: str, said: str
) -> None:
    shared = {**d.NODE, "sharing": sharing, "no_sharing": why, "users": ["ada", "bob"]}
    server.answer("GET /v1/nodes/this-machine", as_json(shared))
    assert said in run("nodes", "show", "this-machine").stdout
    server.answer("GET /v1/nodes", listed([shared]))
    assert "ada, bob" in run("nodes").stdout
