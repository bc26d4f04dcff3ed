"""The first refusal is what evaluate() names first, whatever was asked under the policy before."""

from datetime import UTC, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.document import DEFAULT, Policy
from core.policy.evaluate import evaluate, first_refusal
from core.policy.verdict import BookingRequest, Grant, LeaseFact, Member, NodeRef, Situation, Span
from core.states import LeaseState
from tests.core.policy.asking import (
    ANN,
    COURSE,
    HOUR,
    LONG,
    NOW,
    OTHER_SINGLE,
    SECOND,
    SINGLE,
    THIRD,
    policy,
)

LAB = """  lab_cap: {scope: lab, period: week, max_node_hours: {daytime: 6, overnight: 4}}
  open:"""
POLICIES = [
    COURSE,
    policy(("crossing: counts_as_day", "crossing: forbid"), ("mode: soft", "mode: hard")),
    policy(("crossing: counts_as_day", "crossing: prorate"), ("  open:", LAB)),
    policy(
        ("same_user_back_to_back: merge", "same_user_back_to_back: forbid"),
        ("cohorts_enforced: false", "cohorts_enforced: true"),
        ('period: window          # "another', 'period: night          # "another'),
    ),
    DEFAULT,
]
NODES = st.sampled_from([LONG, SECOND, THIRD, SINGLE, OTHER_SINGLE])
FIRST = NOW.astimezone(UTC) - 6 * HOUR
STARTS = st.integers(0, 60).map(lambda hours: FIRST + hours * HOUR)
HOURS = st.integers(1, 4)


@st.composite
def facts(draw: st.DrawFn) -> LeaseFact:
    start, user = draw(STARTS), draw(st.sampled_from([ANN.id, "user_bob"]))
    return LeaseFact(
        id=f"lease_{draw(st.integers(0, 9999))}",
        user_id=user,
        lab_id="lab_1",
        node=draw(NODES),
        start=start,
        end=start + draw(HOURS) * HOUR,
        kind=draw(st.sampled_from(["booked", "booked", "walk_in"])),
        state=draw(st.sampled_from([LeaseState.BOOKED, LeaseState.ACTIVE, LeaseState.ENDED])),
        counts=draw(st.booleans()),
        created_at=NOW,
    )


GRANTS = st.builds(
    Grant,
    st.just("grant"),
    st.sampled_from(["quota_main", "quota_extra", "bad_block_length", "outside_window", "lab_cap"]),
    st.integers(1, 2),
    st.just(FIRST),
    STARTS,
    st.just("Because."),
)
MEMBERS = st.builds(
    Member,
    st.just(ANN.id),
    st.just(ANN.lab_ids),
    st.sampled_from([ANN.groups, frozenset()]),
    st.sampled_from([{"netid_parity": "even"}, {"netid_parity": "odd"}, {}]),
    st.booleans(),
    st.lists(GRANTS, max_size=2).map(tuple),
)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    lab = tuple(draw(st.lists(facts(), max_size=6, unique_by=lambda fact: fact.id)))
    spans = draw(st.lists(st.tuples(STARTS, HOURS), max_size=3))
    return Situation(
        now=FIRST + timedelta(minutes=draw(st.integers(0, 12 * 60))),
        own=tuple(fact for fact in lab if fact.user_id == ANN.id),
        lab=lab,
        holds=tuple(Span(start, start + hours * HOUR) for start, hours in sorted(spans)),
        node_available=draw(st.sampled_from([True, True, False])),
        cancels_today=draw(st.sampled_from([0, 7])),
    )


def fresh(rules: Policy) -> Policy:
    """The same rules, which remember nothing."""
    return rules.with_windows(rules.windows)


@settings(max_examples=150)
@given(
    st.sampled_from(POLICIES),
    MEMBERS,
    situations(),
    st.lists(st.tuples(NODES, STARTS, HOURS), min_size=1, max_size=8),
)
def test_the_first_refusal_is_the_first_that_a_verdict_names(
    rules: Policy, member: Member, situation: Situation, wanted: list[tuple[NodeRef, object, int]]
) -> None:
    for node, start, hours in wanted:
        request = BookingRequest(member, node, start, start + hours * HOUR)
        verdict = evaluate(request, situation, fresh(rules), offers=0)
        first = verdict.reasons[0] if verdict.reasons else None
        assert first_refusal(request, situation, rules) == first
