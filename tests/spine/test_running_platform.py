"""A whole platform as a user meets it: submit, watch, cancel, book; and what breaks under it."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import psutil
import pytest
import redis

from core.wire.doorbell import LOOK, broker_url, queue_of
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
from tests.worker.script_orders import why_no_sandbox
from trainyard import Trainyard
from trainyard.packing import pack

pytestmark = pytest.mark.gloo
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def client(platform: Running) -> Iterator[httpx2.Client]:
    with platform.http() as http:
        yield http


@pytest.mark.slow
def test_a_layout_is_certified_and_two_layouts_are_compared(client: httpx2.Client) -> None:
    wanted = spec(steps=6, verify={"steps": 4})
    jobs = [
        submit(client, {**wanted, "parallelism": {"strategy": strategy}})
        for strategy in ("ddp", "fsdp")
    ]
    for job_id in jobs:
        job = wait_for_end(client, job_id)
        assert job["state"] == "succeeded", job["reason"]
        assert (job["certificate"]["verdict"], job["certificate"]["steps"]) == ("pass", 4)
    answer = client.get(f"/v1/jobs/{jobs[0]}/comparison", params={"with": jobs[1]})
    comparison = answer.raise_for_status().json()
    assert (comparison["verdict"], comparison["steps"]) == ("pass", 6)


@pytest.mark.parametrize("launcher", ["warm", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_job_trains_to_its_end_and_leaves_everything_behind(
    client: httpx2.Client, launcher: str
) -> None:
    job_id = submit(client, spec(steps=40, launcher=launcher))
    job = wait_for_end(client, job_id)
    assert job["state"] == "succeeded", job["reason"]
    assert job["step"] == 40
    assert job["result"]["finished"]
    assert job["result"]["loss_last"] < job["result"]["loss_first"]
    assert sorted(losses(client, job_id)) == list(range(1, 41))
    assert attempts(client, job_id)[0]["launcher"] == launcher

    def kept() -> bool:
        checkpoints = client.get(f"/v1/jobs/{job_id}/checkpoints").json()["data"]
        artifacts = client.get(f"/v1/jobs/{job_id}/artifacts").json()["data"]
        paths = {artifact["path"] for artifact in artifacts}
        return {c["step"] for c in checkpoints} >= {40} and "sample.txt" in paths

    wait_for(kept, what="checkpoints and artifacts in the store")


def test_a_script_of_ones_own_trains_from_a_folder_to_its_artifacts(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    if why_no_sandbox():
        pytest.skip(f"no sandbox can be built here: {why_no_sandbox()}")
    with Trainyard(platform.url, platform.token) as sdk:
        code = sdk.code.upload(pack(EXAMPLES / "scripts"))
        spec = {
            "name": "digits",
            "script": {"entry": "digits.py", "code": code.sha256, "arguments": ["--steps", "30"]},
            "resources": {"ranks_per_node": 2, "wall_time": "10min"},
        }
        job_id = submit(client, spec)
        job = wait_for_end(client, job_id)
        said = client.get(f"/v1/jobs/{job_id}/logs").json()
        assert job["state"] == "succeeded", (job["reason"], said)
        assert (job["step"], job["result"]["finished"]) == (30, True)
        assert job["result"]["loss_last"] < job["result"]["loss_first"]
        assert sorted(losses(client, job_id)) == list(range(1, 31))
        assert attempts(client, job_id)[0]["launcher"] == "torchrun"
        assert any("of the test images are recognised" in line["text"] for line in said["lines"])
        # The exit is told before the files are kept: an empty list is no answer yet.
        wait_for(lambda: sdk.jobs.artifacts(job_id) or None, what="the artifact in the store")
        [checkpoint] = wait_for(lambda: sdk.jobs.checkpoints(job_id) or None, what="its checkpoint")
        assert checkpoint.step == 30
        fetched = sdk.code.download(job_id, tmp_path / "code.zip", sha256=code.sha256)
        assert fetched.stat().st_size == code.size


def test_a_job_without_a_lease_walks_in_and_its_lease_ends_with_it(client: httpx2.Client) -> None:
    job_id = submit(client, spec(steps=10))
    wait_for_end(client, job_id)
    lease_id = attempts(client, job_id)[0]["lease"]

    def ended() -> dict[str, object] | None:
        lease = dict(client.get(f"/v1/leases/{lease_id}").json())
        return lease if lease["state"] == "ended" else None

    lease = wait_for(ended, what="the end of the walk-in")
    assert lease["kind"] == "walk_in"
    assert datetime.fromisoformat(str(lease["hold_end"])).minute == 0


def test_a_second_job_waits_and_says_for_what_and_until_when(client: httpx2.Client) -> None:
    first = submit(client, spec(steps=5000))
    wait_for_step(client, first, 1)
    second = submit(client, spec(steps=10))

    def explained() -> dict[str, object] | None:
        job = get(client, second)
        return job if job["predicted_start"] else None

    job = wait_for(explained, what="a predicted start")
    assert job["state"] == "queued"
    assert len(str(job["reason"])) > 20
    assert client.post(f"/v1/jobs/{first}/cancel").status_code == 200
    assert wait_for_end(client, second)["state"] == "succeeded"
    assert get(client, first)["state"] == "cancelled"


def test_cancel_stops_every_process_of_a_job(platform: Running, client: httpx2.Client) -> None:
    job_id = submit(client, spec(steps=100_000))
    wait_for_step(client, job_id, 5)
    pids = training_processes(platform)
    assert len(pids) >= 2
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    assert wait_for_end(client, job_id)["state"] == "cancelled"
    wait_for(lambda: gone(pids), what="the end of its processes")


def test_pause_keeps_the_progress_and_resume_goes_on_from_it(client: httpx2.Client) -> None:
    job_id = submit(client, spec(steps=200))
    wait_for_step(client, job_id, 30)
    client.post(f"/v1/jobs/{job_id}/pause").raise_for_status()
    wait_for(lambda: get(client, job_id)["state"] == "paused", what="the pause")
    paused_at = get(client, job_id)["step"]
    client.post(f"/v1/jobs/{job_id}/resume").raise_for_status()
    assert wait_for_end(client, job_id)["state"] == "succeeded"
    second = attempts(client, job_id)[1]
    assert second["resumed_from_step"] >= paused_at - 1
    assert sorted(losses(client, job_id)) == list(range(1, 201))


@pytest.mark.slow  # test_survival.py kills one, too
def test_kill_9_of_the_worker_leaves_training_untouched_and_the_next_one_adopts_it(
    platform: Running, client: httpx2.Client
) -> None:
    job_id = submit(client, spec(steps=5000))
    wait_for_step(client, job_id, 5)
    before = training_processes(platform)
    worker = platform.process("worker")
    worker.kill()
    wait_for(lambda: gone({worker.pid}), what="the end of the worker")
    assert wait_for(lambda: platform.process("worker").pid, what="a new worker") != worker.pid
    there = wait_for_step(client, job_id, get(client, job_id)["step"] + 20)["step"]
    assert training_processes(platform) >= before
    assert len(attempts(client, job_id)) == 1
    assert_no_step_is_missing(client, job_id, upto=there)
    cancel(client, job_id)


@pytest.mark.slow
def test_kill_9_of_a_rank_names_the_rank_and_the_signal_and_the_job_goes_on(
    platform: Running, client: httpx2.Client
) -> None:
    job_id = submit(client, spec(steps=1500))
    wait_for_step(client, job_id, 25)
    pids = training_processes(platform)
    victim = next(p for p in platform.ranks() if _rank(p, platform) == 1)
    victim.send_signal(signal.SIGKILL)
    wait_for(lambda: gone(pids), what="the end of all its processes")

    def concluded() -> dict[str, object] | None:
        first = attempts(client, job_id)[0]
        return first if first["outcome"] else None

    first = wait_for(concluded, what="the outcome")
    assert first["outcome"] == "killed"
    assert first["culprit_rank"] == 1
    assert first["signal"] == 9
    assert "ank 1" in str(first["reason"])
    assert "9" in str(first["reason"])
    wait_for(lambda: get(client, job_id)["epoch"] == 2, what="a second attempt", within_s=90)
    cancel(client, job_id)


@pytest.mark.slow  # test_killed_amid_groups.py kills one, too
def test_kill_9_of_the_api_in_the_middle_of_a_submit_makes_one_job(
    platform: Running, client: httpx2.Client
) -> None:
    name = f"once-{uuid.uuid4().hex[:8]}"
    body, key = spec(steps=5, name=name), {"Idempotency-Key": uuid.uuid4().hex}
    api = platform.process("api")
    killer = threading.Timer(0.004, api.kill)  # about when the transaction commits
    killer.start()
    answers = []

    def submitted() -> str | None:
        try:
            answer = client.post("/v1/jobs", json=body, headers=key)
        except httpx2.TransportError:
            return None
        answers.append(answer.status_code)
        return str(answer.json()["id"]) if answer.status_code == 201 else None

    job_id = wait_for(submitted, what="the job")
    killer.join()
    wait_for(lambda: gone({api.pid}), what="the end of the API")
    again = wait_for(submitted, what="the same answer from the next API")
    assert again == job_id
    assert set(answers) == {201}
    jobs = client.get("/v1/jobs", params={"limit": 100}).json()["data"]
    assert [job["id"] for job in jobs if job["name"] == name] == [job_id]
    wait_for_end(client, job_id)


@pytest.mark.slow  # and a fault of `make chaos`
def test_kill_9_of_the_scheduler_only_delays(platform: Running, client: httpx2.Client) -> None:
    platform.process("scheduler").kill()
    job_id = submit(client, spec(steps=10))
    assert wait_for_end(client, job_id)["state"] == "succeeded"


@pytest.mark.slow  # and a fault of `make chaos`
def test_two_schedulers_at_once_start_every_job_once(
    platform: Running, client: httpx2.Client
) -> None:
    environment = {
        **os.environ,
        "TRAINYARD_DATABASE_URL": platform.data.database_url,
        "TRAINYARD_REDIS_URL": valkey.url(platform.data.path),
    }
    second = subprocess.Popen(
        [sys.executable, "-m", "scheduler.main"], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        jobs = [submit(client, spec(steps=5)) for _ in range(3)]
        for job_id in jobs:
            assert wait_for_end(client, job_id)["state"] == "succeeded"
            assert [a["epoch"] for a in attempts(client, job_id)] == [1]
    finally:
        second.kill()
        second.wait()


@pytest.mark.slow  # and a fault of `make chaos`
def test_a_flushed_broker_and_forged_and_doubled_doorbells_change_nothing(
    platform: Running, client: httpx2.Client
) -> None:
    from celery import Celery

    url = valkey.url(platform.data.path)
    broker = redis.Redis.from_url(url)
    forger = Celery(broker=broker_url(url))
    node = client.get("/v1/nodes").json()["data"][0]["name"]
    job_id = submit(client, spec(steps=150))
    wait_for_step(client, job_id, 5)
    broker.flushall()
    for _ in range(100):
        forger.send_task(LOOK, queue=queue_of(node))
        broker.publish("scheduler", b"\xff not a message")
        broker.publish(f"live.{job_id}", "{")
    forger.send_task("no.such.task", args=[1], queue=queue_of(node))
    broker.rpush(queue_of(node), b"garbage")
    job = wait_for_end(client, job_id)
    assert job["state"] == "succeeded"
    assert len(attempts(client, job_id)) == 1
    assert wait_for_end(client, submit(client, spec(steps=5)))["state"] == "succeeded"
    broker.close()
    forger.close()


@pytest.mark.slow  # and a fault of `make chaos`
def test_a_whole_job_runs_while_the_broker_is_frozen(
    platform: Running, client: httpx2.Client
) -> None:
    broker = platform.process("valkey")
    broker.suspend()  # worse than stopped: connections hang instead of failing
    try:
        job_id = submit(client, spec(steps=20))
        assert wait_for_end(client, job_id)["state"] == "succeeded"
    finally:
        broker.resume()


def test_of_32_clients_that_book_one_hour_one_wins(platform: Running) -> None:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=48)
    with platform.http() as client:
        node_class = client.get("/v1/nodes").json()["data"][0]["node_class"]
    barrier = threading.Barrier(32)

    def book(_: int) -> int:
        body = {"node_class": node_class, "start": start.isoformat(), "hours": 1}
        with platform.http() as client:
            barrier.wait()
            return client.post("/v1/leases", json=body).status_code

    with ThreadPoolExecutor(32) as pool:
        codes = Counter(pool.map(book, range(32)))
    assert codes == {201: 1, 409: 31}


@pytest.mark.slow
def test_a_second_up_on_the_same_data_says_so_and_ends(platform: Running) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "standalone", "--data", str(platform.data.path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 3
    assert platform.url in second.stderr


def _rank(process: psutil.Process, platform: Running) -> int | None:
    """The rank of a training process: its open log files tell, forked or not."""
    try:
        names = {file.path for file in process.open_files()}
        names |= {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (1, 2)}
    except (psutil.Error, OSError):
        return None
    for rank in (0, 1):
        if any(f"/rank-{rank}/stdout.log" in name for name in names):
            return rank
    return None
