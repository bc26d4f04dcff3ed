"""Workbenches of twenty people on two nodes, while parts of the platform die: their shells go on.

A slot of a node needs a core to be kept apart from its neighbours, so the twenty come in as many
turns as the machine needs: all at once on ten cores, four at a time on two. Each has a shell that
knows its number. After each fault every shell is asked for it by its owner, through either API,
from where its output was last seen.
"""

import contextlib
import os
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.chaos.counting import Finding
from tests.chaos.faults import Fault, Strike
from tests.chaos.fleet import NODES, Fleet
from tests.running import wait_for
from tests.spine.workbenches import Looking, open_socket

PEOPLE, SLOTS = 20, min(10, len(os.sched_getaffinity(0)))
PASSWORD = "a long enough password"
PARTS = """policy: {{id: parts, zone: UTC}}
pools: {{parts: {{class: {node_class}, gpus: [1], hours: [1, 2]}}}}
"""
FAULTS = (
    "kill_api", "kill_leader", "kill_worker", "kill_broker", "cut_connections", "unplug_node",
    "stop_api", "lose_doorbells", "kill_both_schedulers", "lose_answers",
)  # fmt: skip
"""Faults that no shell may notice: the others end processes of an attempt, or its node."""
START_S, BACK_S = 180.0, 90.0


class Bench:
    """A person and a workbench of theirs, and the place in its terminal's output up to which it was
    seen."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.number, self.offset = fleet, number, -1
        name = f"person-{number}"
        _made(fleet, "/v1/users", json={"name": name, "password": PASSWORD})
        session = _made(fleet, "/v1/sessions", json={"name": name, "password": PASSWORD})
        self.token = str(session["secret"])
        spec = {
            "name": f"bench-{number}",
            "workbench": {"kind": "terminal"},
            "workspace": False,
            "resources": {"wall_time": "2h"},
        }
        self.job = str(_made(fleet, "/v1/jobs", json=spec, headers=self.headers)["id"])

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def get(self) -> dict[str, Any]:
        """Return its job; empty while no API answers."""
        answer = self.fleet.ask("GET", f"/v1/jobs/{self.job}", headers=self.headers)
        return {} if answer is None or answer.status_code != 200 else dict(answer.json())

    def stop(self) -> None:
        """Stop it, and wait until its slot is free."""
        self.fleet.ask("POST", f"/v1/jobs/{self.job}/cancel", headers=self.headers)
        wait_for(
            lambda: self.get().get("state") == "cancelled",
            what=f"the end of workbench {self.number}",
            within_s=BACK_S,
        )

    def says(self, asked: str, expected: str) -> bool:
        """Type into its shell, and wait for what it says; False if the way there is broken."""
        url = random.choice(list(self.fleet.api_urls.values()))
        since = "" if self.offset < 0 else f"?offset={self.offset}"
        path = f"/v1/workbenches/{self.job}/terminals/1{since}"
        with (
            contextlib.suppress(OSError, InvalidStatus, ConnectionClosed, TimeoutError),
            Looking(open_socket(url, path, token=self.token)) as look,
        ):
            look.type(f"{asked}\n")
            look.wait_for(expected)
            self.offset = look.offset
            return True
        return False


def play_workbenches(fleet: Fleet, faults: Mapping[str, Fault], seed: int) -> Sequence[Finding]:
    """Sit down in front of all, turn by turn, let faults strike in each, and return what became
    worse by them."""
    rng = random.Random(f"workbenches-{seed}")
    at_once = len(NODES) * _share_out(fleet)
    turns = [range(PEOPLE)[first : first + at_once] for first in range(0, PEOPLE, at_once)]
    possible = [name for name in FAULTS if name in faults]
    found: list[Finding] = []
    for number, people in enumerate(turns):
        found += _play_turn(fleet, people, possible[number :: len(turns)], faults, rng)
    return found


def _share_out(fleet: Fleet) -> int:
    """Let people have single slots of the nodes; return how many have a node at once."""
    answer = fleet.ask("GET", "/v1/nodes")
    assert answer is not None, "no API"
    nodes = answer.json()["data"]
    if any(node["sharing"] != "full" for node in nodes):
        return 1
    yaml = {"Content-Type": "application/yaml"}
    document = PARTS.format(node_class=nodes[0]["node_class"])
    _made(fleet, "/v1/policies", content=document, headers=yaml)
    return fleet.slots


def _play_turn(
    fleet: Fleet,
    people: Sequence[int],
    names: Sequence[str],
    faults: Mapping[str, Fault],
    rng: random.Random,
) -> list[Finding]:
    benches = [Bench(fleet, number) for number in people]
    for bench in benches:
        wait_for(
            lambda bench=bench: bench.get().get("state") == "running",  # type: ignore[misc]
            what=f"workbench {bench.number}",
            within_s=START_S,
        )
        wait_for(
            lambda bench=bench: bench.says(  # type: ignore[misc]
                f"N={bench.number}; echo re''ady", "ready"
            ),
            what=f"the shell of {bench.number}",
            within_s=BACK_S,
        )
    nodes = {bench.get()["node"] for bench in benches}
    assert len(nodes) == len(NODES), f"all are on {nodes}"
    found: list[Finding] = []
    for name in names:
        strike = Strike(name, rng.randrange(2), 0.0, rng.uniform(0.5, 3.0), 0.0)
        mend = faults[name](fleet, strike)
        time.sleep(strike.lasts_s)
        mend()
        found += [finding for bench in benches if (finding := _lost(fleet, bench, name))]
    for bench in benches:
        bench.stop()
    return found


def _made(fleet: Fleet, path: str, **options: Any) -> dict[str, Any]:
    """Return what an API has made."""
    key = {"Idempotency-Key": secrets.token_hex(8), **options.pop("headers", {})}
    answer = fleet.ask("POST", path, headers=key, **options)
    assert answer is not None, "no API"
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


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
