"""Workbenches and the clock of their lease: asked for ahead, ready at its start, over with it."""

from collections.abc import Iterator
from datetime import timedelta

import httpx2
import pytest

from core.base.clock import utc_now
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, submit, wait_for_end
from tests.spine.short_leases import GRACE_S, book_soon, cut
from tests.spine.workbenches import Looking
from worker.scripts.sandbox import find_level

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.xdist_group("workbenches"),
]
WARM_S = 5.0


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform() as running:
        yield running


def ahead(client: httpx2.Client, lease: str, *, kind: str = "terminal") -> str:
    """Ask for a workbench in a lease that has not begun."""
    body = {
        "name": kind,
        "workbench": {"kind": kind},
        "resources": {"wall_time": "24h"},
        "lease": lease,
    }
    job = submit(client, body)
    assert get(client, job)["state"] == "queued"
    return job


def lease_state(client: httpx2.Client, lease: str) -> str:
    """The state of a lease."""
    return str(client.get(f"/v1/leases/{lease}").raise_for_status().json()["state"])


def test_it_is_ready_at_its_lease_s_start_and_ends_with_it_and_the_next_one_finds_its_files(
    platform: Running,
) -> None:
    with platform.http() as client:
        lease, start = book_soon(platform, starts_in_s=2)
        job = ahead(client, lease)
        wait_for(lambda: get(client, job)["state"] == "running", what="the workbench")
        with Looking.at(platform, job) as look:
            look.wait_for("$ ")
            took_s = (utc_now() - start).total_seconds()
            assert 0 < took_s <= WARM_S, f"{took_s:.1f} s from the lease's start to the prompt"
            look.type("echo kept > ~/mine; echo do''ne\n")
            look.wait_for("done")
            end = cut(platform, lease, usable_s=4)
            look.wait_for_end()
        ended = wait_for_end(client, job)
        assert (ended["state"], ended["reason_code"]) == ("cancelled", "lease_ended")
        assert utc_now() < end + timedelta(seconds=GRACE_S)
        wait_for(lambda: lease_state(client, lease) == "ended", what="the lease's end")
        lease, start = book_soon(platform, starts_in_s=1)
        job = ahead(client, lease)
        wait_for(lambda: get(client, job)["state"] == "running", what="the next workbench")
        with Looking.at(platform, job) as look:
            look.type("cat ~/mine\n")
            look.wait_for("kept\r\n")
        client.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        wait_for_end(client, job)
