"""Ranks as a table: nodes, then a row for each pipeline stage, a column for every other place."""

from dataclasses import dataclass

from trainyard.views import JobLayout, Plan, Seat

AXES = ("replicate", "shard", "context", "tensor")  # beside each other; a pipeline's stages below

Row = tuple[str, list[Seat | None]]


@dataclass(frozen=True)
class RankGrid:
    """A table of ranks; `rows` are by node."""

    columns: list[str]
    rows: list[tuple[str, list[Row]]]


def rank_grid(layout: JobLayout, plan: Plan) -> RankGrid:
    """The table; without rows where the ranks are too many to draw."""
    axes = [axis for axis in AXES if plan.layout.get(axis, 1) > 1]
    has_stages = plan.layout.get("pipeline", 1) > 1
    places = sorted({_place(seat, axes) for seat in layout.seats})
    rows: list[tuple[str, list[Row]]] = []
    for number in sorted({seat.node for seat in layout.seats}):
        here = [seat for seat in layout.seats if seat.node == number]
        lines: list[Row] = []
        for stage in sorted({seat.pipeline for seat in here}):
            by_place = {_place(seat, axes): seat for seat in here if seat.pipeline == stage}
            name = f"stage {stage}" if has_stages else "ranks"
            lines.append((name, [by_place.get(place) for place in places]))
        rows.append((_node(layout, number), lines))
    columns = [
        " ".join(f"{axis} {at}" for axis, at in zip(axes, place, strict=True)) or "rank"
        for place in places
    ]
    return _without_gaps(RankGrid(columns, rows))


def _place(seat: Seat, axes: list[str]) -> tuple[int, ...]:
    return tuple(getattr(seat, axis) for axis in axes)


def _node(layout: JobLayout, number: int) -> str:
    return layout.nodes[number] if number < len(layout.nodes) else f"node {number}"


def _without_gaps(grid: RankGrid) -> RankGrid:
    """Where every node has its own columns, rows are closed up and columns lose their names."""
    lines = [seats for _, rows in grid.rows for _, seats in rows]
    if not any(seat is None for seats in lines for seat in seats):
        return grid
    closed = [
        (node, [(name, [seat for seat in seats if seat is not None]) for name, seats in rows])
        for node, rows in grid.rows
    ]
    width = max(len(seats) for _, rows in closed for _, seats in rows)
    padded: list[tuple[str, list[Row]]] = [
        (node, [(name, [*seats, *[None] * (width - len(seats))]) for name, seats in rows])
        for node, rows in closed
    ]
    return RankGrid([f"{index}" for index in range(width)], padded)
