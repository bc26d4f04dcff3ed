"""Ends of leases while somebody types into a notebook, and parts of the platform die meanwhile.

ROUNDS of them are a few minutes; TRAINYARD_TEST_LEASE_ENDS asks for others.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec

import httpx2
import psutil
import pytest

from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, wait_for_end
from tests.spine.short_leases import book_soon, cut
from tests.spine.test_workbench_leases import ahead, lease_state
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

if find_spec("pycrdt") is None:
    pytest.skip("jupyter-collaboration is not installed here", allow_module_level=True)

from tests.spine.notebooks import Typist, source_of

ROUNDS = int(os.environ.get("TRAINYARD_TEST_LEASE_ENDS", "10"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60 * ROUNDS),
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.skipif(bool(why_not_installed()), reason=why_not_installed()),
    pytest.mark.xdist_group("workbenches"),
]
PARTS = ("", "worker", "scheduler", "carrier", "valkey", "api")
WRITTEN_WITHIN_S = 1.0  # what was typed earlier is with the server, whatever dies now


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform() as running:
        yield running


def kill(platform: Running, part: str, job: str) -> None:
    """kill -9 of a part of the platform, or of the workbench's carrier."""
    if part == "carrier":
        folder = platform.data.node / "attempts" / f"{job}.1"
        for process in psutil.process_iter():
            try:
                outside = process.cwd() == str(folder) and process.net_connections("tcp")
            except psutil.Error:
                continue
            if outside:
                process.kill()
    elif part:
        platform.process(part).kill()


def test_no_unsaved_notebook_is_lost_at_the_ends_of_leases(platform: Running) -> None:
    lost = []
    for number in range(ROUNDS):
        part = PARTS[number % len(PARTS)]
        with platform.http() as client:
            wanted, found = one_end(platform, client, part, f"round-{number}.ipynb")
        if not found.startswith(wanted):
            lost.append((number, part, wanted[-60:], found[-60:]))
    assert lost == []


def one_end(platform: Running, client: httpx2.Client, part: str, path: str) -> tuple[str, str]:
    """Type until a lease ends, while a part dies; return what must be there, and what is."""
    lease, _ = book_soon(platform, starts_in_s=1)
    job = ahead(client, lease, kind="jupyter")
    wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab", within_s=60)
    with Typist(platform, job, path) as typist:
        typist.type("begun ")
        end = cut(platform, lease, usable_s=4)
        death = threading.Timer(random.uniform(0.5, 4.5), kill, (platform, part, job))
        death.start()
        number, last = 0, time.monotonic()
        while typist.type(f"{number} "):
            number, last = number + 1, time.monotonic()
            time.sleep(0.02)
            assert time.monotonic() < last + 30, f"its connection is open long after {end}"
        death.join()
        wanted = typist.should_be_kept(before=last - WRITTEN_WITHIN_S)

    def over() -> bool:
        try:
            return lease_state(client, lease) == "ended"
        except httpx2.TransportError:
            return False  # the API has died, and comes again

    wait_for(over, what="the lease's end", within_s=60)
    assert wait_for_end(client, job)["reason_code"] == "lease_ended"

    def kept() -> str | None:
        answer = client.get("/v1/workspace/content", params={"path": path})
        return source_of(answer.text) if answer.status_code == 200 else None

    found = wait_for(kept, what="the notebook", within_s=30)
    deadline = time.monotonic() + 10  # an older snapshot may have it too
    while not found.startswith(wanted) and time.monotonic() < deadline:
        time.sleep(0.2)
        found = kept() or found
    return wanted, found
