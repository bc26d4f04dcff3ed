"""Forecasts of a course: against counts worked out by hand, and against what must hold."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.base.errors import BadRequest
from core.courses.demand import Booker, Demand, alternatives, outlook
from core.courses.population import ARRIVAL, arrival
from core.courses.what_if import WhatIf, changed, made_up, nodes_named
from core.policy.document import Policy, load
from core.policy.grid import HOUR
from core.policy.verdict import LeaseFact, Span
from core.states import LeaseState

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
RULES = """\
policy: {id: small}
classes: {box: {nodes: [box-1, box-2], gpus: 4}}
pools: {boxes: {class: box, hours: [2], title: a box}}
windows: [{pool: boxes, usable: ["2026-11-23T00:00", "2026-11-25T00:00"], opens_at: now}]
who: {group: ml}
quotas: {main: {period: window, one_of: [{name: one, slots: [{pool: boxes, hours: 2}]}]}}
"""
ROOT = Path(__file__).parents[3]
COURSE = ROOT / "examples" / "policies" / "course.yaml"
POLICIES = ROOT / "docs" / "policies.md"


def demand(students: int, text: str = RULES, **changes: object) -> Demand:
    policy = load(text)
    begins, deadline = policy.whole
    made = Demand(
        policy=policy,
        nodes={ref: () for ref in nodes_named(policy)},
        students=[Booker(member) for member in made_up(students, "ml", policy)],
        begins=begins,
        now=begins,
        deadline=deadline,
        hours=2,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def booked(policy: Policy, at: int) -> tuple[LeaseFact, Span]:
    """A block of two hours on the first node, and what it holds."""
    node = nodes_named(policy)[0]
    start = MONDAY + at * HOUR
    lease = LeaseFact(
        id="lease_1",
        user_id="student 1",
        lab_id=None,
        node=node,
        start=start,
        end=start + 2 * HOUR,
        kind="booked",
        state=LeaseState.BOOKED,
        counts=True,
        created_at=MONDAY,
    )
    return lease, Span(lease.start, lease.end, lease.id)


def test_students_come_as_the_beta_distribution_says() -> None:
    assert ARRIVAL == (5.0, 2.0)
    assert arrival(0.5) == pytest.approx(0.735550, abs=1e-6)  # median of Beta(5, 2), by tables
    assert arrival(0.0) == pytest.approx(0.0, abs=1e-9)
    assert arrival(1.0) == pytest.approx(1.0, abs=1e-6)
    assert arrival(0.0, since=0.9) == pytest.approx(0.9)
    # of those who come after the median, half come after the upper quartile
    assert arrival(0.5, since=arrival(0.5)) == pytest.approx(arrival(0.75))


def test_the_last_hours_decide_though_the_first_ones_would_be_enough() -> None:
    found = outlook(demand(6))
    assert found.whole > 0.9
    assert [one.hours for one in found.loads] == [48, 48]
    assert sum(one.booked_hours for one in found.loads) >= 2 * 0.9 * 6
    # Hours for 48, but half of 20 students come in the last 12 hours, which have room for 12.
    assert outlook(demand(20)).whole < 0.8


def test_no_node_is_held_beyond_its_hours_and_most_go_away_if_hundreds_come() -> None:
    found = outlook(demand(200))
    assert all(one.booked_hours <= one.hours for one in found.loads)
    assert 0 < found.whole < 0.25  # 48 blocks at most for 200
    assert found.whole + found.part + found.nothing == pytest.approx(1)
    soon, late = found.arrivals[0], found.arrivals[-1]
    assert (soon.days_left, late.days_left) == (1, 0)
    assert soon.served > late.served


def test_equal_questions_have_equal_answers() -> None:
    assert outlook(demand(40)) == outlook(demand(40))


def test_who_has_booked_has_all_and_takes_the_hours_from_others() -> None:
    asked = demand(30)
    lease, span = booked(asked.policy, 40)
    first, *others = asked.students
    nodes = {ref: (span,) if ref == lease.node else () for ref in asked.nodes}
    mine = replace(asked, nodes=nodes, students=[replace(first, leases=(lease,)), *others])
    found = outlook(mine)
    assert (found.prospects[0].has_all, found.prospects[0].whole) == (True, 1)
    assert not any(one.has_all for one in found.prospects[1:])
    everything = Span(MONDAY, MONDAY + timedelta(days=2), "lease_2")
    full = outlook(replace(asked, nodes={ref: (everything,) for ref in asked.nodes}))
    assert (full.whole, full.part) == (0, 0)


def test_more_days_and_nodes_serve_more_and_fewer_students_leave_more() -> None:
    asked = demand(60)

    def share(what_if: WhatIf) -> float:
        return outlook(changed(asked, what_if, group="ml")).whole

    as_it_is = share(WhatIf())
    assert share(WhatIf(days_left=4)) > as_it_is > share(WhatIf(days_left=1))
    assert share(WhatIf(nodes={"boxes": 4})) > as_it_is > share(WhatIf(nodes={"boxes": 1}))
    assert share(WhatIf(students=20)) > as_it_is > share(WhatIf(students=120))
    assert len(changed(asked, WhatIf(nodes={"boxes": 5}), group="ml").nodes) == 5


@pytest.mark.parametrize(
    ("what_if", "told"),
    [
        (WhatIf(nodes={"gpus": 2}), "small has no pool 'gpus', it has: boxes"),
        (WhatIf(days_left=61), "at most 60 days to the deadline; this would be of 61"),
        (WhatIf(students=1001), "at most 1000 students; this would be of 1001"),
    ],
)
def test_assumptions_out_of_bounds_are_refused(what_if: WhatIf, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        changed(demand(3), what_if, group="ml")


def test_nights_are_left_out_and_a_policy_without_alternatives_asks_for_one_block() -> None:
    course = load(COURSE.read_text())
    long, short = alternatives(course, 3)
    assert [(room.pools, room.hours) for room in long] == [(("long",), 3)]
    assert [room.hours for room in short] == [2, 2]
    plain = "policy: {id: plain}\nclasses: {box: {nodes: [box-1]}}\npools: {boxes: {class: box}}\n"
    assert [[room.hours for room in rooms] for rooms in alternatives(load(plain), 4)] == [[4]]
    asked = demand(4, plain, begins=MONDAY, now=MONDAY, deadline=MONDAY + timedelta(days=21))
    found = outlook(replace(asked, hours=4))
    assert found.whole == 1
    assert found.loads[0].booked_hours >= 16


@pytest.mark.slow
def test_the_course_of_the_example_is_short_of_late_hours() -> None:
    found = outlook(_course("soft"), seeds=1)
    assert 0.5 < found.whole < 0.95
    assert found.arrivals[0].served > found.arrivals[-1].served


def _course(mode: str) -> Demand:
    text = COURSE.read_text()
    line = "gaps: {mode: soft, never_leave_hours: [1]}"
    assert line in text
    policy = load(text.replace(line, f"gaps: {{mode: {mode}}}"))
    members = made_up(191, "course-s25", policy)
    begins, deadline = policy.whole
    return Demand(
        policy=policy,
        nodes={ref: () for ref in nodes_named(policy)},
        students=[Booker(member) for member in members],
        begins=begins,
        now=begins,
        deadline=deadline,
        hours=3,
    )


@pytest.mark.slow
def test_the_numbers_of_the_document_are_those_of_the_forecast() -> None:
    nothing = {}
    for mode in ("off", "soft", "hard"):
        found = outlook(_course(mode))
        long = found.loads[0]
        shares = [f"{100 * share:.1f} %" for share in (found.whole, found.part, found.nothing)]
        row = [mode, *shares, f"{100 * long.booked_hours / long.hours:.0f} %"]
        assert f"| {' | '.join(row)} |" in POLICIES.read_text(), mode
        nothing[mode] = found.nothing
    assert max(nothing["soft"], nothing["hard"]) < nothing["off"]
