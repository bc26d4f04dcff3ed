"""`ranks_per_node: auto` and `device: cpu`: decided at submission, stored in the plan, and told."""

from typing import Any

from sqlalchemy import select

from core.spec.planning import plan_on
from core.spec.spec import read_job_spec
from core.states import JobState
from core.tables.jobs import Job
from strategies.plan.hardware import Hardware
from tests.api.conftest import World, client, enrol
from tests.api.shapes import INVENTORY, heartbeat, job_spec, place

AUTO = {"strategy": "ddp", "data_parallel_replicate_degree": None}
A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_gib": 39.6}


def submit(world: World, resources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    spec = job_spec(parallelism=AUTO, resources=resources, **changes)
    answer = world.ann.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def gpu_node(world: World, count: int) -> str:
    """A node with GPUs beside `box`; its class."""
    gpus = [{"index": index, **A100} for index in range(count)]
    inventory = {**INVENTORY, "gpus": gpus, "slots": count, "memory_gib": 64.0}
    token = enrol(world.app, world.database, "gpu-box", **inventory)
    beat = heartbeat(inventory=inventory)
    answer = client(world.app, token).post("/v1/node/heartbeat", json=beat)
    assert answer.status_code == 200, answer.text
    return f"a100x{count}"


def test_auto_takes_the_slots_of_the_class_and_the_plan_says_so(world: World) -> None:
    job = submit(world, {"ranks_per_node": "auto"})
    assert job["spec"]["resources"]["ranks_per_node"] == "auto"
    assert (job["plan"]["ranks_per_node"], job["plan"]["world_size"]) == (2, 2)
    assert job["plan"]["layout"]["replicate"] == 2
    assert job["plan"]["warnings"][0] == (
        "auto chose 2 ranks per node: one for each of the 2 CPU slots of class cpu2"
    )
    place(world.database, str(job["id"]))
    (order,) = world.node.post("/v1/node/heartbeat", json=heartbeat()).json()["attempts"]
    assert (order["plan"]["ranks_per_node"], order["slots"]) == (2, [0, 1])


def test_auto_takes_one_gpu_where_there_is_one(world: World) -> None:
    """The demo's job on a machine with one GPU."""
    job = submit(world, {"ranks_per_node": "auto", "node_class": gpu_node(world, 1)})
    assert (job["plan"]["device"], job["plan"]["world_size"]) == ("cuda", 1)
    assert job["plan"]["global_batch_size"] == job["plan"]["micro_batch_size"] == 8


def test_a_clone_decides_anew(world: World) -> None:
    job = submit(world, {"ranks_per_node": "auto"})
    changes = {"resources": {"node_class": gpu_node(world, 4)}}
    clone = world.ann.post(f"/v1/jobs/{job['id']}/clone", json=changes).json()
    assert (clone["plan"]["device"], clone["plan"]["ranks_per_node"]) == ("cuda", 4)


def test_ranks_on_the_cpu_of_a_gpu_node_take_its_slots_and_its_hosts_memory(world: World) -> None:
    node_class = gpu_node(world, 1)
    wanted = {"ranks_per_node": "auto", "device": "cpu", "node_class": node_class}
    plan = submit(world, wanted)["plan"]
    assert (plan["device"], plan["ranks_per_node"]) == ("cpu", 1)
    assert plan["capacity_gib"] == 0.9 * 64
    refused = world.ann.post(
        "/v1/jobs", json=job_spec(resources={"device": "cpu", "node_class": node_class})
    )
    assert refused.json()["errors"][0]["code"] == "too_many_ranks"


def test_a_job_for_the_cpu_leaves_gpus_to_others_where_it_can(world: World) -> None:
    gpu_node(world, 1)  # fewer slots than `box`, so first for any other job
    planned = world.ann.post(
        "/v1/jobs/plan", json=job_spec(parallelism=AUTO, resources={"ranks_per_node": "auto"})
    ).json()
    assert planned["chosen"] == "a100x1"
    for_cpu = {"ranks_per_node": "auto", "device": "cpu"}
    spec = job_spec(parallelism=AUTO, resources=for_cpu)
    assert world.ann.post("/v1/jobs/plan", json=spec).json()["chosen"] == "cpu2"


def test_a_number_that_is_neither_is_refused_by_its_field(world: World) -> None:
    for wrong in (0, 65, "most"):
        answer = world.ann.post("/v1/jobs", json=job_spec(resources={"ranks_per_node": wrong}))
        assert answer.status_code == 422
        assert "resources.ranks_per_node" in answer.json()["errors"][0]["param"]


def test_a_script_takes_every_slot_or_one_where_its_launcher_starts_no_more() -> None:
    eight = Hardware(class_name="a100x8", device="cuda", slots=8, memory_gib=39.6)
    for launcher, ranks in (("torchrun", 8), ("python", 1)):
        script = {"entry": "train.py", "code": 64 * "a", "launcher": launcher}
        resources = {"ranks_per_node": "auto", "wall_time": "20min"}
        spec = read_job_spec({"name": "mine", "script": script, "resources": resources})
        found = plan_on(spec, eight)
        assert (found.ranks_per_node, found.problems) == (ranks, [])


def test_schedules_are_compared_on_one_number_of_ranks(world: World) -> None:
    node_class = gpu_node(world, 4)
    spec = job_spec(
        parallelism={"strategy": "pipeline", "data_parallel_replicate_degree": None},
        resources={"ranks_per_node": "auto", "node_class": node_class},
    )
    path = "/v1/studies?schedules=GPipe,Interleaved1F1B"  # the latter has two stages on each rank
    refused = world.ann.post(path, json=spec)
    assert refused.status_code == 422, refused.text
    assert refused.json()["param"] == "resources.ranks_per_node"
    assert "Give a number, such as 2" in refused.json()["detail"]
    with world.database.read() as session:
        assert not session.scalars(select(Job.id).where(Job.state == JobState.QUEUED)).all()
