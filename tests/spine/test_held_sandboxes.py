"""A job that has failed on a whole platform: its sandbox is held, and its owner sits down in it."""

import io
import zipfile
from collections.abc import Iterator

import httpx2
import pytest

from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, submit, wait_for_end
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.xdist_group("workbenches"),
]
FAILS = """
import os, pathlib
pathlib.Path("/tmp/state").write_text("as it " + "was")
pathlib.Path(os.environ["TRAINYARD_OUTPUT"], "model.txt").write_text("weights")
print("loss", 4.2)
raise KeyError("no such column")
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform() as running:
        yield running


def fail(client: httpx2.Client, **other: object) -> str:
    """Submit a program that fails, and wait until it is held; return the job's id."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("train.py", FAILS)
    code = client.post(
        "/v1/code", content=archive.getvalue(), headers={"Content-Type": "application/zip"}
    ).raise_for_status()
    body = {
        "name": "fails",
        "script": {"entry": "train.py", "code": code.json()["sha256"], "launcher": "python"},
        "resources": {"wall_time": "20min"},
        "hold_on_failure": "30min",
        **other,
    }
    job = submit(client, body)
    wait_for(lambda: get(client, job)["is_held"], what="the hold", within_s=60)
    return job


def test_its_owner_finds_everything_as_it_was_and_keeps_what_is_mended(platform: Running) -> None:
    with platform.http() as client:
        job = fail(client)
        found = get(client, job)
        assert found["state"] == "running"
        assert "KeyError: 'no such column'" in found["reason"]
        with Looking.at(platform, job) as look:
            shown = look.wait_for("$ ").decode()
            assert shown.index("loss 4.2") < shown.index("Traceback") < shown.index("KeyError")
            assert "Rank 0 " in shown
            look.type("pwd; cat /tmp/state; echo; ls\n")
            shown = look.wait_for("as it was").decode()
            assert "/job/code" in shown
            look.type("echo mended > $TRAINYARD_OUTPUT/model.txt; python -c 'print(6*7)'\n")
            look.wait_for("42")
            client.post(f"/v1/jobs/{job}/release").raise_for_status()
            look.wait_for_end()
        ended = wait_for_end(client, job)
        assert ended["state"] == "failed"
        assert ended["reason_code"] == "user_error"

        def kept() -> str | None:
            files = client.get(f"/v1/jobs/{job}/artifacts").json()["data"]
            return next((file["id"] for file in files if file["path"] == "model.txt"), None)

        file = wait_for(kept, what="the artifact", within_s=30)
        assert client.get(f"/v1/jobs/{job}/artifacts/{file}").text == "mended\n"


def test_the_worker_may_die_meanwhile(platform: Running) -> None:
    with platform.http() as client:
        job = fail(client)
        platform.process("worker").kill()
        with Looking.at(platform, job) as look:
            look.type("cat /tmp/state; echo\n")
            look.wait_for("as it was")
        client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        assert wait_for_end(client, job)["state"] == "cancelled"
