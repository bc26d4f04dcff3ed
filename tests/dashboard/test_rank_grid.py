"""Ranks as a table: what stands beside what."""

from dashboard.rank_grid import rank_grid
from strategies.plan.layout import Layout
from tests.dashboard.fake_api import planned, spec
from trainyard.transport.decoding import decode
from trainyard.views import JobLayout, Plan, Seat


def grid(layout: Layout, *, ranks_per_node: int, nodes: tuple[str, ...] = ()) -> object:
    plan = decode(Plan, planned(spec()).model_dump(mode="json") | {"layout": layout.model_dump()})
    seats = tuple(
        decode(
            Seat,
            {
                "rank": rank,
                **layout.coordinate(rank)._asdict(),
                "node": rank // ranks_per_node,
                "slot": rank % ranks_per_node,
            },
        )
        for rank in range(layout.world_size)
    )
    document = {"seats": [seat.raw for seat in seats], "timeline": [], "nodes": list(nodes)}
    found = rank_grid(decode(JobLayout, document), plan)
    rows = [
        (node, [(name, [seat and seat.rank for seat in line]) for name, line in lines])
        for node, lines in found.rows
    ]
    return found.columns, rows


def test_stages_stand_below_each_other_and_the_rest_beside() -> None:
    found = grid(Layout(pipeline=2, shard=2, tensor=2), ranks_per_node=4, nodes=("a", "b"))
    assert found == (
        ["shard 0 tensor 0", "shard 0 tensor 1", "shard 1 tensor 0", "shard 1 tensor 1"],
        [("a", [("stage 0", [0, 1, 2, 3])]), ("b", [("stage 1", [4, 5, 6, 7])])],
    )


def test_replicas_on_two_nodes_close_up() -> None:
    found = grid(Layout(replicate=4), ranks_per_node=2, nodes=("a",))
    assert found == (["0", "1"], [("a", [("ranks", [0, 1])]), ("node 1", [("ranks", [2, 3])])])
