"""Scripts over the API: code by content, refusals with the field, secrets that never come out."""

import hashlib
import io
import json
import stat
import uuid
import zipfile
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from api.scripts.reseal_secrets import reseal
from api.scripts.secret_box import SecretBox
from tests.api.conftest import World, client, enrol
from tests.api.shapes import INVENTORY, free, heartbeat, job_spec, place

pytestmark = pytest.mark.db


def packed(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, source in files.items():
            archive.writestr(zipfile.ZipInfo(path), source)  # of no time: the same bytes again
    return content.getvalue()


def upload(world: World, content: bytes) -> Any:
    return world.ann.post("/v1/code", content=content, headers={"Content-Type": "application/zip"})


def script_spec(code: str, **script: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "script": {"entry": "train.py", "code": code, **script},
        "resources": {"ranks_per_node": 2, "wall_time": "20min"},
    }


def submit(world: World, spec: Mapping[str, Any]) -> Any:
    return world.ann.post("/v1/jobs", json=spec, headers={"Idempotency-Key": uuid.uuid4().hex})


@pytest.fixture
def code(world: World) -> str:
    answer = upload(
        world, packed({"train.py": "print()", "lib/net.py": "", "requirements.txt": ""})
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["sha256"])


def test_code_is_kept_once_by_its_content_and_is_its_owners(world: World, code: str) -> None:
    content = packed({"train.py": "print()", "lib/net.py": "", "requirements.txt": ""})
    view = world.ann.get(f"/v1/code/{code}").json()
    assert view["sha256"] == hashlib.sha256(content).hexdigest() == code
    assert view["paths"] == ["lib/net.py", "requirements.txt", "train.py"]
    again = upload(world, content).json()
    assert again.pop("created_at") > view.pop("created_at")  # retention counts from the last
    assert again == view
    assert world.bob.get(f"/v1/code/{code}").status_code == 404


def test_a_script_is_submitted_shown_and_its_code_fetched_again(world: World, code: str) -> None:
    answer = submit(world, script_spec(code, arguments=["--lr", "1e-3"], launcher="torchrun"))
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert job["plan"] == {
        "strategy": "script",
        "device": "cpu",
        "world_size": 2,
        "nodes": 1,
        "ranks_per_node": 2,
        "problems": [],
        "warnings": [],
    }
    assert job["spec"]["script"]["arguments"] == ["--lr", "1e-3"]
    assert job["steps"] == 0
    fetched = world.ann.get(f"/v1/jobs/{job['id']}/code")
    assert hashlib.sha256(fetched.content).hexdigest() == code
    assert fetched.headers["content-type"] == "application/zip"
    assert world.bob.get(f"/v1/jobs/{job['id']}/code").status_code == 404
    page = world.ann.get(f"/v1/jobs/{job['id']}").json()
    assert page == job
    clone = world.ann.post(f"/v1/jobs/{job['id']}/clone", json={"script": {"arguments": ["7"]}})
    assert clone.json()["spec"]["script"]["arguments"] == ["7"]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"entry": "other.py"}, "script.entry", "not_in_code"),
    ({"requirements": "pyproject.toml"}, "script.requirements", "not_in_code"),
    ({"entry": "../train.py"}, "script.entry", "string_pattern_mismatch"),
    ({"entry": "/etc/passwd"}, "script.entry", "string_pattern_mismatch"),
    ({"launcher": "bash"}, "script.launcher", "literal_error"),
    ({"environment": {"A B": "1"}}, "script.environment.A B", "string_pattern_mismatch"),
    ({"secrets": ["NO_SUCH"]}, "script.secrets", "unknown_secret"),
    ({"code": "0" * 64}, "script.code", "unknown_code"),
    ({"launcher": "python"}, "script.launcher", "launcher_needs_one_rank"),
]


def test_what_is_wrong_with_a_script_is_named(world: World, code: str) -> None:
    for change, param, error in WRONG:
        answer = submit(world, script_spec(**{"code": code, **change}))
        assert answer.status_code == 422, answer.text
        problem = answer.json()
        first = (problem.get("errors") or [problem])[0]
        assert (first["param"].removesuffix(".[key]"), first["code"]) == (param, error), problem


def test_a_class_without_a_sandbox_runs_no_script_but_trains(world: World, code: str) -> None:
    inventory = {**INVENTORY, "sandbox": "", "no_sandbox": "bubblewrap: bwrap is not installed"}
    answer = world.node.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    assert answer.status_code == 200, answer.text
    refused = submit(world, script_spec(code))
    assert refused.status_code == 422
    [error] = refused.json()["errors"]
    assert error["code"] == "sandbox_unavailable"
    assert "bwrap is not installed" in error["message"]
    assert submit(world, job_spec()).status_code == 201


def over_two(code: str, **changes: Any) -> dict[str, Any]:
    resources = {"nodes": 2, "ranks_per_node": 1, "wall_time": "20min"}
    return {**script_spec(code, **changes), "resources": resources}


def test_a_script_on_several_nodes_needs_a_launcher_and_nodes_that_can(
    world: World, code: str
) -> None:
    crate = client(world.app, enrol(world.app, world.database, "crate"))
    crate.post("/v1/node/heartbeat", json=heartbeat())
    for launcher in ("mpirun", "python"):
        refused = submit(world, over_two(code, launcher=launcher))
        [error] = refused.json()["errors"]
        assert (refused.status_code, error["param"], error["code"]) == (
            422,
            "script.launcher",
            "launcher_needs_one_node",
        )
    for launcher in ("torchrun", "accelerate"):
        answer = submit(world, over_two(code, launcher=launcher))
        assert answer.status_code == 201, answer.text
        assert answer.json()["plan"]["world_size"] == 2
    inventory = {**INVENTORY, "no_gang_sandbox": "bubblewrap: /dev/net/tun is not there"}
    crate.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    refused = submit(world, over_two(code, launcher="torchrun"))
    [error] = refused.json()["errors"]
    assert (error["param"], error["code"]) == ("resources.nodes", "sandbox_unavailable")
    assert "/dev/net/tun is not there" in error["message"]
    assert submit(world, script_spec(code)).status_code == 201
    fabric = world.admin.get("/v1/nodes/crate").json()["node_class"], {"programs": "host"}
    path = f"/v1/admin/node-classes/{fabric[0]}/fabric"
    assert world.admin.put(path, json=fabric[1]).status_code == 200
    crate.post("/v1/node/heartbeat", json=heartbeat(inventory=inventory))
    assert submit(world, over_two(code, launcher="torchrun")).status_code == 201, "needs no relay"
    assert world.admin.put(path, json={}).status_code == 200
    assert submit(world, over_two(code, launcher="torchrun")).status_code == 422
    crate.post("/v1/node/heartbeat", json=heartbeat())  # somebody has loaded the module
    assert submit(world, over_two(code, launcher="torchrun")).status_code == 201


def zip_with(name: str, mode: int, *, size: int = 0) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, b"0" * size or b"target")
    return content.getvalue()


HARMFUL: list[tuple[bytes, str]] = [
    (b"no zip at all", "not a zip archive"),
    (packed({}), "has no files"),
    (zip_with("../outside.py", stat.S_IFREG | 0o644), "is not a valid path"),
    (zip_with("/etc/cron.d/x", stat.S_IFREG | 0o644), "is not a valid path"),
    (zip_with("a\\b.py", stat.S_IFREG | 0o644), "is not a valid path"),
    (zip_with("link.py", stat.S_IFLNK | 0o777), "link or a device"),
    (zip_with("device", stat.S_IFBLK | 0o666), "link or a device"),
    (zip_with("bomb.bin", stat.S_IFREG | 0o644, size=30 << 20), "times its size"),
    (packed({f"f{n}": "" for n in range(5001)}), "5,001 files"),
    (packed({"a": "", "a/b": ""}), "a file and a folder"),
]


def test_an_archive_that_could_do_harm_is_refused(world: World) -> None:
    for content, why in HARMFUL:
        answer = upload(world, content)
        assert answer.status_code == 422, (why, answer.text)
        assert answer.json()["code"] == "bad_archive"
        assert why in answer.json()["detail"]
    assert not list(world.store.incoming.iterdir())


def everything_in(world: World) -> str:
    """The whole database as text."""
    with world.database.read() as session:
        tables = session.execute(
            text(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
                if session.get_bind().dialect.name == "sqlite"
                else "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            )
        ).scalars()
        return str([list(session.execute(text(f'SELECT * FROM "{name}"'))) for name in tables])


def test_a_secret_goes_in_and_only_its_attempts_node_gets_it(world: World, code: str) -> None:
    canary = "canary-" + uuid.uuid4().hex
    answer = world.ann.put("/v1/secrets/HF_TOKEN", json={"value": canary})
    assert answer.status_code == 200
    assert set(answer.json()) == {"name", "created_at", "updated_at"}
    assert [one["name"] for one in world.ann.get("/v1/secrets").json()["data"]] == ["HF_TOKEN"]
    assert world.bob.get("/v1/secrets").json()["data"] == []
    job = submit(world, script_spec(code, secrets=["HF_TOKEN"])).json()["id"]
    path = f"/v1/node/secrets/{job}/1"
    assert world.node.get(path).status_code == 404  # it is nobody's yet
    place(world.database, job)
    assert world.node.get(path).json() == {"values": {"HF_TOKEN": canary}}
    assert world.ann.get(path).status_code == 401  # people are nobody there
    orders = world.node.post("/v1/node/heartbeat", json=heartbeat()).text
    seen = [orders, everything_in(world), world.admin.get("/v1/admin/audit").text]
    seen += [world.ann.get(f"/v1/jobs/{job}{rest}").text for rest in ("", "/events", "/attempts")]
    seen.append(world.ann.post(f"/v1/jobs/{job}/clone", json={}).text)
    assert all(canary not in one for one in seen)
    assert json.loads(orders)["attempts"][0]["code"]["sha256"] == code
    assert world.node.get(f"/v1/node/files/{code}").status_code == 200
    assert world.ann.delete("/v1/secrets/HF_TOKEN").status_code == 204
    assert world.node.get(path).status_code == 404


def test_keys_of_secrets_can_be_changed(world: World) -> None:
    world.ann.put("/v1/secrets/TOKEN", json={"value": "as before"})
    keys = world.process.settings.secrets_key_file
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    old = keys.read_text()
    keys.write_text(Fernet.generate_key().decode() + "\n" + old)
    assert reseal(world.database, SecretBox(world.process.settings.secrets_key_file)) == 1
    keys.write_text(keys.read_text().splitlines()[0])
    with world.database.read() as session:
        [sealed] = session.execute(text("SELECT sealed FROM secrets")).scalars()
    assert SecretBox(world.process.settings.secrets_key_file).open(bytes(sealed)) == "as before"


def test_two_scripts_are_compared_by_the_rule_of_certificates(world: World, code: str) -> None:
    jobs = []
    for ranks, losses in ((1, (2.0, 1.0)), (2, (2.0, 1.0000001)), (2, (2.0, 1.1))):
        spec = script_spec(code, launcher="torchrun")
        spec["resources"]["ranks_per_node"] = ranks
        job = submit(world, spec).json()["id"]
        place(world.database, job)
        lines = [{"step": step + 1, "loss": loss} for step, loss in enumerate(losses)]
        batch = {"job_id": job, "epoch": 1, "rank": 0, "first_line": 0, "lines": lines}
        assert world.node.post("/v1/node/metrics", json=batch).status_code == 200
        free(world.database)
        jobs.append(job)
    verdicts = [
        world.ann.get(f"/v1/jobs/{jobs[0]}/comparison", params={"with": other}).json()["verdict"]
        for other in jobs[1:]
    ]
    assert verdicts == ["pass", "fail"]
    other = submit(world, script_spec(code, arguments=["--seed", "2"])).json()["id"]
    refused = world.ann.get(f"/v1/jobs/{jobs[0]}/comparison", params={"with": other})
    assert refused.json()["code"] == "not_comparable"
    assert refused.json()["errors"][0]["param"] == "script.arguments"


def test_a_study_and_a_profile_are_for_recipes(world: World, code: str) -> None:
    study = world.ann.post("/v1/studies?ranks=1,2", json=script_spec(code))
    assert (study.status_code, study.json()["param"]) == (422, "script")
    job = submit(world, script_spec(code)).json()["id"]
    assert world.ann.post(f"/v1/jobs/{job}/profile").status_code == 409
