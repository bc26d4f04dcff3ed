"""Ends of leases while somebody types into a notebook, and parts of the platform die meanwhile.

LANES platforms end leases beside each other, ROUNDS of them together, in a few minutes;
TRAINYARD_TEST_LEASE_ENDS asks for others.
"""

import logging
import os
import random
import threading
import time
from collections import Counter
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
from tests.spine.jobs import attempts, get, wait_for_end
from tests.spine.short_leases import book_soon, cut
from tests.spine.test_workbench_leases import ahead, lease_state
from worker.node.attempts import Attempt
from worker.scripts.sandbox import find_level
from worker.workbench.jupyter import START, why_not_installed

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
    "server": lambda one: one.cmdline()[1:3] == ["-c", START],  # the porter has it further on
    "kernel": lambda one: "ipykernel_launcher" in one.cmdline(),
}
LEASE_ENDED = ("cancelled", "lease_ended")
# Without its server it waits to start anew, for which the lease is too short; but the server may
# die while it is asked to end.
TOLD = {part: (LEASE_ENDED,) for part in PARTS} | {
    "server": (LEASE_ENDED, ("cancelled", "lease_ends"))
}
WRITTEN_WITHIN_S = 1.0  # what was typed earlier is with the server, whatever dies now
SUMMED_UP_EVERY = 25
NO_TRAINING = {"TRAINYARD_WARM_LAUNCHER": "false"}  # so nothing needs to import torch


@dataclass(frozen=True)
class End:
    """End of one lease: what was killed, what must be in the notebook, and what is."""

    number: int
    part: str
    wanted: str
    found: str
    told: tuple[str, str]
    """State of the job and code of its reason."""
    reason: str

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with it, in words."""
        if not self.found.startswith(self.wanted):
            yield (
                f"LOST: of {len(self.wanted)} characters that end in {self.wanted[-60:]!r}, "
                f"{len(self.found)} are there, which end in {self.found[-60:]!r}"
            )
        if self.told not in TOLD[self.part]:
            yield f"NOT TOLD as its lease's end but as {self.told}: {self.reason}"


@dataclass
class Ends:
    """Ends so far, of all platforms together. Each is logged when it happens."""

    rounds: Iterator[int]
    faults: list[str] = field(default_factory=list)
    by_part: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, end: End) -> None:
        """Count an end, and what is wrong with it."""
        name = f"end {end.number} ({end.part or 'nobody'} dies)"
        with self.lock:
            self.by_part[end.part or "nobody"] += 1
            log.info("%s: %d characters kept, %s", name, len(end.wanted), " ".join(end.told))
            for fault in end.faults():
                self.faults.append(f"{name} {fault}")
                log.error("%s", self.faults[-1])
            if self.by_part.total() % SUMMED_UP_EVERY == 0:
                self.sum_up()

    def sum_up(self) -> None:
        """Log the number of ends by the part that was killed."""
        counts = ", ".join(f"{num} {part}" for part, num in sorted(self.by_part.items()))
        log.info(
            "%d ends of leases (%s), %d faults", self.by_part.total(), counts, len(self.faults)
        )


def kill(platform: Running, part: str, job: str) -> float:
    """kill -9 of a part of the platform, or of the workbench's carrier, server or kernel; returns
    when, on the monotonic clock."""
    at = time.monotonic()
    if part in BELOW_SHIM:
        for process in below(platform, job):
            with suppress(psutil.Error):
                if BELOW_SHIM[part](process):
                    at = time.monotonic()
                    process.kill()
    elif part:
        platform.process(part).kill()
    return at


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
    ends.sum_up()
    assert ends.by_part.total() == ROUNDS
    assert ends.faults == []


def test_a_workbench_whose_server_is_killed_starts_anew_in_its_lease_with_what_was_typed() -> None:
    with running_platform(NO_TRAINING) as platform, platform.http() as client:
        lease, _ = book_soon(platform, starts_in_s=1)
        job = ahead(client, lease, kind="jupyter")
        wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab", within_s=180)
        with Typist(platform, job, "round.ipynb") as typist:
            typist.type("begun ")
            typed_at, word = time.monotonic(), 0
            while time.monotonic() < typed_at + 2 * WRITTEN_WITHIN_S:
                typist.type(f"{word} ")
                word += 1
                time.sleep(0.02)
            died_at = kill(platform, "server", job)
            wanted = typist.should_be_kept(before=died_at - WRITTEN_WITHIN_S)
        wait_for(lambda: len(attempts(client, job)) == 2, what="its next attempt", within_s=180)
        first = attempts(client, job)[0]
        assert first["outcome"] == "killed", first
        wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab", within_s=180)
        kept = client.get("/v1/workspace/content", params={"path": "round.ipynb"})
        assert source_of(kept.raise_for_status().text).startswith(wanted)


def end_leases(ends: Ends) -> None:
    """End leases on a platform of one's own, until all rounds are taken."""
    with running_platform(NO_TRAINING) as platform:
        for number in ends.rounds:
            part = PARTS[number % len(PARTS)]
            try:
                with platform.http() as client:
                    ends.add(one_end(platform, client, number, part))
            except Exception:
                log.exception("end %d (%s dies) was not seen to its end", number, part or "nobody")
                raise


def one_end(platform: Running, client: httpx2.Client, number: int, part: str) -> End:
    """Type until a lease ends, while a part dies."""
    path = f"round-{number}.ipynb"
    lease, _ = book_soon(platform, starts_in_s=1)
    job = ahead(client, lease, kind="jupyter")
    wait_for(lambda: get(client, job)["state"] == "running", what="JupyterLab", within_s=180)
    with Typist(platform, job, path) as typist:
        typist.type("begun ")
        if part == "kernel":
            typist.browser.post("/api/kernels", json={}, headers=typist.headers).raise_for_status()
        end = cut(platform, lease, usable_s=4)
        deaths: list[float] = []
        death = threading.Timer(
            random.uniform(0.5, 4.5), lambda: deaths.append(kill(platform, part, job))
        )
        death.start()
        word, last = 0, time.monotonic()
        while typist.type(f"{word} "):
            word, last = word + 1, time.monotonic()
            time.sleep(0.02)
            assert time.monotonic() < last + 30, f"its connection is open long after {end}"
        death.join()
        log.info("end %d: its connection was open %.1f s after the death", number, last - deaths[0])
        # Nobody hears what is typed to a dead server until the connection to it is cut.
        heard = min(last, deaths[0]) if part == "server" else last
        wanted = typist.should_be_kept(before=heard - WRITTEN_WITHIN_S)

    def over() -> bool:
        try:
            return lease_state(client, lease) == "ended"
        except httpx2.TransportError:
            return False  # the API has died, and comes again

    wait_for(over, what="the lease's end", within_s=180)
    ended = wait_for_end(client, job)

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
    told = str(ended["state"]), str(ended["reason_code"])
    return End(number, part, wanted, found, told, str(ended["reason"]))
