"""Jobs over two nodes: two workers on loopback, each with a folder of its own, share nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch
from torch import nn

from standalone import valkey
from tests.running import Running, running_platform, wait_for
from tests.spine.jobs import (
    attempts,
    cancel,
    get,
    losses,
    spec,
    submit,
    wait_for_end,
    wait_for_step,
)
from trainyard.client import Trainyard
from trainyard.packing import pack
from trainyard.resources.sessions import sign_in
from trainyard.transport.config import Access
from trainyard.transport.connection import Connection
from worker.scripts.sandbox import find_level

pytestmark = pytest.mark.gloo
SECOND = "second"
EXAMPLES = Path(__file__).parents[2] / "examples" / "scripts"
REACHES = """
import json, os, socket, sys, time

rank, first = int(os.environ["RANK"]), os.environ["MASTER_ADDR"]
server = socket.create_server(("", 4000))
reached = []
for host, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((host, port), timeout=2).close()
        reached.append((host, port))
    except OSError as error:
        print(host, port, error)
print("reached outside:", reached, flush=True)
others = [first[:-1] + "2", first]
deadline = time.monotonic() + 60
while True:
    try:
        other = socket.create_connection((others[rank], 4000), timeout=30)
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.1)
with other:
    other.sendall(b"from %d" % rank)
    connection, address = server.accept()
    print("fellow:", connection.recv(20).decode(), address[0], flush=True)
assert not reached
"""


@pytest.fixture(scope="module")
def platform() -> Iterator[Running]:
    with running_platform({"TRAINYARD_GANG_START_S": "20"}) as running, second_worker(running):
        yield running


class second_worker:
    """Another worker on this machine, enrolled as a node of the same class.

    `way`: the command that starts it elsewhere, and the API's address as it is seen from there.
    """

    def __init__(
        self,
        platform: Running,
        name: str = SECOND,
        *,
        way: tuple[Sequence[str], str] | None = None,
    ) -> None:
        self.platform, self.name = platform, name
        self.command, self.url = way or ((), platform.url)
        self.folder = platform.data.path / name

    def __enter__(self) -> "second_worker":
        with self.platform.http() as client:
            answer = client.post("/v1/admin/enrolments", json={"name": self.name})
            token = answer.raise_for_status().json()["token"]
            with open(self.platform.data.path / f"{self.name}.out", "w") as output:
                self.process = subprocess.Popen(
                    [*self.command, sys.executable, "-m", "worker.main"],
                    env={
                        **os.environ,
                        "TRAINYARD_API_URL": self.url,
                        "TRAINYARD_REDIS_URL": valkey.url(self.platform.data.path),
                        "TRAINYARD_DATA": str(self.folder),
                        "TRAINYARD_ENROL_TOKEN": token,
                        "TRAINYARD_POLL_S": "0.5",
                    },
                    stdout=output,
                    stderr=output,
                )
            wait_for(lambda: self.name in ready_nodes(client), what="its node", within_s=90)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        for process in working_below(self.folder):
            process.kill()


@pytest.fixture
def client(platform: Running) -> Iterator[httpx2.Client]:
    with platform.http() as http:
        yield http


def ready_nodes(client: httpx2.Client) -> list[str]:
    nodes = client.get("/v1/nodes").raise_for_status().json()["data"]
    return [n["name"] for n in nodes if n["state"] == "ready" and n["reachable"]]


def working_below(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def over(nodes: int, *, ranks: int = 1, **other: Any) -> dict[str, Any]:
    """The small job on so many nodes, with so many ranks on each."""
    resources = {"nodes": nodes, "ranks_per_node": ranks, "wall_time": "20min"}
    return spec(ranks=2, **{"resources": resources, **other})


def checkpoints(client: httpx2.Client, job_id: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/jobs/{job_id}/checkpoints").raise_for_status().json()
    return list(answer["data"])


def same_curve(client: httpx2.Client, job_id: str, other: str) -> None:
    answer = client.get(f"/v1/jobs/{job_id}/comparison", params={"with": other})
    comparison = answer.raise_for_status().json()
    assert comparison["verdict"] == "pass", comparison


def test_a_job_over_two_nodes_takes_the_curve_of_one(client: httpx2.Client) -> None:
    sharded = {"strategy": "fsdp"}
    job_id = submit(client, over(2, steps=40, parallelism=sharded, verify={"steps": 4}))
    wait_for_step(client, job_id, 1)
    places = get(client, job_id)["nodes"]
    assert sorted(place["node"] for place in places) == sorted(ready_nodes(client))
    assert [(place["ranks"], place["slots"]) for place in places] == [([0], [0]), ([1], [0])]
    job = wait_for_end(client, job_id)
    assert job["state"] == "succeeded", job["reason"]
    assert job["certificate"]["verdict"] == "pass"
    assert sorted(losses(client, job_id)) == list(range(1, 41))
    # Each node brought the files of its own rank, and the first one exported the whole weights.
    wait_for(
        lambda: {each["step"] for each in checkpoints(client, job_id)} == {20, 40},
        what="two whole checkpoints",
    )

    def artifacts() -> set[str]:
        found = client.get(f"/v1/jobs/{job_id}/artifacts").raise_for_status().json()["data"]
        return {artifact["path"] for artifact in found}

    wait_for(lambda: "model.safetensors" in artifacts(), what="the exported weights")
    alone = submit(client, over(1, ranks=2, steps=40))
    assert wait_for_end(client, alone)["state"] == "succeeded"
    same_curve(client, job_id, alone)


@pytest.mark.slow
def test_the_end_of_one_shim_ends_the_attempt_everywhere_and_it_goes_on_from_a_whole_checkpoint(
    platform: Running, client: httpx2.Client
) -> None:
    job_id = submit(client, over(2, steps=3000, parallelism={"strategy": "fsdp"}))
    wait_for(lambda: len(checkpoints(client, job_id)) > 0, what="a checkpoint", within_s=90)
    (shim,) = (platform.data.path / SECOND / "attempts").glob(f"{job_id}.1/shim.json")
    os.kill(json.loads(shim.read_text())["pid"], signal.SIGKILL)
    again = wait_for(
        lambda: (found := attempts(client, job_id))[-1]["epoch"] == 2 and found,
        what="another attempt",
        within_s=90,
    )
    assert again[0]["outcome"] == "shim_lost", again[0]
    assert SECOND in {place["node"] for place in again[0]["nodes"]}
    assert again[1]["resumed_from_step"] >= 20
    wait_for_step(client, job_id, again[1]["resumed_from_step"] + 1)
    assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert wait_for_end(client, job_id)["state"] == "cancelled"
    wait_for(lambda: not working_below(platform.data.path / SECOND / "attempts"), what="no rank")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "parallelism"),
    [
        (1, {"strategy": "ddp"}),
        (2, {"strategy": "hsdp", "data_parallel_shard_degree": 2}),
        (1, {"strategy": "pipeline", "pipeline_parallel_degree": 2}),
    ],
)
def test_layouts_across_nodes_are_certified(
    client: httpx2.Client, ranks: int, parallelism: dict[str, Any]
) -> None:
    wanted = over(2, ranks=ranks, steps=20, parallelism=parallelism, verify={"steps": 10})
    job = wait_for_end(client, submit(client, wanted), within_s=170)
    assert job["state"] == "succeeded", job["reason"]
    assert job["certificate"]["verdict"] == "pass"


@pytest.mark.slow
def test_a_node_that_does_not_come_frees_the_others(
    platform: Running, client: httpx2.Client
) -> None:
    """Its worker is stopped before the job is placed; the node still counts as heard."""
    worker = next(
        process
        for process in psutil.Process().children(recursive=True)
        if process.cmdline()[-1:] == ["worker.main"]
        and process.environ().get("TRAINYARD_DATA", "").endswith(SECOND)
    )
    worker.suspend()
    try:
        job_id = submit(client, over(2, steps=20))

        def first_ended() -> dict[str, Any] | None:
            found = attempts(client, job_id)
            return found[0] if found and found[0]["outcome"] else None

        first = wait_for(first_ended, what="the end of the first attempt", within_s=90)
        assert (first["outcome"], SECOND in first["reason"]) == ("start_failed", True), first
    finally:
        worker.resume()
    job = wait_for_end(client, job_id, within_s=170)
    assert job["state"] == "succeeded", job["reason"]


def run_script(
    platform: Running,
    client: httpx2.Client,
    folder: Path,
    script: dict[str, Any],
    *,
    nodes: int = 2,
    **other: Any,
) -> str:
    """Submit a script of two ranks on one or two nodes; the job's id."""
    if find_level().gang_level is None:
        pytest.skip(f"no script can run on two nodes here: {find_level().gang_reason}")
    with Trainyard(platform.url, platform.token) as sdk:
        code = sdk.code.upload(pack(folder))
    resources = {"nodes": nodes, "ranks_per_node": 2 // nodes, "wall_time": "10min"}
    return submit(
        client,
        {"name": "own", "script": {"code": code.sha256, **script}, "resources": resources, **other},
    )


def said(client: httpx2.Client, job_id: str) -> str:
    lines = client.get(f"/v1/jobs/{job_id}/logs").raise_for_status().json()["lines"]
    return "\n".join(line["text"] for line in lines)


@pytest.mark.slow
def test_a_script_on_two_nodes_reaches_its_fellow_and_nobody_else(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    (tmp_path / "reaches.py").write_text(REACHES)
    address = psutil.net_if_addrs()
    hosts = {each.address for name in address for each in address[name] if each.family == 2}
    targets = [(host, platform.port) for host in sorted(hosts)]
    script = {"entry": "reaches.py", "arguments": [json.dumps(targets)]}
    job_id = run_script(platform, client, tmp_path, script)
    job = wait_for_end(client, job_id)
    output = said(client, job_id)
    assert job["state"] == "succeeded", (job["reason"], output)
    assert len(attempts(client, job_id)) == 1, (attempts(client, job_id), output)
    assert output.count("reached outside: []") == 2
    assert "fellow: from 1 10.77.0.2" in output
    assert "fellow: from 0 10.77.0.1" in output


MEETS = """
import os, socket, sys
import torch, torch.distributed as dist

socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
print("meets", os.environ["MASTER_ADDR"], total.tolist(), flush=True)
dist.barrier()  # gloo aborts a rank whose peer leaves while it still sends
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_programs_meet_on_the_nodes_own_network_where_an_administrator_allows_it(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    (tmp_path / "meets.py").write_text(MEETS)
    script = {"entry": "meets.py", "arguments": ["127.0.0.1", str(platform.port)]}
    with Trainyard(platform.url, platform.token) as sdk:
        node_class = next(iter(sdk.nodes.list())).node_class
        sdk.admin.set_fabric(node_class, programs="host")
        try:
            job_id = run_script(platform, client, tmp_path, script)
            job = wait_for_end(client, job_id)
        finally:
            sdk.admin.set_fabric(node_class)
    output = said(client, job_id)
    assert job["state"] == "succeeded", (job["reason"], output)
    assert output.count("[2.0, 2.0, 2.0]") == 2, output
    assert "meets 127.0.0.1" in output, "not an address of the relay"


ASKS = """
import os, socket, sys
import torch, torch.distributed as dist

proxy = os.environ["HTTPS_PROXY"].rpartition(":")[2]
with socket.create_connection(("127.0.0.1", int(proxy)), timeout=20) as client:
    client.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    print("asked", os.environ["RANK"], client.recv(4096).decode().splitlines()[0], flush=True)
assert os.environ["MASTER_ADDR"] in os.environ["NO_PROXY"].split(",")
dist.init_process_group("gloo")
total = torch.ones(3)
dist.all_reduce(total)
print(total.tolist(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_on_two_nodes_has_a_proxy_on_each_which_leads_not_to_the_api(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    host = f"localhost:{platform.port}"  # of the API: listed by mistake, and loopback all the same
    script = {"entry": "asks.py", "arguments": [host]}
    with Trainyard(platform.url, platform.token) as sdk:
        node_class = next(iter(sdk.nodes.list())).node_class
        sdk.admin.set_network([f"private:{host}"], node_class=node_class)
        try:
            job_id = run_script(platform, client, tmp_path, script, network=[host])
            job = wait_for_end(client, job_id)
        finally:
            sdk.admin.set_network([], node_class=node_class)
    output = said(client, job_id)
    assert job["state"] == "succeeded", (job["reason"], output)
    for rank in range(2):
        assert f"asked {rank} HTTP/1.1 403 localhost has no address on the internet" in output
    assert output.count("[2.0, 2.0, 2.0]") == 2, output
    [attempt] = attempts(client, job_id)
    counted = [[(use["host"], use["refused"]) for use in on["hosts"]] for on in attempt["nodes"]]
    assert counted == [[(host, 1)], [(host, 1)]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "entry", "arguments"),
    [
        ("torchrun", "digits.py", ["--steps", "30"]),
        ("accelerate", "accelerate_digits.py", ["--passes", "1"]),
    ],
)
def test_a_script_on_two_nodes_takes_the_curve_of_one(
    platform: Running, client: httpx2.Client, launcher: str, entry: str, arguments: list[str]
) -> None:
    script = {"entry": entry, "launcher": launcher, "arguments": arguments}
    both = [run_script(platform, client, EXAMPLES, script, nodes=nodes) for nodes in (2, 1)]
    for job_id in both:
        job = wait_for_end(client, job_id, within_s=170)
        assert job["state"] == "succeeded", (job["reason"], said(client, job_id))
    same_curve(client, *both)
    steps = sorted(losses(client, both[0]))
    assert steps == list(range(1, steps[-1] + 1))
    kept = wait_for(lambda: checkpoints(client, both[0]), what="the output in the store")
    assert [each["step"] for each in kept] == [steps[-1]]


def stopped_and_goes_on(
    platform: Running, client: httpx2.Client, entry: str, *, steps: int
) -> tuple[str, dict[int, float]]:
    """Run an example on two nodes that is paused once it trains and then goes on; the job's id,
    and its losses by step."""
    script = {"entry": entry, "arguments": ["--steps", str(steps), "--pause", "0.1"]}
    job_id = run_script(platform, client, EXAMPLES, script)
    wait_for_step(client, job_id, 5)
    assert client.post(f"/v1/jobs/{job_id}/pause").status_code == 200
    wait_for(lambda: get(client, job_id)["state"] == "paused", what="the pause", within_s=90)
    [kept] = wait_for(lambda: checkpoints(client, job_id) or None, what="a checkpoint", within_s=60)
    assert kept["step"] == max(losses(client, job_id))
    assert client.post(f"/v1/jobs/{job_id}/resume").status_code == 200
    job = wait_for_end(client, job_id, within_s=170)
    output = said(client, job_id)
    assert job["state"] == "succeeded", (job["reason"], output)
    for rank in (0, 1):
        assert f"rank {rank} goes on at step {kept['step'] + 1}" in output
    assert attempts(client, job_id)[1]["resumed_from_step"] == kept["step"]
    found = losses(client, job_id)
    assert sorted(found) == list(range(1, steps + 1))
    return job_id, found


def unbroken_losses(steps: int) -> dict[int, float]:
    """The losses of what both examples train, on one rank by hand, by step."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = {}
    for step in range(1, steps + 1):
        x = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found[step] = loss.item()
    return found


def files_of(client: httpx2.Client, job_id: str) -> set[str]:
    found = client.get(f"/v1/jobs/{job_id}/artifacts").raise_for_status().json()["data"]
    return {artifact["path"] for artifact in found}


@pytest.mark.slow
def test_a_program_that_saves_in_parts_goes_on_with_the_parts_of_both_nodes(
    platform: Running, client: httpx2.Client
) -> None:
    """torch.distributed.checkpoint writes a file of each rank, on the node where it runs."""
    job_id, found = stopped_and_goes_on(platform, client, "dcp_digits.py", steps=40)
    wait_for(lambda: len(checkpoints(client, job_id)) == 2, what="the last checkpoint")
    assert {"sharded/.metadata", "sharded/__0_0.distcp", "sharded/__1_0.distcp"} <= files_of(
        client, job_id
    )
    assert found == pytest.approx(unbroken_losses(40), abs=1e-5)


@pytest.mark.slow
def test_a_deepspeed_program_goes_on_with_the_parts_of_both_nodes(
    platform: Running, client: httpx2.Client
) -> None:
    """ZeRO's optimizer state has a file of each rank, on the node where it runs."""
    job_id, found = stopped_and_goes_on(platform, client, "deepspeed_digits.py", steps=40)
    states = {path for path in files_of(client, job_id) if path.endswith("optim_states.pt")}
    assert {path.rpartition("/")[2] for path in states} == {
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    }
    assert found == pytest.approx(unbroken_losses(40), abs=1e-5)


WORKSPACE = """
import os, pathlib, sys
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
rank = os.environ.get("RANK", "0")
print(rank, "found", sorted(path.name for path in home.iterdir()), flush=True)
try:
    (home / f"of rank {rank}, {sys.argv[1]}.txt").write_text("kept")
except OSError as error:
    print(rank, "may not write:", error.strerror, flush=True)
"""
SITS = """
import os, pathlib, time
home = pathlib.Path(os.environ["TRAINYARD_WORKSPACE"])
(home / "secret of ada.txt").write_text("SECRET-OF-ADA")
print("sits", flush=True)
time.sleep(600)
"""
SEARCHES = """
import os
home = os.environ["TRAINYARD_WORKSPACE"]
print("own:", os.listdir(home), flush=True)
os.symlink("/etc/shadow", home + "/shadow")
os.symlink("../..", home + "/up")
found = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if f"{folder}/{name}" not in ("//proc", "//sys")]
    found += [f"{folder}/{name}" for name in files if "secret of ada" in name]
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        found += [os.readlink(f"/proc/{pid}/cwd")] if "workspace" in os.readlink(
            f"/proc/{pid}/cwd") else []
    except OSError:
        pass
print("found:", found, flush=True)
"""


def bring_workspace(
    sdk: Trainyard, folder: Path, text: str, *words: str, nodes: int = 1, launcher: str = "python"
) -> dict[str, Any]:
    """The spec of a program that brings its owner's workspace."""
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(text)
    code = sdk.code.upload(pack(folder))
    script = {"entry": "main.py", "code": code.sha256, "launcher": launcher, "arguments": words}
    return {
        "name": folder.name,
        "script": script,
        "workspace": True,
        "resources": {"nodes": nodes, "ranks_per_node": 1, "wall_time": "10min"},
    }


@pytest.mark.slow
def test_a_workspace_goes_along_and_on_two_nodes_the_first_one_writes(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    if find_level().gang_level is None:
        pytest.skip(f"no script can run on two nodes here: {find_level().gang_reason}")
    with Trainyard(platform.url, platform.token) as sdk:
        first = submit(client, bring_workspace(sdk, tmp_path / "one", WORKSPACE, "first"))
        assert wait_for_end(client, first)["state"] == "succeeded", said(client, first)
        both = submit(
            client,
            bring_workspace(
                sdk, tmp_path / "two", WORKSPACE, "second", nodes=2, launcher="torchrun"
            ),
        )
        job = wait_for_end(client, both)
        output = said(client, both)
        assert job["state"] == "succeeded", (job["reason"], output)
        for rank in (0, 1):
            assert f"{rank} found ['of rank 0, first.txt']" in output
        assert "1 may not write: Read-only file system" in output
        wait_for(lambda: sdk.workspace.get().writer is None, what="the last snapshot")
        names = [entry.path for entry in sdk.workspace.list()]
        assert names == ["of rank 0, first.txt", "of rank 0, second.txt"]


@pytest.mark.slow
def test_a_second_program_reads_and_another_person_s_finds_nothing(
    platform: Running, client: httpx2.Client, tmp_path: Path
) -> None:
    password = "a long enough password"
    with Trainyard(platform.url, platform.token) as sdk:
        sdk.admin.add_user("eve", password=password)
        sitting = submit(client, bring_workspace(sdk, tmp_path / "sits", SITS))
        wait_for(lambda: "sits" in said(client, sitting), what="the first program", within_s=60)
        spec_of_second = bring_workspace(sdk, tmp_path / "reads", WORKSPACE, "x")
        plan = client.post("/v1/jobs/plan", json={"spec": spec_of_second}).json()
        assert f"sits ({sitting}) writes to your workspace now" in plan["reason"]
        second = submit(client, spec_of_second)
        assert wait_for_end(client, second)["state"] == "succeeded"
        assert "0 may not write: Read-only file system" in said(client, second)
        events = client.get(f"/v1/jobs/{second}/events").json()["data"]
        kinds = [event["kind"] for event in events]
        assert kinds.index("workspace_read_only") < kinds.index("running")
    with closing(Connection(Access(platform.url, None))) as connection:
        token = sign_in(connection, "eve", password).secret
    with Trainyard(platform.url, token) as sdk, platform.http(token=token) as eve:
        search = submit(eve, bring_workspace(sdk, tmp_path / "searches", SEARCHES))
        job = wait_for_end(eve, search)
        lines = eve.get(f"/v1/jobs/{search}/logs").json()["lines"]
        text = "\n".join(line["text"] for line in lines)
        assert job["state"] == "succeeded", (job["reason"], text)
        assert "own: []" in text
        assert "found: []" in text
        wait_for(lambda: sdk.workspace.get().writer is None, what="her last snapshot")
        kinds = [(entry.path, entry.kind, entry.size) for entry in sdk.workspace.list()]
        assert kinds == [("shadow", "link", 0), ("up", "link", 0)]
        refused = eve.get("/v1/workspace/content", params={"path": "shadow"})
        assert refused.status_code == 404
    cancel(client, sitting)
