"""The term of 191 students that docs/policies.md tells of."""

import pytest

from benchmarks.term import simulate
from tests.core.policy.asking import policy

LINE = "gaps: {mode: soft, never_leave_hours: [1]}"


@pytest.mark.slow
def test_fewer_students_go_away_with_nothing_where_no_gaps_are_left() -> None:
    off, hard = (
        [simulate(policy((LINE, f"gaps: {{mode: {mode}}}")), seed) for seed in range(3)]
        for mode in ("off", "hard")
    )
    assert sum(o.whole + o.half for o in hard) > sum(o.whole + o.half for o in off)
    assert off == [simulate(policy((LINE, "gaps: {mode: off}")), seed) for seed in range(3)]
