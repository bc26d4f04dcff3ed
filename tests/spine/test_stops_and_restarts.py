"""Ctrl-C, kill -9 and restart of the whole platform, and a resume on another node."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from standalone import valkey
from tests.running import Running, wait_for
from tests.spine.jobs import (
    assert_no_step_is_missing,
    attempts,
    cancel,
    get,
    gone,
    losses,
    spec,
    submit,
    training_processes,
    wait_for_end,
    wait_for_step,
)

pytestmark = pytest.mark.gloo


def test_ctrl_c_saves_and_requeues_and_the_next_up_resumes(platform: Running) -> None:
    with platform.http() as client:
        job_id = submit(client, spec(steps=5000))
        reached = wait_for_step(client, job_id, 30)["step"]
    children = {child.pid for child in psutil.Process(platform.up_pid()).children()}
    pids = training_processes(platform)
    assert platform.interrupt() == 0, platform.output()
    wait_for(lambda: gone(pids | children), what="the end of every process")
    platform.start()
    with platform.http() as client:
        wait_for(lambda: len(attempts(client, job_id)) == 2, what="the second attempt")
        first, second = attempts(client, job_id)
        there = wait_for_step(client, job_id, second["resumed_from_step"] + 20)["step"]
        assert first["outcome"] == "preempted"
        assert second["resumed_from_step"] >= reached
        assert_no_step_is_missing(client, job_id, upto=there)
        cancel(client, job_id)


@pytest.mark.slow
def test_kill_9_of_up_leaves_training_alone_and_the_next_up_adopts_it(platform: Running) -> None:
    with platform.http() as client:
        job_id = submit(client, spec(steps=5000))
        reached = wait_for_step(client, job_id, 10)["step"]
    before = training_processes(platform)
    children = {child.pid for child in psutil.Process(platform.up_pid()).children()}
    platform.kill()
    wait_for(lambda: gone(children), what="the end of the platform's own processes")
    assert not gone(before)
    platform.start()
    with platform.http() as client:
        there = wait_for_step(client, job_id, reached + 100)["step"]
        assert len(attempts(client, job_id)) == 1
        assert_no_step_is_missing(client, job_id, upto=there)
        cancel(client, job_id)


@pytest.mark.slow
def test_a_job_goes_on_at_a_node_whose_disk_never_saw_it(platform: Running, tmp_path: Path) -> None:
    with platform.http() as client:
        job_id = submit(client, spec(steps=200))
        wait_for_step(client, job_id, 30)
        first_node = get(client, job_id)["node"]
        node_id = next(
            node["id"]
            for node in client.get("/v1/nodes").json()["data"]
            if node["name"] == first_node
        )
        client.post(f"/v1/admin/nodes/{node_id}/drain").raise_for_status()
        enrolment = client.post("/v1/admin/enrolments", json={"name": "second"})
        assert enrolment.status_code == 201, enrolment.text
        environment = {
            **os.environ,
            "TRAINYARD_API_URL": platform.url,
            "TRAINYARD_REDIS_URL": valkey.url(platform.data.path),
            "TRAINYARD_DATA": str(tmp_path / "second"),
            "TRAINYARD_ENROL_TOKEN": enrolment.json()["token"],
        }
        with open(tmp_path / "worker.log", "w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "worker.main"], env=environment, stdout=log, stderr=log
            )
        try:
            client.post(f"/v1/jobs/{job_id}/requeue").raise_for_status()
            job = wait_for_end(client, job_id, within_s=150)
            assert job["state"] == "succeeded", (tmp_path / "worker.log").read_text()
            first, second = attempts(client, job_id)
            assert (first["node"], second["node"]) == (first_node, "second")
            assert second["resumed_from_step"] >= 20
            assert sorted(losses(client, job_id)) == list(range(1, 201))
        finally:
            worker.terminate()
            worker.wait(timeout=30)
            for node, act in (("second", "drain"), (first_node, "resume")):
                client.post(f"/v1/admin/nodes/{node}/{act}").raise_for_status()
