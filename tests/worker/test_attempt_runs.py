"""An attempt from its order to its last file in the store, with either launcher."""

import pytest

from core.spec.spec import Launcher
from core.states import Outcome, Phase
from core.wire.messages import Fabric, Gang, Rendezvous
from tests.worker.fake_api import FakeApi
from tests.worker.nodes import Node, make_order, wait_for


# With torchrun: test_real_training.py.
@pytest.mark.parametrize(
    "launcher", [Launcher.WARM, pytest.param(Launcher.TORCHRUN, marks=pytest.mark.slow)]
)
def test_an_attempt_runs_to_its_end_and_everything_is_kept(
    api: FakeApi, node: Node, launcher: Launcher
) -> None:
    key = api.order(make_order(steps=30, launcher=launcher))
    node.start()
    record = api.wait_for_exit(key)
    assert record.outcome is Outcome.SUCCEEDED, (record, node.log.read_text())
    assert [rank.code for rank in record.ranks] == [0, 0]
    assert record.result is not None
    assert record.result.step == 30
    assert api.steps(key) == list(range(1, 31))
    api.wait_for(lambda: (found := api.observed(key)) is not None and found.kept)
    assert {step for _, step in api.checkpoints} == {10, 20, 30}
    assert [file.path for file in api.artifacts[key]] == ["sample.txt"]
    for rank in (0, 1):
        assert api.logs[key, rank, "stdout"] == f"rank {rank} of 2 begins, ümläut\n"
    observed = api.observed(key)
    assert observed is not None
    assert observed.launcher is launcher
    phases = [o.phase for beat in api.heartbeats for o in beat.attempts]
    assert Phase.RUNNING in phases
    api.conclude(key)
    wait_for(lambda: not node.attempt(key).path.exists())
    assert api.wait_for(lambda: (last := api.last()) is not None and last.clean)
    assert node.stop() == 0


@pytest.mark.parametrize(
    ("fabric", "interface"), [(Fabric(interface="ib7"), "ib7"), (Fabric(), "lo"), (None, "")]
)
def test_ranks_of_several_nodes_take_the_interface_of_the_class_or_that_of_the_node(
    api: FakeApi, node: Node, fabric: Fabric | None, interface: str
) -> None:
    """The node reaches the API, and so reports its address, on loopback."""
    gang = fabric and Gang(
        position=0,
        rendezvous=Rendezvous(address="127.0.0.1", port=20_000, fabric=fabric),
        start=True,
    )
    key = api.order(make_order(ranks=1, steps=3, gang=gang))
    node.start(warm=False)
    wait_for(lambda: node.attempt(key).start_file.exists())
    start = node.attempt(key).start()
    assert start is not None
    assert start.interface == interface
