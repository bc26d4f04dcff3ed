"""Numbers for Prometheus, and the dashboard that draws them."""

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from core.base.clock import utc_now
from scheduler.leadership import LeadershipClaim
from tests.api.conftest import World
from tests.api.shapes import job_spec, place

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
NAME = re.compile(r"trainyard_[a-z_]+")


def told(world: World) -> dict[str, float]:
    """Every sample by name and labels."""
    lines = world.nobody.get("/metrics").text.splitlines()
    samples = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_the_numbers_follow_what_happens(world: World) -> None:
    before = told(world)
    assert before["trainyard_scheduler_leads"] == 0
    assert before["trainyard_oldest_waiting_seconds"] == 0
    job_id = world.ann.post("/v1/jobs", json=job_spec()).json()["id"]
    after = told(world)
    assert after['trainyard_jobs{state="queued"}'] == 1
    assert after["trainyard_oldest_waiting_seconds"] > 0
    place(world.database, job_id)
    assert told(world)['trainyard_jobs{state="starting"}'] == 1
    assert told(world)['trainyard_nodes{state="ready"}'] == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_number_of_the_dashboard_is_told(world: World) -> None:
    world.ann.get("/v1/me")
    text = world.nobody.get("/metrics").text
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE)
    known = {name for name, _ in types} | {
        f"{n}_bucket" for n, kind in types if kind == "histogram"
    }
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for panel in panels for t in panel["targets"] for name in NAME.findall(t["expr"])}
    assert len(asked) >= 10
    assert asked <= known
    drawn = {name.removesuffix("_bucket") for name in asked}
    assert {name for name, _ in types if not name.endswith("_created")} == drawn


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_leaders_cycles_are_told(world: World) -> None:
    """The scheduler is another process: what it counted is in its row, at every renewal."""
    assert "trainyard_scheduler_cycle_seconds_count" not in told(world)
    now = 0.0
    leadership = LeadershipClaim(world.database, holder="box", ttl_s=15.0, monotonic=lambda: now)
    assert leadership.hold()
    for took_s, pause_s in ((0.02, 0.98), (0.02, 0.98), (3.0, 4.0)):
        leadership.numbers.cycles.add(took_s)
        leadership.numbers.pauses.add(pause_s)
    leadership.numbers.ended_at = utc_now() - timedelta(seconds=40)
    now = 6.0
    assert leadership.hold()
    numbers = told(world)
    assert numbers["trainyard_scheduler_cycle_seconds_count"] == 3
    assert numbers['trainyard_scheduler_cycle_seconds_bucket{le="0.025"}'] == 2
    assert numbers['trainyard_scheduler_cycle_seconds_bucket{le="5.0"}'] == 3
    assert numbers["trainyard_scheduler_pause_seconds_sum"] == pytest.approx(5.96)
    assert 40 <= numbers["trainyard_scheduler_last_cycle_seconds"] < 100


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_slow_bookings_do_not_hide_behind_quick_lists(world: World) -> None:
    world.ann.get("/v1/leases")
    world.ann.post("/v1/leases", json={})
    numbers = told(world)
    for method in ("GET", "POST"):
        sample = f'trainyard_http_request_seconds_count{{method="{method}",route="/v1/leases"}}'
        assert numbers[sample] == 1
