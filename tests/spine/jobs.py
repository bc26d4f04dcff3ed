"""Small jobs for a running platform, and what a person would ask about them."""

import uuid
from typing import Any

import httpx2
import psutil

from tests.running import Running, wait_for

TERMINAL = ("succeeded", "failed", "cancelled")
ASKED_EVERY_S = 0.2  # each answer costs the API what the training beside it would use


def spec(*, steps: int = 40, ranks: int = 2, **other: Any) -> dict[str, Any]:
    """A tiny model: a step takes some 10 ms on two busy cores."""
    return {
        "name": "tiny",
        "model": {"name": "gpt", "layers": 2, "width": 32, "heads": 2},
        "data": {"dataset": "python-stdlib", "tokenizer": "bytes", "sequence_length": 64},
        "training": {
            "steps": steps,
            "global_batch_size": 4,
            "learning_rate": 1e-3,
            "warmup_steps": 1,
            "seed": 1,
        },
        "parallelism": {"strategy": "ddp" if ranks > 1 else "single"},
        "checkpoint": {"every_steps": 20, "keep_last": 2},
        "resources": {"nodes": 1, "ranks_per_node": ranks, "wall_time": "20min"},
        **other,
    }


def submit(client: httpx2.Client, body: dict[str, Any]) -> str:
    """Submit and return the job's id."""
    answer = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def get(client: httpx2.Client, job_id: str) -> dict[str, Any]:
    """The job."""
    return dict(client.get(f"/v1/jobs/{job_id}").raise_for_status().json())


def attempts(client: httpx2.Client, job_id: str) -> list[dict[str, Any]]:
    """Its attempts, oldest first."""
    answer = client.get(f"/v1/jobs/{job_id}/attempts").raise_for_status().json()
    return sorted(answer["data"], key=lambda attempt: int(attempt["epoch"]))


def wait_for_step(client: httpx2.Client, job_id: str, step: int) -> dict[str, Any]:
    """Wait until the API has heard of `step`."""

    def reached() -> dict[str, Any] | None:
        job = get(client, job_id)
        assert job["state"] not in TERMINAL, f"{job['state']}: {job['reason']}"
        return job if job["step"] >= step else None

    return wait_for(reached, what=f"step {step}", within_s=90, every_s=ASKED_EVERY_S)


def wait_for_end(client: httpx2.Client, job_id: str, within_s: float = 120) -> dict[str, Any]:
    """Wait for a terminal state."""

    def ended() -> dict[str, Any] | None:
        job = get(client, job_id)
        return job if job["state"] in TERMINAL else None

    return wait_for(ended, what="the end of the job", within_s=within_s, every_s=ASKED_EVERY_S)


def cancel(client: httpx2.Client, job_id: str) -> None:
    """Cancel it and wait until it is."""
    client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    wait_for_end(client, job_id)


def losses(client: httpx2.Client, job_id: str) -> dict[int, float]:
    """Loss by step, every point."""
    answer = client.get(f"/v1/jobs/{job_id}/metrics", params={"keys": "loss", "resolution": 10_000})
    series = answer.raise_for_status().json()["series"]
    return {
        step: value
        for one in series
        for step, value in zip(one["steps"], one["values"], strict=True)
    }


def assert_no_step_is_missing(client: httpx2.Client, job_id: str, *, upto: int) -> None:
    """Every step has one loss, whoever was away when it was taken."""
    seen = losses(client, job_id)
    assert [step for step in range(1, upto + 1) if step not in seen] == []


def training_processes(platform: Running) -> set[int]:
    """Pids of processes at work in a run directory, shims included."""
    return {process.pid for process in platform.ranks()}


def gone(pids: set[int]) -> bool:
    """Whether none of these processes exists any more (zombies do not count)."""
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                return False
        except psutil.NoSuchProcess:
            continue
    return True
