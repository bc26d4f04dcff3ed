"""Metrics: packed exactly, merged without loss, shown without losing extremes, fast."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, insert, select

from api.records import metric_store
from api.records.downsample import downsample, newest_of_each_step
from api.records.metric_store import Points, pack_steps, unpack
from core.tables.jobs import Attempt
from core.tables.telemetry import MetricChunk
from tests.api.conftest import World
from tests.api.running_jobs import running_job
from tests.api.shapes import exit_record, free, heartbeat, place
from tests.one_database import quick_on_sqlite
from tests.running import wait_for

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


def points_of(steps: list[int], lines: list[int], values: list[float]) -> Points:
    return Points(np.array(steps, np.int64), np.array(lines, np.int64), np.array(values))


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 9), FLOATS), min_size=1, max_size=50),
    st.integers(0, 2**40),
)
def test_a_row_gives_back_what_was_packed(
    rows: list[tuple[int, int, float]], first_line: int
) -> None:
    lines = (first_line - 1 + np.cumsum([gap for _, gap, _ in rows])).tolist()
    points = points_of([step for step, _, _ in rows], lines, [value for _, _, value in rows])
    packed = pack_steps(points, first_line)
    [(_, again)] = unpack("loss", None, first_line, len(rows), packed, points.values.tobytes())
    assert again.steps.tolist() == points.steps.tolist()
    assert again.lines.tolist() == lines
    assert again.values.tobytes() == points.values.tobytes()


@given(st.lists(FLOATS, min_size=1, max_size=400), st.integers(2, 50))
def test_downsampling_keeps_both_extremes_and_the_last_step(
    values: list[float], resolution: int
) -> None:
    steps = np.arange(len(values), dtype=np.int64) * 3
    curve = downsample(steps, np.array(values), resolution)
    assert len(curve.steps) == min(len(values), resolution)
    assert curve.steps[-1] == steps[-1]
    finite = [value for value in values if math.isfinite(value)]
    if len(values) > resolution and finite:
        assert np.nanmin(np.where(np.isfinite(curve.low), curve.low, np.nan)) == min(finite)
        assert np.nanmax(np.where(np.isfinite(curve.high), curve.high, np.nan)) == max(finite)


def test_the_mean_of_the_largest_numbers_is_a_number() -> None:
    values = np.array([1e308, 1.5e308, 0.0, 0.0])
    curve = downsample(np.arange(4, dtype=np.int64), values, 2)
    assert curve.values.tolist() == [1.5e308, 0.0]


def test_of_a_step_that_was_run_twice_the_last_value_counts() -> None:
    points = points_of([1, 2, 3, 4, 3, 4, 5], [0, 1, 2, 3, 0, 1, 2], [1, 2, 3, 4, 30, 40, 50])
    steps, values = newest_of_each_step(points)
    assert steps.tolist() == [1, 2, 3, 4, 5]
    assert values.tolist() == [1, 2, 30, 40, 50]


def send(
    world: World, job_id: str, first_line: int, lines: list[dict[str, Any]], *, epoch: int = 1
) -> None:
    for start in range(0, len(lines), 500):
        batch = {
            "job_id": job_id,
            "epoch": epoch,
            "rank": 0,
            "first_line": first_line + start,
            "lines": lines[start : start + 500],
        }
        assert world.node.post("/v1/node/metrics", json=batch).status_code == 200


def series(world: World, job_id: str, key: str, **params: Any) -> dict[str, Any]:
    answer = world.ann.get(f"/v1/jobs/{job_id}/metrics", params={"keys": key, **params}).json()
    (found,) = answer["series"]
    return dict(found)


def num_rows(world: World) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(MetricChunk)) or 0


def test_rows_are_merged_as_they_pile_up_and_at_the_end_and_nothing_changes(world: World) -> None:
    job_id = running_job(world)
    lines = [
        {"step": n, "loss": math.sin(n), **({"eval_loss": n / 7} if n % 100 == 0 else {})}
        for n in range(5000)
    ]
    for start in range(0, len(lines), 250):
        send(world, job_id, start, lines[start : start + 250])
    # 10 full blocks, and the rows of the 1 batch that begins after the last.
    wait_for(lambda: num_rows(world) <= 2 * (10 + 1), what="the merges")

    def check() -> None:
        loss = series(world, job_id, "loss", resolution=10_000)
        assert loss["steps"] == list(range(5000))
        assert loss["values"] == [math.sin(n) for n in range(5000)]
        eval_loss = series(world, job_id, "eval_loss")
        assert eval_loss["steps"] == list(range(0, 5000, 100))
        with world.database.read() as session:
            attempt_id = session.scalars(select(Attempt.id)).one()
            again = metric_store.lines_between(session, attempt_id, rank=0, start=1999, end=2002)
        assert again == [
            {"step": 1999, "line": 1999, "loss": math.sin(1999)},
            {"step": 2000, "line": 2000, "loss": math.sin(2000), "eval_loss": 2000 / 7},
            {"step": 2001, "line": 2001, "loss": math.sin(2001)},
        ]

    check()
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "kept": True}
    world.node.post("/v1/node/heartbeat", json=heartbeat(seen))
    assert num_rows(world) == 2  # one per key
    check()


@quick_on_sqlite
def test_a_curve_that_came_line_by_line_is_read_from_few_rows(world: World) -> None:
    job_id = running_job(world)
    for number in range(600):
        rare = {"eval_loss": 1.0} if number % 50 == 49 else {}
        send(world, job_id, number, [{"step": number, "loss": 0.5, **rare}])
    # A merged block of each key, and the lines after it.
    wait_for(lambda: num_rows(world) == 2 + (600 - 512), what="the merge")
    loss = series(world, job_id, "loss", resolution=1000)
    assert loss["steps"] == list(range(600))
    assert series(world, job_id, "eval_loss")["steps"] == list(range(49, 600, 50))


LINES = st.lists(
    st.dictionaries(
        st.sampled_from(["loss", "lr", "eval_loss", "note"]),
        st.one_of(FLOATS, st.none(), st.integers(-9, 9), st.just("text")),
    ),
    min_size=1,
    max_size=40,
)


@given(LINES, st.integers(0, 2**40), st.data())
def test_the_rows_of_batches_give_back_every_point(
    lines: list[dict[str, Any]], first_line: int, data: st.DataObject
) -> None:
    lines = [{"step": 3 * number, **line} for number, line in enumerate(lines)]
    cut = data.draw(st.integers(0, len(lines)))
    found: dict[str, list[tuple[int, int, float]]] = {}
    for start, part in ((0, lines[:cut]), (cut, lines[cut:])):
        batch = metric_store.read_batch(part, first_line + start)
        for row in metric_store.batch_rows("attempt", 0, first_line + start, batch.points):
            names = ("key", "keys", "first_line", "count", "steps", "values")
            for key, points in unpack(*(row[name] for name in names)):  # type: ignore[arg-type]
                columns = (points.lines.tolist(), points.steps.tolist(), points.values.tolist())
                found.setdefault(key, []).extend(zip(*columns, strict=True))
    expected = {
        key: [
            (first_line + n, line["step"], math.nan if line[key] is None else float(line[key]))
            for n, line in enumerate(lines)
            if key in line and not isinstance(line[key], str)
        ]
        for key in ("loss", "lr", "eval_loss", "note")
    }
    assert {key: repr(points) for key, points in found.items()} == {
        key: repr(points) for key, points in expected.items() if points
    }


def test_a_batch_has_a_row_for_all_keys_that_have_the_same_lines() -> None:
    lines = [{"step": n, "loss": 1.0, "lr": 2.0} for n in range(6)]
    assert len(metric_store.batch_rows("attempt", 0, 0, read_points(lines))) == 1
    lines[3] |= {"eval_loss": 1.0, "eval_perplexity": 2.0}
    assert len(metric_store.batch_rows("attempt", 0, 0, read_points(lines))) == 2


def read_points(lines: list[dict[str, Any]]) -> Mapping[str, Points]:
    return metric_store.read_batch(lines, 0).points


@pytest.mark.parametrize("size", [3, 20, 100])
def test_a_batch_that_reaches_into_the_next_block_is_read_from_any_line(
    world: World, size: int
) -> None:
    job_id = running_job(world)
    lines = [{"step": n, "loss": float(n)} for n in range(300)]
    for start in range(0, 300, size):
        send(world, job_id, start, lines[start : start + size])
    with world.database.read() as session:
        attempt_id = session.scalars(select(Attempt.id)).one()
        for start in range(300):
            found = metric_store.lines_between(
                session, attempt_id, rank=0, start=start, end=start + 5
            )
            assert [line["line"] for line in found] == list(range(start, min(start + 5, 300)))


def test_curves_go_on_over_attempts_and_since_a_step(world: World) -> None:
    job_id = running_job(world)
    send(world, job_id, 0, [{"step": n, "loss": float(n)} for n in range(10)])
    world.ann.post(f"/v1/jobs/{job_id}/requeue")
    record = exit_record(job_id, outcome="preempted", reason="Stopped.", result=None)
    seen = {"job_id": job_id, "epoch": 1, "phase": "exited", "exit": record}
    world.node.post("/v1/node/heartbeat", json=heartbeat(seen))
    free(world.database)
    place(world.database, job_id)
    send(world, job_id, 0, [{"step": n, "loss": 100.0 + n} for n in range(5, 15)], epoch=2)
    loss = series(world, job_id, "loss")
    assert loss["steps"] == list(range(15))
    assert loss["values"] == [0.0, 1.0, 2.0, 3.0, 4.0] + [100.0 + n for n in range(5, 15)]
    assert series(world, job_id, "loss", since_step=12)["steps"] == [13, 14]
    assert series(world, job_id, "loss", resolution=3)["max"] == [4.0, 109.0, 114.0]


def test_a_chart_of_a_million_points_is_quick(world: World) -> None:
    job_id = running_job(world)
    count, size = 1_000_000, metric_store.LARGE_BLOCK
    values = np.random.default_rng(1).normal(size=count)
    with world.database.write() as session:
        attempt_id = session.scalars(select(Attempt.id)).one()
        for start in range(0, count, size):
            part = np.arange(start, min(start + size, count), dtype=np.int64)
            points = Points(part, part, values[start : start + size])
            session.execute(
                insert(MetricChunk).values(
                    attempt_id=attempt_id,
                    rank=0,
                    key="loss",
                    first_line=start,
                    count=len(part),
                    steps=pack_steps(points, start),
                    values=points.values.tobytes(),
                )
            )
    took = []
    for _ in range(5):
        began = time.perf_counter()
        loss = series(world, job_id, "loss", resolution=1000)
        took.append(time.perf_counter() - began)
    assert loss["points"] == count
    assert min(loss["min"]) == values.min()
    assert max(loss["max"]) == values.max()
    print(f"a chart of {count:,} points: {min(took) * 1000:.0f} ms")  # noqa: T201
    assert min(took) < 1.0  # the goal is 0.1 s on a quiet machine; benchmarks measure it
