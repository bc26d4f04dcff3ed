"""Twenty workbenches on two nodes, while parts of the platform die: their shells go on.

All are one person's: a machine with few cores cannot keep twenty owners apart. Each has a shell
that knows its number. After each fault every shell is asked for it, through either API, from where
its output was last seen.
"""

import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.chaos.counting import Finding
from tests.chaos.faults import Fault, Strike
from tests.chaos.fleet import NODES, Fleet
from tests.running import wait_for
from tests.spine.workbenches import Looking, open_socket

WORKBENCHES, SLOTS = 20, 10
FAULTS = (
    "kill_api", "kill_leader", "kill_worker", "kill_broker", "cut_connections", "unplug_node",
    "stop_api", "lose_doorbells", "kill_both_schedulers", "lose_answers",
)  # fmt: skip
"""Faults that no shell may notice: the others end processes of an attempt, or its node."""
START_S, BACK_S = 180.0, 90.0


class Bench:
    """One workbench, and the place in its terminal's output up to which it was seen."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.number, self.offset = fleet, number, -1
        spec = {
            "name": f"bench-{number}",
            "workbench": {"kind": "terminal"},
            "workspace": False,
            "resources": {"wall_time": "2h"},
        }
        key = {"Idempotency-Key": f"bench-{number}"}
        answer = fleet.ask("POST", "/v1/jobs", json=spec, headers=key)
        assert answer is not None, "no API"
        assert answer.status_code == 201, answer.text
        self.job = str(answer.json()["id"])

    def get(self) -> dict[str, Any]:
        """Return its job; empty while no API answers."""
        answer = self.fleet.ask("GET", f"/v1/jobs/{self.job}")
        return {} if answer is None or answer.status_code != 200 else dict(answer.json())

    def says(self, asked: str, expected: str) -> bool:
        """Type into its shell, and wait for what it says; False if the way there is broken."""
        url = random.choice(list(self.fleet.api_urls.values()))
        since = "" if self.offset < 0 else f"?offset={self.offset}"
        path = f"/v1/workbenches/{self.job}/terminals/1{since}"
        with (
            contextlib.suppress(OSError, InvalidStatus, ConnectionClosed, TimeoutError),
            Looking(open_socket(url, path, token=self.fleet.token)) as look,
        ):
            look.type(f"{asked}\n")
            look.wait_for(expected)
            self.offset = look.offset
            return True
        return False


def play_workbenches(fleet: Fleet, faults: Mapping[str, Fault], seed: int) -> Sequence[Finding]:
    """Sit down in front of all, let each fault strike, and return what became worse by it."""
    rng = random.Random(f"workbenches-{seed}")
    benches = [Bench(fleet, number) for number in range(WORKBENCHES)]
    for bench in benches:
        wait_for(
            lambda bench=bench: bench.get().get("state") == "running",  # type: ignore[misc]
            what=f"workbench {bench.number}",
            within_s=START_S,
        )
        assert bench.says(f"N={bench.number}; echo re''ady", "ready")
    nodes = {bench.get()["node"] for bench in benches}
    assert len(nodes) == len(NODES), f"all are on {nodes}"
    found: list[Finding] = []
    for name in FAULTS:
        if name not in faults:
            continue
        strike = Strike(name, rng.randrange(2), 0.0, rng.uniform(0.5, 3.0), 0.0)
        mend = faults[name](fleet, strike)
        time.sleep(strike.lasts_s)
        mend()
        found += [finding for bench in benches if (finding := _lost(fleet, bench, name))]
    return found


def _lost(fleet: Fleet, bench: Bench, fault: str) -> Finding | None:
    """Return what a workbench has lost by a fault that is over; None if its shell is the same."""
    deadline = time.monotonic() + BACK_S
    while time.monotonic() < deadline:
        fleet.keep_running()
        if bench.says("echo =$N=", f"={bench.number}="):
            job = bench.get()
            if job and (job["state"], job["epoch"]) != ("running", 1):
                return f"{fault}: {bench.job} is {job['state']}, attempt {job['epoch']}"
            return None
        time.sleep(0.2)
    return f"{fault}: the shell of {bench.job} was not reached in {BACK_S:.0f} s"
