"""`trainyard templates`: values by path, files with their code, limits in words."""

import json
from pathlib import Path

from tests.client import documents as d
from tests.client.fake_server import FakeServer, as_json, listed
from tests.client.scripted import Run, everything


def test_values_travel_with_their_types(server: FakeServer, run: Run) -> None:
    everything(server)
    told = run(
        *("templates", "start", "lab-1", "--set", "training.steps=20"),
        *("--set", "parallelism.strategy=fsdp", "--lease", "lease_1"),
    )
    assert told.exit_code == 0, told.output
    assert d.JOB_ID in told.stdout
    assert json.loads(server.of("POST /v1/templates/lab-1/start")[0].body) == {
        "values": {"training.steps": 20, "parallelism.strategy": "fsdp"},
        "anyway": False,
        "lease": "lease_1",
    }
    refused = run("templates", "start", "lab-1", "--set", "steps")
    assert (refused.exit_code, "write FIELD=VALUE" in refused.stderr) == (2, True)
    agenda = {**d.START, "job": None, "agenda": "agenda_1"}
    server.answer("POST /v1/templates/tmpl_2/start", as_json(agenda, 201))
    theirs = {**d.TEMPLATE, "id": "tmpl_2", "owner": "grace"}
    server.answer("GET /v1/templates", listed([d.TEMPLATE, theirs]))
    assert "agenda agenda_1" in run("templates", "start", "grace/lab-1", "--lease", "l").stdout


def test_a_template_says_what_is_open_and_within_which_limits(server: FakeServer, run: Run) -> None:
    everything(server)
    shown = run("templates", "show", "lab-1").stdout
    assert "training.steps = 10  at least 1, at most 100" in shown
    assert "parallelism.strategy = ?  one of ddp, fsdp" in shown


def test_a_file_is_sent_as_it_is_with_the_code_of_its_scripts(
    server: FakeServer, run: Run, tmp_path: Path
) -> None:
    everything(server)
    file, code = tmp_path / "lab.yaml", tmp_path / "code"
    file.write_text("name: lab-1  # ours\n")
    code.mkdir()
    (code / "train.py").write_text("print()")
    told = run("templates", "add", str(file), "--code", str(code))
    assert told.exit_code == 0, told.output
    assert "version 2" in told.stdout
    sent = server.of("POST /v1/templates")[0]
    assert sent.body == b"name: lab-1  # ours\n"
    assert d.CODE["sha256"] in str(sent)
