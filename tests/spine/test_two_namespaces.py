"""Two workers in two network namespaces, as on two machines."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.chaos.link import Links
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import attempts, submit, wait_for_end
from tests.spine.networks import HUB, machines, why_none
from tests.spine.test_two_nodes import over, ready_nodes, same_curve, second_worker

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_none()), reason=why_none() or "they can be made here"),
]


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    """With two machines that see it and each other, and its own node drained."""
    with running_platform() as running, machines("near", "far") as (near, far):
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
