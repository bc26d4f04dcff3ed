"""An instructor asks whether the hours are enough, with what is there or with something else."""

from datetime import timedelta
from pathlib import Path

import pytest

from core.base.clock import utc_now
from core.policy.grid import HOUR, hour_floor
from tests.api.agendas.test_agendas import lease
from tests.api.conftest import World
from tests.api.courses.bundle import POLICY, sdk, write_bundle
from trainyard import Forbidden, Invalid, NotFound

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def course(world: World, tmp_path: Path) -> None:
    """The course of the bundle, which began three days ago, with bob in it."""
    with sdk(world, "ada") as ada:
        day = (utc_now() - timedelta(days=3)).date()
        assert ada.courses.apply(write_bundle(tmp_path), day).applied
    added = world.admin.post("/v1/labs/ml-students/members", json={"user": "bob"})
    assert added.is_success


@pytest.mark.usefixtures("course")
def test_the_forecast_knows_the_roster_the_rules_and_the_bookings(world: World) -> None:
    with sdk(world, "stefan") as stefan:
        found = stefan.courses.forecast("ml-lab", "two")
        assert (found.policy, found.students, found.have_all) == ("ml-lab", 3, 0)
        assert found.needs == ("2 h on nodes",)
        assert [(one.pool, one.nodes) for one in found.pools] == [("nodes", 1)]
        assert {one.user for one in found.prospects} == {"bob", "eve", "sam"}
        assert found.whole == 1

        lease(world, user="bob", start=hour_floor(utc_now()) + 30 * HOUR)
        found = stefan.courses.forecast("ml-lab", "two")
        assert found.have_all == 1
        assert [one.user for one in found.prospects if one.has_all] == ["bob"]

        crowd = stefan.courses.forecast("ml-lab", "two", students=191, days_left=2)
        assert (crowd.students, crowd.have_all) == (191, 1)
        assert crowd.whole < 0.2
        assert "Nearly full: box" in crowd.message
        helped = stefan.courses.forecast(
            "ml-lab", "two", students=191, days_left=2, nodes={"nodes": 20}
        )
        assert len(helped.nodes) == 20
        assert helped.whole > 3 * crowd.whole
    with sdk(world, "bob") as bob, pytest.raises(Forbidden):
        bob.courses.forecast("ml-lab", "two")


@pytest.mark.usefixtures("course")
def test_wrong_assumptions_name_the_field_and_the_number(world: World) -> None:
    with sdk(world, "stefan") as stefan:
        with pytest.raises(Invalid, match="ml-lab has no pool 'gpus', it has: nodes"):
            stefan.courses.forecast("ml-lab", "two", nodes={"gpus": 4})
        with pytest.raises(Invalid, match="days_left"):
            stefan.courses.forecast("ml-lab", "two", days_left=0)
        with pytest.raises(NotFound, match="no exercise 'three'"):
            stefan.courses.forecast("ml-lab", "three")


def test_a_policy_is_asked_before_it_is_in_force(world: World) -> None:
    text = POLICY.replace("${version}", "1").replace("${day 1}", "2027-01-25")
    text = text.replace("${day 15}", "2027-01-28")
    with sdk(world, "stefan") as stefan:
        found = stefan.courses.forecast_policy(text, 30)
        assert (found.students, [one.node for one in found.nodes]) == (30, ["box"])
        assert found.deadline.isoformat().startswith("2027-01-28")
        assert found == stefan.courses.forecast_policy(text, 30)
        with pytest.raises(Invalid, match="policy"):
            stefan.courses.forecast_policy("policy: {}", 30)
        with pytest.raises(Invalid, match="names no nodes"):
            stefan.courses.forecast_policy("policy: {id: none}", 30)
