"""The specs that a new job starts from."""

from dashboard.examples import EXAMPLES, FIRST, grouped_examples, lacking, read_examples
from tests.dashboard.fake_api import node
from trainyard.transport.decoding import decode
from trainyard.views import Node


def test_every_example_is_offered_and_the_first_one_first() -> None:
    names = list(read_examples())
    assert names[0] == FIRST
    assert sorted(names) == sorted(path.stem for path in EXAMPLES.glob("*.yaml"))


def test_every_example_is_in_one_group_and_says_what_it_teaches() -> None:
    groups = grouped_examples()
    names = [name for members in groups.values() for name, _ in members]
    assert sorted(names) == sorted(read_examples())
    assert len(groups["Others"]) < 8
    assert [name for members in groups.values() for name, lesson in members if not lesson] == []


def test_an_example_that_no_node_can_run_says_what_it_needs() -> None:
    two = decode(Node, node().model_dump(mode="json"))
    found = lacking([two])
    assert found["gpt-3d"] == "needs 8 slots of a node"
    assert found["gpt-two-nodes"] == "needs 1 slot of a node, on 2 nodes"
    assert "gpt-ddp" not in found
    assert "gpt-two-nodes" not in lacking([two, two])
    assert set(found) < set(lacking([]))
