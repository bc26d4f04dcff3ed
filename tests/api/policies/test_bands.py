"""What a calendar is told of the rules: bands, windows, and the demand before a window closes."""

from datetime import datetime, timedelta

import pytest

from tests.api.conftest import World
from tests.api.policies.test_policies import book, document, post
from tests.api.times import next_hour

NIGHT = """
bands:
  night: {local: ["22:00", "06:00"]}
  day: {complement_of: night}
"""
BERLIN_WINTER = timedelta(hours=1)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Nothing here differs between the databases."""
    return sqlite_url


def bands(world: World, start: str, hours: int) -> list[dict]:
    answer = world.ann.get("/v1/bands", params={"start": start, "hours": hours})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def forecasts(world: World) -> list[dict]:
    answer = world.ann.get("/v1/leases/forecast")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def test_without_rules_every_hour_is_open(world: World) -> None:
    [found] = bands(world, next_hour(), 24)
    assert (found["policy"], found["nodes"], found["bands"]) == ("default", ["box"], [])
    assert found["windows"] is None
    assert forecasts(world) == []


def test_nights_are_told_whole_in_the_zone_of_the_rules(world: World) -> None:
    post(world, document(more=NIGHT))
    [found] = bands(world, "2036-12-01T23:00:00+00:00", 24)
    assert (found["policy"], found["zone"]) == ("lab", "Europe/Berlin")
    spans = [(one["starts_at"], one["ends_at"]) for one in found["bands"]]
    begins = [datetime.fromisoformat(start) for start, _ in spans]
    assert [(at + BERLIN_WINTER).strftime("%d %H") for at in begins] == ["01 22", "02 22"]
    assert found["windows"] == [], "the window of this week is over by then"


def test_a_night_in_which_clocks_change_is_an_hour_shorter_or_longer(world: World) -> None:
    post(world, document(more=NIGHT))
    for start, hours in (("2026-03-28T22:00:00+00:00", 7), ("2026-10-24T22:00:00+00:00", 9)):
        [found] = bands(world, start, 1)
        [night] = found["bands"]
        length = datetime.fromisoformat(night["ends_at"]) - datetime.fromisoformat(
            night["starts_at"]
        )
        assert length == timedelta(hours=hours)


def test_windows_are_those_of_the_nodes(world: World) -> None:
    post(world, document())
    [found] = bands(world, next_hour(), 24)
    [window] = found["windows"]
    assert window["name"] == "small"


def test_too_many_hours_are_refused(world: World) -> None:
    answer = world.ann.get("/v1/bands", params={"start": next_hour(), "hours": 10_000})
    assert (answer.status_code, answer.json()["param"]) == (422, "hours")


def test_demand_is_what_the_quotas_of_all_leave(world: World) -> None:
    quota = "quotas: {main: {period: window, max_node_hours: {all: 10}}}\n"
    post(world, document(more=quota))
    [before] = forecasts(world)
    assert (before["policy"], before["nodes"], before["people"]) == ("lab", ["box"], 2)
    assert before["unspent_hours"] == 20, "ann and bob; staff are not counted"
    assert round(before["unmet_hours"], 6) == 0, "the last day may be an hour long"
    assert sum(day["free_hours"] for day in before["days"]) == before["free_hours"]
    assert 166 <= before["free_hours"] <= 168
    assert "% of the free hours are taken" in before["message"]
    assert book(world, 2, 3)["status"] == 201
    [after] = forecasts(world)
    assert after["unspent_hours"] == 17
    assert after["free_hours"] == before["free_hours"] - 3


def test_slots_count_by_their_best_alternative(world: World) -> None:
    slots = "slots: [{pool: small, hours: 3}, {pool: small, hours: 2}]"
    post(world, document(more=f"quotas: {{main: {{one_of: [{{name: two, {slots}}}]}}}}\n"))
    assert [one["unspent_hours"] for one in forecasts(world)] == [10]
    assert book(world, 2, 3)["status"] == 201
    assert [one["unspent_hours"] for one in forecasts(world)] == [7]


def test_quotas_that_begin_anew_count_once_for_each_week(world: World) -> None:
    post(world, document(more="quotas: {main: {period: week, max_node_hours: {all: 10}}}\n"))
    [before] = forecasts(world)
    starts = [datetime.fromisoformat(day["start"]) + BERLIN_WINTER for day in before["days"]]
    weeks = {start.isocalendar().week for start in starts}
    assert before["unspent_hours"] == 20 * len(weeks), "ann and bob"
    assert book(world, 2, 3)["status"] == 201
    [after] = forecasts(world)
    assert after["unspent_hours"] == before["unspent_hours"] - 3


def test_a_block_each_night_comes_beside_the_quota_of_the_window(world: World) -> None:
    quotas = """
  main: {period: window, one_of: [{name: one, slots: [{pool: small, hours: 3}]}]}
  nights: {period: night, one_of: [{name: night, slots: [{pool: all, hours: 2}]}]}
"""
    rules = NIGHT.replace('"06:00"]', '"06:00"], quota: nights').replace(
        "night}", "night, quota: main}"
    )
    post(world, document(more=f"{rules}quotas:{quotas}"))
    [found] = forecasts(world)
    assert found["unspent_hours"] == 2 * (3 + 2 * len(found["days"]))


def test_quotas_that_count_no_hours_give_no_forecast(world: World) -> None:
    post(world, document(more="quotas: {main: {max_future_leases: 3}}\n"))
    assert forecasts(world) == []
