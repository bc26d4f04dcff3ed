"""The copy of the state that checkpoints are written from."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from strategies.plan.estimates.host import CHECKPOINT_COPY
from strategies.plan.estimates.memory import GIB
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan, plan
from strategies.plan.spec import TrainSpec
from strategies.train.checkpoints.fragment import Fragment
from strategies.train.checkpoints.host_copy import HostCopy, numbers_of
from strategies.train.engine import State, engine_for
from strategies.train.init import seed_of
from strategies.train.mesh import Mesh
from tests.strategies.support.training_runs import make_spec

CPU = torch.device("cpu")
GPUS = Hardware(class_name="a100x4", device="cuda", slots=4, memory_gib=80)


def test_its_memory_is_used_again_and_training_does_not_change_it() -> None:
    weight, run = torch.arange(6.0).view(2, 3), torch.arange(4.0)
    state: State = {
        "model": {"a": weight, "b": Fragment(run, start=3, shape=(5, 2))},
        "optimizer": {"a.step": torch.tensor(1.0)},
    }
    copy = HostCopy(CPU)
    first = copy.take(state)
    copy.wait()
    places = [numbers_of(t).data_ptr() for part in first.values() for t in part.values()]
    weight.mul_(10)
    run.mul_(10)
    assert first["model"]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    fragment = first["model"]["b"]
    assert isinstance(fragment, Fragment)
    assert (fragment.start, fragment.shape) == (3, (5, 2))
    assert fragment.numbers.tolist() == [0, 1, 2, 3]
    second = copy.take(state)
    assert second["model"]["a"].tolist() == [[0, 10, 20], [30, 40, 50]]
    assert numbers_of(second["model"]["b"]).tolist() == [0, 10, 20, 30]
    assert [numbers_of(t).data_ptr() for part in second.values() for t in part.values()] == places
    assert copy.num_bytes == 4 * (6 + 4 + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_it_is_pinned_and_no_update_overtakes_it() -> None:
    device = torch.device("cuda")
    state = {"model": {"a": torch.ones(1 << 26, device=device)}}
    copy = HostCopy(device)
    for value in (1.0, 2.0):
        taken = copy.take(state)["model"]["a"]
        copy.before_update()
        state["model"]["a"].add_(1)
        copy.wait()
        assert taken.is_pinned()
        assert bool((taken == value).all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_the_next_passes_compute_beside_the_copy() -> None:
    device = torch.device("cuda")
    state = {"model": {"a": torch.ones(1 << 28, device=device)}}
    x, copy = torch.ones(1 << 10, 1 << 10, device=device), HostCopy(device)
    copy.take(state)  # the first time: it allocates pinned memory, and cuBLAS is loaded
    x @ x
    copy.before_update()
    copy.wait()
    torch.cuda.synchronize()
    copy.take(state)
    assert copy.copied is not None
    x @ x
    torch.cuda.current_stream().record_event().synchronize()  # item() would queue up as a copy
    assert not copy.copied.query()
    copy.before_update()
    x @ x
    torch.cuda.current_stream().record_event().synchronize()
    assert copy.copied.query()


@pytest.fixture
def four_fake_ranks() -> Iterator[None]:
    """This process as rank 0 of 4, whose collectives do nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("four_fake_ranks")
@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism__strategy": "ddp"},
        {"parallelism__strategy": "fsdp"},
        {"parallelism__strategy": "fsdp", "training__optimizer": "sgd"},
        {
            "parallelism": {
                "data_parallel_shard_degree": 2,
                "tensor_parallel_degree": 2,
            }
        },
    ],
    ids=["ddp", "fsdp", "sgd", "fsdp-tensor"],
)
def test_the_plan_counts_its_bytes(changes: dict[str, Any]) -> None:
    spec = make_spec(**changes)
    planned = planned_on(spec, GPUS)
    by_name = {term.name: term.gib * GIB for term in planned.host_memory}
    engine = engine_for(planned)
    engine.setup(spec, planned, Mesh(planned.layout, 0, CPU), seed_of(spec))
    copy = HostCopy(CPU)
    copy.take(engine.state())
    assert by_name[CHECKPOINT_COPY] == pytest.approx(4 * copy.num_bytes, rel=0.01)


def planned_on(spec: TrainSpec, hardware: Hardware) -> Plan:
    found = plan(spec, nodes=1, ranks_per_node=4, hardware=hardware)
    assert found.runnable, found.problems
    return found
