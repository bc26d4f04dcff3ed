"""Two workers in two network namespaces, as on two machines."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.chaos.link import Links
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import attempts, get, submit, wait_for_end
from tests.spine.networks import HUB, Machine, machines, why_none
from tests.spine.test_two_nodes import (
    checkpoints,
    over,
    ready_nodes,
    same_curve,
    second_worker,
)

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_none()), reason=why_none() or "they can be made here"),
]


@pytest.fixture(scope="module")
def plugs() -> Iterator[dict[str, Machine]]:
    """Two machines by name."""
    with machines("near", "far") as (near, far):
        yield {"near": near, "far": far}


@pytest.fixture(scope="module")
def platform(plugs: dict[str, Machine]) -> Iterator[Running]:
    """With two machines that see it and each other, and its own node drained."""
    near, far = plugs["near"], plugs["far"]
    with running_platform() as running:
        links = Links()
        try:
            url = f"http://{HUB}:{links.open(HUB, [('127.0.0.1', running.port)]).port}"
            with (
                second_worker(running, "near", way=(near.command, url)),
                second_worker(running, "far", way=(far.command, url)),
                running.http() as client,
            ):
                client.post("/v1/admin/nodes/this-machine/drain").raise_for_status()
                wait_for(
                    lambda: sorted(ready_nodes(client)) == ["far", "near"], what="the two alone"
                )
                yield running
        finally:
            links.close()


@pytest.fixture
def client(platform: Running) -> Iterator[httpx2.Client]:
    with platform.http() as http:
        yield http


def test_a_job_over_two_machines_takes_the_curve_of_one(client: httpx2.Client) -> None:
    job_id = submit(client, over(2, steps=40, parallelism={"strategy": "fsdp"}))
    job = wait_for_end(client, job_id)
    assert job["state"] == "succeeded", job["reason"]
    (attempt,) = attempts(client, job_id)
    assert {place["node"] for place in attempt["nodes"]} == {"near", "far"}
    alone = submit(client, over(1, ranks=2, steps=40))
    assert wait_for_end(client, alone)["state"] == "succeeded"
    same_curve(client, job_id, alone)


def test_a_job_whose_machines_lose_each_other_goes_on_once_they_are_together_again(
    platform: Running, client: httpx2.Client, plugs: dict[str, Machine]
) -> None:
    """It takes the ranks their whole patience, 100 s, to give each other up."""
    parallelism = {"strategy": "fsdp"}
    checkpoint = {"every_steps": 100, "keep_last": 2}
    body = over(2, steps=1500, parallelism=parallelism, checkpoint=checkpoint)
    job_id = submit(client, body)
    wait_for(lambda: len(checkpoints(client, job_id)) > 0, what="a checkpoint", within_s=90)
    (attempt,) = attempts(client, job_id)
    lost, kept = (place["node"] for place in reversed(attempt["nodes"]))
    plugs[lost].plug(is_in=False)
    try:
        wait_for(lambda: ready_nodes(client) == [kept], what="silence", within_s=60)
        job = get(client, job_id)
        assert job["state"] == "running", job["reason"]  # what is not heard is not dead

        def has_stopped() -> dict[str, Any] | None:
            job = get(client, job_id)
            return job if job["state"] != "running" else None

        job = wait_for(has_stopped, what="the end on the other", within_s=180)
        # The one that is heard has ended; the other is waited for, and has not been given up.
        assert job["state"] == "stopping", job["reason"]
        (attempt,) = attempts(client, job_id)
        assert attempt["outcome"] is None
        assert lost not in ready_nodes(client)
    finally:
        plugs[lost].plug(is_in=True)
    again = wait_for(
        lambda: (found := attempts(client, job_id))[-1]["epoch"] == 2 and found,
        what="another attempt",
        within_s=90,
    )
    assert again[0]["outcome"] == "stalled", again[0]
    assert again[1]["resumed_from_step"] >= 100
    assert {place["node"] for place in again[1]["nodes"]} == {lost, kept}
    job = wait_for_end(client, job_id)
    assert job["state"] == "succeeded", job["reason"]
    alone = submit(client, over(1, ranks=2, steps=1500, checkpoint=checkpoint))
    assert wait_for_end(client, alone)["state"] == "succeeded"
    same_curve(client, job_id, alone)
