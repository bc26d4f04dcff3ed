"""Ends of leases while somebody types into a notebook, and parts of the platform die meanwhile.

LANES platforms end leases beside each other, ROUNDS of them together, in a few minutes;
TRAINYARD_TEST_LEASE_ENDS asks for others.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, wait_for_end
from tests.spine.short_leases import book_soon, cut
from tests.spine.test_workbench_leases import ahead, lease_state
from worker.attempts import Attempt
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import why_not_installed

if find_spec("pycrdt") is None:
    pytest.skip("jupyter-collaboration is not installed here", allow_module_level=True)

from tests.spine.notebooks import Typist, source_of

log = logging.getLogger(__name__)
ROUNDS = int(os.environ.get("TRAINYARD_TEST_LEASE_ENDS", "96"))
LANES = 4  # a lease's end is mostly waiting: four at once keep two cores busy
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300 + 30 * ROUNDS),
    pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here"),
    pytest.mark.skipif(bool(why_not_installed()), reason=why_not_installed()),
    pytest.mark.xdist_group("workbenches"),
]
PARTS = ("", "worker", "scheduler", "carrier", "valkey", "api", "kernel", "server")
BELOW_SHIM: dict[str, Callable[[psutil.Process], bool]] = {
    "carrier": lambda one: "attempts" in one.cwd() and bool(one.net_connections("tcp")),
    "server": lambda one: (
        one.cmdline()[1:3] == ["-m", "jupyterlab"]
    ),  # the porter has it further on
    "kernel": lambda one: "ipykernel_launcher" in one.cmdline(),
}
WRITTEN_WITHIN_S = 1.0  # what was typed earlier is with the server, whatever dies now


@dataclass
class Ends:
    """Ends so far, of all platforms together."""

    rounds: Iterator[int]
    lost: list[tuple[int, str, str, str]] = field(default_factory=list)
    num: int = 0


def kill(platform: Running, part: str, job: str) -> None:
    """kill -9 of a part of the platform, or of the workbench's carrier, server or kernel."""
    if part in BELOW_SHIM:
        for process in below(platform, job):
            with suppress(psutil.Error):
                if BELOW_SHIM[part](process):
                    process.kill()
    elif part:
        platform.process(part).kill()


def attempt_folder(platform: Running, job: str) -> Path:
    return platform.data.node / "attempts" / f"{job}.1"


def below(platform: Running, job: str) -> list[psutil.Process]:
    """The processes of a workbench, inside and outside of its sandbox: those below its shim."""
    shim = Attempt(attempt_folder(platform, job)).shim()
    if shim is None or not psutil.pid_exists(shim.pid):
        return []
    return psutil.Process(shim.pid).children(recursive=True)


def test_no_unsaved_notebook_is_lost_at_the_ends_of_leases() -> None:
    ends = Ends(iter(range(ROUNDS)))
    with ThreadPoolExecutor(LANES) as lanes:
        for done in [lanes.submit(end_leases, ends) for _ in range(min(LANES, ROUNDS))]:
            done.result()
    log.info("%d ends of leases, %d notebooks lost", ends.num, len(ends.lost))
    assert ends.num == ROUNDS
    assert ends.lost == []


def end_leases(ends: Ends) -> None:
    """End leases on a platform of one's own, until all rounds are taken."""
    with running_platform() as platform:
        for number in ends.rounds:
            part = PARTS[number % len(PARTS)]
            with platform.http() as client:
                wanted, found = one_end(platform, client, part, f"round-{number}.ipynb")
            ends.num += 1
            if not found.startswith(wanted):
                ends.lost.append((number, part, wanted[-60:], found[-60:]))
            log.info("end %d (%s dies): %d characters kept", number, part or "nobody", len(wanted))


def one_end(platform: Running, client: httpx2.Client, part: str, path: str) -> tuple[str, str]:
    """Type until a lease ends, while a part dies; return what must be there, and what is."""
    lease, _ = book_soon(platform, starts_in_s=1)
    job = ahead(client, lease, kind="jupyter")
    wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab", within_s=60)
    with Typist(platform, job, path) as typist:
        typist.type("begun ")
        if part == "kernel":
            typist.browser.post("/api/kernels", json={}, headers=typist.headers).raise_for_status()
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
    # Without its server it waits to start anew, for which the lease is too short; but the server
    # may die while it is asked to end.
    over_by = ("lease_ends", "lease_ended") if part == "server" else ("lease_ended",)
    ended = wait_for_end(client, job)
    assert ended["state"] == "cancelled", ended["reason"]
    assert ended["reason_code"] in over_by, ended["reason"]

    def kept() -> str | None:
        answer = client.get("/v1/workspace/content", params={"path": path})
        if answer.status_code != 200:
            return None
        try:
            return source_of(answer.text)
        except ValueError:
            return ""  # a look at the workspace while Jupyter wrote: the last one must have it

    found = wait_for(kept, what="the notebook", within_s=30)
    deadline = time.monotonic() + 10  # an older snapshot may have it too
    while not found.startswith(wanted) and time.monotonic() < deadline:
        time.sleep(0.2)
        found = kept() or found
    return wanted, found
