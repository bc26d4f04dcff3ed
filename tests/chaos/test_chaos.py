"""The fault campaign itself: its plans replay, its counting counts, and it finds nothing."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "worker"))

from tests.chaos.campaign import Report, plan_round, play
from tests.chaos.counting import overlaps
from tests.chaos.faults import faults_for
from tests.chaos.fleet import running_fleet
from tests.chaos.table import table
from tests.chaos.workbenches import SLOTS, play_workbenches
from worker.scripts.sandbox import find_level

FAULTS = sorted(faults_for("postgresql", is_root=True))


def test_a_seed_and_a_number_make_the_same_round_again() -> None:
    again = plan_round(7, 3, FAULTS)
    assert plan_round(7, 3, FAULTS) == again
    assert plan_round(8, 3, FAULTS) != again
    assert plan_round(7, 4, FAULTS) != again


def test_every_fault_has_its_turn() -> None:
    first = {plan_round(1, number, FAULTS).strikes[0].fault for number in range(len(FAULTS))}
    assert first == set(FAULTS)


def test_processes_of_one_job_that_overlap_are_told() -> None:
    one, after, inside = ("a.1.10", 0.0, 5.0), ("a.2.11", 5.1, 9.0), ("a.2.12", 4.0, 4.5)
    assert overlaps("a", [after, one]) == []
    assert overlaps("a", [one, inside, after]) == ["a ran twice at once: a.1.10 and a.2.12"]


def test_the_table_counts_a_round_for_each_of_its_faults() -> None:
    plan = plan_round(1, 0, FAULTS)
    name = plan.strikes[0].fault.replace("_", " ")
    lost = Report(plan=plan, submitted=3, recovery_s=None, lost=["job_a is gone"])
    fine = Report(plan=plan, submitted=2, recovery_s=1.25)
    assert f"| {name} | 2 | 5 | 1 | 0 | 1.2 s | never |" in table([lost, fine])
    assert not lost.is_good
    assert fine.is_good


@pytest.mark.slow
@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_few_rounds_lose_and_double_nothing(kind: str) -> None:
    faults = faults_for(kind, is_root=os.geteuid() == 0)
    with running_fleet(kind) as fleet:
        for number in range(4):
            report = play(fleet, plan_round(2026, number, sorted(faults)), faults)
            assert report.is_good, report


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_level().level is None, reason="no sandbox can be built here")
def test_the_workbenches_of_twenty_people_on_two_nodes_keep_their_shells() -> None:
    with running_fleet("sqlite", slots=SLOTS) as fleet:
        assert play_workbenches(fleet, faults_for("sqlite", is_root=fleet.is_root), 2026) == []
