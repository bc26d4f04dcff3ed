"""Two people on one node of two CPU slots, through the whole platform: book, run, hand over."""

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import get, spec, submit, wait_for_end, wait_for_step
from tests.worker.script_orders import why_no_sandbox
from trainyard import Trainyard
from trainyard.packing import pack
from trainyard.resources.sessions import sign_in
from trainyard.transport.config import Access
from trainyard.transport.connection import Connection

pytestmark = [pytest.mark.gloo, pytest.mark.slow]
PASSWORD = "a long enough password"
PROGRAM = "import os; print('on', sorted(os.sched_getaffinity(0)), flush=True)"


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    """A platform that sells single slots of this machine, which it offers as two."""
    with running_platform({"TRAINYARD_SLOTS": "2"}) as running:
        with running.http() as client:
            [node] = client.get("/v1/nodes").json()["data"]
            if node["sharing"] != "full":
                pytest.skip(f"this machine cannot keep two owners apart: {node['no_sharing']}")
            policy = (
                "policy: {id: parts, zone: UTC}\n"
                f"pools: {{parts: {{class: {node['node_class']}, gpus: [1, 2], hours: [1, 2]}}}}\n"
            )
            yaml = {"Content-Type": "application/yaml"}
            client.post("/v1/policies", content=policy, headers=yaml).raise_for_status()
        yield running


def token_of_bob(shared: Running) -> str:
    with Trainyard(shared.url, shared.token) as ada:
        ada.admin.add_user("bob", password=PASSWORD)
    with closing(Connection(Access(shared.url, None))) as connection:
        return sign_in(connection, "bob", PASSWORD).secret


def test_a_training_and_another_person_s_program_run_beside_each_other(
    shared: Running, tmp_path: Path
) -> None:
    if why_no_sandbox():
        pytest.skip(f"no sandbox can be built here: {why_no_sandbox()}")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    token = token_of_bob(shared)
    leases = {}
    for name, secret in (("ada", shared.token), ("bob", token)):
        with Trainyard(shared.url, secret) as owner:
            [node] = owner.nodes.list()
            leases[name] = owner.leases.book(hour, 2, node=node.name, gpus=1).id
    with shared.http() as ada, shared.http(token=token) as bob:
        training = submit(ada, spec(steps=5000, ranks=1, lease=leases["ada"]))
        wait_for_step(ada, training, 1)
        (tmp_path / "main.py").write_text(PROGRAM)
        with Trainyard(shared.url, token) as sdk:
            code = sdk.code.upload(pack(tmp_path))
        program = submit(
            bob,
            {
                "name": "beside",
                "script": {"entry": "main.py", "code": code.sha256, "launcher": "python"},
                "resources": {"ranks_per_node": 1, "wall_time": "5min"},
                "lease": leases["bob"],
            },
        )
        ended = wait_for_end(bob, program)
        assert ended["state"] == "succeeded", ended["reason"]

        def said() -> str:
            lines = bob.get(f"/v1/jobs/{program}/logs").json()["lines"]
            return " ".join(line["text"] for line in lines)

        assert wait_for(lambda: said() if "on [" in said() else None, what="its output")
        assert said().split("on [")[1].split("]")[0].isdigit(), "one processor of two"
        assert get(ada, training)["state"] == "running"
        assert bob.get(f"/v1/jobs/{training}").status_code == 404
        [node_view] = bob.get("/v1/nodes").json()["data"]
        assert node_view["users"] == [ada.get("/v1/me").json()["user"]["name"], "bob"]
        ada.post(f"/v1/jobs/{training}/cancel").raise_for_status()
        assert wait_for_end(ada, training)["state"] == "cancelled"
