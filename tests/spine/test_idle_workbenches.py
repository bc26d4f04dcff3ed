"""Idle workbenches on a whole platform: a guest has their slots, and a key or a cell ends it."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, spec, submit, wait_for_step
from tests.spine.short_leases import book_soon
from tests.spine.workbenches import Looking
from tests.worker.script_orders import why_no_sandbox
from trainyard import Trainyard
from trainyard.resources.sessions import sign_in
from trainyard.transport.config import Access
from trainyard.transport.connection import Connection
from worker.workbench.jupyter import why_not_installed

if find_spec("pycrdt") is None:
    pytest.skip("jupyter-collaboration is not installed here", allow_module_level=True)

from tests.spine.notebooks import Typist

pytestmark = [
    pytest.mark.gloo,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(why_no_sandbox()), reason=f"no sandbox: {why_no_sandbox()}"),
    pytest.mark.xdist_group("workbenches"),
]
log = logging.getLogger(__name__)
PASSWORD = "a long enough password"
IDLE_WITHIN_S = 150.0  # a minute by the policy, some looks, and a start on a busy machine
BACK_WITHIN_S = 30.0
POLICY = "policy: {id: lent, zone: UTC}\nscheduling: {idle_after_min: 1, min_useful_min: 1}\n"


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform({"TRAINYARD_SLOTS": "2"}) as running:
        with running.http() as client:
            [node] = client.get("/v1/nodes").json()["data"]
            if node["sharing"] != "full":
                pytest.skip(f"this machine cannot keep two owners apart: {node['no_sharing']}")
            yaml = {"Content-Type": "application/yaml"}
            client.post("/v1/policies", content=POLICY, headers=yaml).raise_for_status()
        yield running


@pytest.fixture(scope="module")
def bob(platform: Running) -> Iterator[httpx2.Client]:
    with Trainyard(platform.url, platform.token) as ada:
        ada.admin.add_user("bob", password=PASSWORD)
    with closing(Connection(Access(platform.url, None))) as connection:
        token = sign_in(connection, "bob", PASSWORD).secret
    with platform.http(token=token) as client:
        yield client


def seat(client: httpx2.Client, platform: Running, bench: dict[str, str]) -> str:
    """Start a workbench on all slots of a lease that has just begun; return its id."""
    lease, _ = book_soon(platform, starts_in_s=0.5)
    resources = {"wall_time": "24h", "ranks_per_node": 2}
    body = {"name": "bench", "workbench": bench, "resources": resources, "lease": lease}
    job = submit(client, body)
    wait_for(lambda: get(client, job)["state"] == "running", what="the workbench")
    return job


def note_of(client: httpx2.Client, job: str) -> str:
    """What its owner reads about a workbench that is idle."""
    found = client.get("/v1/workbenches").raise_for_status().json()["data"]
    return str(next(one["idle_note"] for one in found if one["id"] == job))


def leaves(bob: httpx2.Client, guest: str, *, since: float) -> float:
    """Wait until a guest is back in the queue; return the seconds since a moment."""
    wait_for(lambda: get(bob, guest)["state"] == "queued", what="its leave", within_s=60)
    return time.monotonic() - since


def test_a_guest_has_the_slots_of_an_idle_terminal_and_a_key_gives_them_back(
    platform: Running, bob: httpx2.Client
) -> None:
    with platform.http() as ada:
        bench = seat(ada, platform, {"kind": "terminal", "when_idle": "lend"})
        with Looking.at(platform, bench) as look:
            look.wait_for("$ ")
            guest = submit(bob, spec(steps=100_000, ranks=2))
            wait_for(lambda: note_of(ada, bench) != "", what="its idleness", within_s=IDLE_WITHIN_S)
            wait_for_step(bob, guest, 5)
            assert "leaves at your next key" in note_of(ada, bench)
            pressed = time.monotonic()
            look.type("echo st''ill\n")
            look.wait_for("still")
            echo_s = time.monotonic() - pressed
            back_s = leaves(bob, guest, since=pressed)
        log.info("slots back %.1f s after a key, echo after %.2f s", back_s, echo_s)
        assert echo_s < 2.0, "the terminal does not wait for the guest"
        assert back_s < BACK_WITHIN_S
        told = get(bob, guest)
        assert told["step"] >= 5
        assert bob.get(f"/v1/jobs/{guest}/checkpoints").json()["data"], "it saved before it left"
        assert note_of(ada, bench) == ""
        assert get(ada, bench)["state"] == "running"
        leave(bob, ada, guest, bench)


@pytest.mark.skipif(bool(why_not_installed()), reason=why_not_installed())
def test_idle_kernels_are_shut_down_and_the_next_one_gives_the_slots_back(
    platform: Running, bob: httpx2.Client
) -> None:
    with platform.http() as ada:
        bench = seat(ada, platform, {"kind": "jupyter", "when_idle": "release"})
        page = Typist(platform, bench, "mine.ipynb")
        with page:
            page.type("kept = 1")
            made = page.browser.post("/api/kernels", json={}, headers=page.headers)
            assert made.status_code == 201, made.text
            guest = submit(bob, spec(steps=100_000, ranks=2))

            def kernels() -> list[object]:
                return list(page.browser.get("/api/kernels", headers=page.headers).json())

            wait_for(lambda: note_of(ada, bench) != "", what="its idleness", within_s=IDLE_WITHIN_S)
            assert kernels() == [], "it is told once their memory is free"
            saved = page.browser.get("/api/contents/mine.ipynb", headers=page.headers).json()
            assert saved["content"]["cells"][0]["source"] == "kept = 1"
            wait_for_step(bob, guest, 5)
            started = time.monotonic()
            page.browser.post("/api/kernels", json={}, headers=page.headers)
            back_s = leaves(bob, guest, since=started)
            log.info("slots back %.1f s after a kernel was started", back_s)
            assert back_s < BACK_WITHIN_S
            assert len(kernels()) == 1
        leave(bob, ada, guest, bench)


def leave(bob: httpx2.Client, ada: httpx2.Client, guest: str, bench: str) -> None:
    """Cancel both, and end the lease, so that the next can begin."""
    lease = get(ada, bench)["lease"]
    bob.post(f"/v1/jobs/{guest}/cancel").raise_for_status()
    ada.post(f"/v1/leases/{lease}/release").raise_for_status()
    wait_for(
        lambda: ada.get(f"/v1/leases/{lease}").json()["state"] == "ended", what="the lease's end"
    )
