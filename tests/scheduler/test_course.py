"""A course before its deadline: every booking is legal, and the gap rule loses fewer hours."""

from pathlib import Path

import pytest

from core.policy.document import Policy, load
from simulation.course import Course, compare_gap_rules

POLICY = Path(__file__).parents[2] / "examples" / "policies" / "course.yaml"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load(POLICY.read_text())


def test_the_gap_rule_loses_fewer_hours_and_serves_no_fewer_students(policy: Policy) -> None:
    found = compare_gap_rules(policy, [1, 2])
    assert list(found) == ["off", "soft", "hard"]
    assert found["hard"].lost_to_gaps < found["off"].lost_to_gaps
    assert found["hard"].got_quota >= found["off"].got_quota
    assert 0.0 < found["off"].got_quota < 1.0


def test_equal_seeds_give_equal_courses(policy: Policy) -> None:
    assert Course(policy, 3).run() == Course(policy, 3).run()
    assert Course(policy, 3).run() != Course(policy, 4).run()
