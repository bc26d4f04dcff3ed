"""Fixtures of the worker's tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.fake_api import FakeApi
from tests.worker.gpu_nodes import GpuNode
from tests.worker.nodes import Node
from worker.scripts.sandbox import Level, why_not


@pytest.fixture
def api() -> Iterator[FakeApi]:
    api = FakeApi()
    yield api
    api.close()


@pytest.fixture
def make_node(api: FakeApi, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Makes nodes by name; afterwards nothing of them is left running."""
    nodes: list[Node] = []

    def make(name: str = "node", *, redis_url: str = "") -> Node:
        node = Node(tmp_path / name, api, redis_url=redis_url)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """A node whose worker has not been started."""
    return make_node()


@pytest.fixture
def gpu_node(api: FakeApi, tmp_path: Path) -> Iterator[GpuNode]:
    """A node with four GPUs, by a scripted NVML, whose worker has not been started."""
    node = GpuNode(tmp_path / "gpu-node", api)
    yield node
    node.close()


@pytest.fixture(
    scope="module",
    params=[Level.BUBBLEWRAP, pytest.param(Level.NAMESPACES, marks=pytest.mark.slow)],
    ids=str,
)
def level(request: pytest.FixtureRequest) -> Level:
    """A way to sandbox programs, each that can be had here."""
    found: Level = request.param
    reason = why_not(found)
    if reason:
        pytest.skip(f"no sandbox of this level here: {reason}")
    return found
