"""Rules that the numbered cases leave out: caps, exceptions, extensions, neighbours, offers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.document import DEFAULT, Policy, load, policy_for
from core.policy.verdict import LIFTABLE, Grant, LeaseFact, Member, NodeRef, RequestKind, Span
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
    ask,
    codes,
    lease,
    left,
    local,
    policy,
    starts,
)

CAPPED = policy(("  #| lab_cap:", "  lab_cap:"), ("daytime: 40", "daytime: 7"))
FREE = load("policy: {id: free, zone: America/New_York}")


def grant(
    rule: str, extra: int = 0, *, start: str = "02-20 00:00", end: str = "02-28 00:00"
) -> Grant:
    return Grant("grant_1", rule, extra, local(start), local(end), "Was ill.")


# ------------------------------------------------------------------------------------------ caps


def test_a_lab_cap_counts_the_whole_lab_by_week_and_band() -> None:
    bob = lease(LONG, "02-20 09:00", 3, user="user_bob")
    eve = lease(LONG, "02-20 15:00", 3, user="user_eve", state=LeaseState.ENDED)
    night = lease(SECOND, "02-20 01:00", 3, user="user_eve", state=LeaseState.ENDED)
    last_week = lease(LONG, "02-14 15:00", 3, user="user_bob", state=LeaseState.ENDED)
    lab = (bob, eve, night, last_week)
    refused = ask(LONG, "02-21 15:00", 3, lab=lab, rules=CAPPED)
    assert codes(refused) == ["lab_cap"]
    assert refused.reasons[0].numbers == {
        "used": 6,
        "limit": 7,
        "asked_hours": 3,
        "band": "daytime",
    }
    assert "daytime: 1 daytime node-hours of your lab this week" in left(refused)
    following = ask(LONG, "02-24 15:00", 3, lab=lab, rules=CAPPED)  # Monday
    assert codes(following) == []
    assert "daytime: 4 daytime node-hours of your lab this week" in left(following)
    assert codes(ask(LONG, "02-21 01:00", 3, lab=lab, rules=CAPPED)) == []
    without_lab = replace(ANN, lab_ids=frozenset())
    assert codes(ask(LONG, "02-21 15:00", 3, lab=lab, rules=CAPPED, member=without_lab)) == []
    elsewhere = replace(ANN, lab_ids=frozenset({"lab_2"}))
    assert codes(ask(LONG, "02-21 15:00", 3, lab=lab, rules=CAPPED, member=elsewhere)) == []


def test_a_refunded_lease_counts_for_nothing() -> None:
    refunded = lease(LONG, "02-20 15:00", 3, counts=False, state=LeaseState.CANCELLED)
    assert codes(ask(LONG, "02-21 15:00", 3, refunded)) == []
    late = replace(refunded, counts=True)
    assert codes(ask(LONG, "02-21 15:00", 3, late)) == ["quota_main"]


def test_leases_on_nodes_of_no_pool_are_not_charged() -> None:
    elsewhere = lease(NodeRef("node_x", "somewhere-else", "cpu2"), "02-20 15:00", 3)
    assert codes(ask(LONG, "02-21 15:00", 3, elsewhere)) == []


def test_a_part_of_the_night_counts_only_its_hours_outside_when_prorated() -> None:
    rules = policy(
        ("crossing: counts_as_day", "crossing: prorate"),
        ("  #| lab_cap:", "  lab_cap:"),
        ("daytime: 40", "daytime: 1"),
    )
    assert codes(ask(SINGLE, "02-21 06:00", 2, rules=rules)) == []
    assert codes(ask(SINGLE, "02-21 07:00", 2, rules=rules)) == ["lab_cap"]


def test_open_future_and_concurrent_leases_are_limited() -> None:
    ahead = tuple(lease(LONG, f"02-2{day} 09:00", 3) for day in (2, 3, 4))
    rules = load(
        "policy: {id: few, zone: America/New_York}\n"
        "quotas: {open: {max_future_leases: 3, max_concurrent_leases: 2}}\n"
    )
    verdict = ask(SECOND, "02-25 09:00", 3, *ahead, rules=rules)
    assert codes(verdict) == ["too_many_open"]
    assert verdict.reasons[0].numbers == {"used": 3, "limit": 3}
    running = replace(ahead[0], state=LeaseState.ACTIVE)
    assert codes(ask(SECOND, "02-25 09:00", 3, running, *ahead[1:], rules=rules)) == []
    beside = lease(THIRD, "02-22 11:00", 3)
    assert codes(ask(SECOND, "02-22 08:00", 4, ahead[0], beside, rules=rules)) == ["overlaps_own"]
    assert codes(ask(SECOND, "02-22 08:00", 3, ahead[0], beside, rules=rules)) == []


# -------------------------------------------------------------------------------------- no-shows

FORGETFUL = policy(("strikes: 3}", "strikes: 2, within_days: 10, penalty_days: 3}"))
MISSED = (local("02-16 09:00"), local("02-19 09:00"))


def test_who_did_not_come_too_often_only_walks_in_for_a_while() -> None:
    verdict = ask(LONG, "02-21 15:00", 3, rules=FORGETFUL, no_shows=MISSED)
    assert codes(verdict) == ["no_shows"]
    (reason,) = verdict.reasons
    assert "You did not show up for 2 of your leases in the last 10 days" in reason.message
    assert "Until Sat 2025-02-22 09:00 -05:00 you may only use walk-ins" in reason.message
    assert reason.numbers == {
        "used": 2,
        "limit": 2,
        "within_days": 10,
        "until": "2025-02-22T09:00-05:00",
        "horizon_days": 0,
    }
    walk_in = RequestKind.WALK_IN
    asked = ask(SINGLE, NOW, 1, rules=FORGETFUL, no_shows=MISSED, kind=walk_in)
    assert "no_shows" not in codes(asked)


def test_a_penalty_ends_strikes_are_forgotten_and_the_last_but_one_is_a_warning() -> None:
    over = local("02-22 09:00")
    assert codes(ask(LONG, "02-24 15:00", 3, rules=FORGETFUL, no_shows=MISSED, now=over)) == []
    old = (local("02-09 09:00"), MISSED[1])  # eleven days ago
    verdict = ask(LONG, "02-21 15:00", 3, rules=FORGETFUL, no_shows=old)
    assert codes(verdict) == []
    assert "After one more, booking is restricted for 3 days." in verdict.warnings[-1].message
    counted_only = ask(LONG, "02-21 15:00", 3, no_shows=MISSED * 9)
    assert codes(counted_only) == []


def test_staff_lift_it_and_a_policy_may_only_shorten_the_horizon() -> None:
    excused = (grant("no_shows", 1),)
    fine = ask(LONG, "02-21 15:00", 3, rules=FORGETFUL, no_shows=MISSED, exceptions=excused)
    assert codes(fine) == []
    near = policy(
        ("strikes: 3}", "strikes: 2, within_days: 10, penalty_days: 3, penalty_horizon_days: 2}")
    )
    assert codes(ask(LONG, "02-22 12:00", 3, rules=near, no_shows=MISSED)) == []
    late = ask(LONG, "02-22 13:00", 3, rules=near, no_shows=MISSED)
    assert codes(late) == ["no_shows"]
    assert "you may only book up to 2 days ahead" in late.reasons[0].message
    assert late.next_starts


# ------------------------------------------------------------------------------------ exceptions


def test_an_exception_raises_a_limit_for_its_time_and_says_nothing_else() -> None:
    held = lease(LONG, "02-21 15:00", 3)
    assert codes(ask(SINGLE, "02-22 15:00", 2, held)) == ["quota_main"]
    one_more = (grant("quota_main", 1),)
    assert codes(ask(SINGLE, "02-22 15:00", 2, held, exceptions=one_more)) == []
    two = (held, lease(SINGLE, "02-22 15:00", 2))
    assert codes(ask(OTHER_SINGLE, "02-23 15:00", 2, *two, exceptions=one_more)) == ["quota_main"]
    over = (grant("quota_main", 1, end="02-22 00:00"),)
    assert codes(ask(SINGLE, "02-22 15:00", 2, held, exceptions=over)) == ["quota_main"]
    another = (grant("quota_extra", 1),)
    assert codes(ask(SINGLE, "02-22 15:00", 2, held, exceptions=another)) == ["quota_main"]


def test_an_exception_from_a_rule_without_a_number_turns_it_into_a_warning() -> None:
    verdict = ask(LONG, "02-21 15:00", 2, exceptions=(grant("bad_block_length"),))
    assert codes(verdict) == []
    told = {reason.code: reason.message for reason in verdict.warnings}
    assert told["bad_block_length"].endswith("Allowed by an exception: Was ill.")


def test_nobody_can_lift_what_is_not_a_rule_of_the_house() -> None:
    taken = Span(local("02-21 15:00"), local("02-21 18:00"), "lease_bob")
    for code in ("node_taken", "in_the_past", "off_grid", "node_down"):
        assert code not in LIFTABLE
    verdict = ask(LONG, "02-21 15:00", 3, holds=(taken,), exceptions=(grant("node_taken", 9),))
    assert codes(verdict) == ["node_taken"]


# -------------------------------------------------------------------------- walk-ins, extensions


def test_a_walk_in_may_be_refused_or_short() -> None:
    now = local("02-21 10:20")
    none = policy(("walk_in: {allowed: true", "walk_in: {allowed: false"))
    walk_in = {"kind": RequestKind.WALK_IN, "now": now}
    assert codes(ask(SINGLE, now, 40 / 60, rules=none, **walk_in)) == ["walk_in_refused"]
    assert codes(ask(SINGLE, now, 40 / 60, **walk_in)) == []
    long = ask(SINGLE, now, 100 / 60, **walk_in)
    assert codes(long) == ["bad_block_length"]
    assert long.reasons[0].numbers == {"limit": 1, "asked": 1.58}
    free = policy(("max_hours: 1, charged: true", "charged: false"))
    full = lease(LONG, "02-22 15:00", 3)
    uncharged = ask(SINGLE, now, 100 / 60, full, rules=free, **walk_in)
    assert codes(uncharged) == []
    assert uncharged.charge.quota is None


def test_a_walk_in_that_is_refused_hears_when_it_would_not_be() -> None:
    now = local("02-21 22:20")
    held = lease(LONG, "02-22 15:00", 3)
    verdict = ask(SINGLE, now, 100 / 60, held, now=now, kind=RequestKind.WALK_IN, offers=1)
    assert codes(verdict) == ["bad_block_length", "quota_main"]
    short = ask(SINGLE, now, 40 / 60, held, now=now, kind=RequestKind.WALK_IN, offers=1)
    assert codes(short) == ["quota_main"]
    assert starts(short) == ["02-22 01:00"], "at night it is charged to the other quota"
    nothing = lease(SECOND, "02-22 01:00", 3)
    used_up = ask(SINGLE, now, 40 / 60, held, nothing, now=now, kind=RequestKind.WALK_IN)
    assert starts(used_up) == []


def test_a_walk_in_beyond_its_window_is_outside() -> None:
    now = local("02-27 23:30")
    outside = ask(SINGLE, now, 1.5, now=now, kind=RequestKind.WALK_IN)
    assert "outside_window" in codes(outside)


@pytest.mark.parametrize(
    ("line", "changed", "hours", "expected"),
    [
        ("allowed: true, only", "allowed: false, only", 3, ["extension_refused"]),
        ("step_hours: 1", "step_hours: 2", 3, ["bad_block_length"]),
        ("step_hours: 1", "step_hours: 1", 2, ["bad_block_length"]),
        ("horizon_days: 21", "horizon_days: 21\n  max_block_hours: 2", 3, ["bad_block_length"]),
    ],
)
def test_an_extension_keeps_to_its_own_rules(
    line: str, changed: str, hours: int, expected: list[str]
) -> None:
    running = lease(LONG, "02-21 15:00", 2, state=LeaseState.ACTIVE)
    verdict = ask(
        LONG,
        "02-21 15:00",
        hours,
        running,
        rules=policy((line, changed)),
        now=local("02-21 16:30"),
        kind=RequestKind.EXTENSION,
        replaces=(running,),
    )
    assert codes(verdict) == expected


# ------------------------------------------------------------------------------------ neighbours


def test_touching_leases_may_be_allowed_forbidden_or_kept_apart() -> None:
    line = "adjacency: {same_user_back_to_back: merge}"
    before = lease(SECOND, "02-22 15:00", 2)
    wide = ("slots: [{pool: single, hours: 2}, {pool: second, hours: 2}]",
            "slots: [{pool: second, hours: 2}, {pool: second, hours: 2}]")  # fmt: skip
    allow = policy((line, "adjacency: {same_user_back_to_back: allow}"), wide)
    forbid = policy((line, "adjacency: {same_user_back_to_back: forbid}"), wide)
    apart = policy((line, "adjacency: {cooldown_min: 120}"), wide)
    assert codes(ask(SECOND, "02-22 17:00", 2, before, rules=allow)) == []
    assert codes(ask(SECOND, "02-22 17:00", 2, before, rules=forbid)) == ["back_to_back"]
    assert codes(ask(SECOND, "02-22 18:00", 2, before, rules=forbid)) == []
    close = ask(SECOND, "02-22 18:00", 2, before, rules=apart)
    assert codes(close) == ["back_to_back"]
    assert close.reasons[0].numbers == {"limit": 120}
    assert codes(ask(SECOND, "02-22 19:00", 2, before, rules=apart)) == []
    assert codes(ask(SECOND, "02-22 12:00", 2, before, rules=apart)) == ["back_to_back"]


def test_hours_that_merge_are_one_lease_of_the_quota() -> None:
    rules = policy(("hours: [2], title: another", "hours: [1, 2], title: another"))
    before = lease(SECOND, "02-22 15:00", 1)
    joined = ask(SECOND, "02-22 16:00", 1, before, rules=rules)
    assert codes(joined) == []
    assert "two-short: one 2-hour block on a single-GPU node" in left(joined)
    apart = ask(SECOND, "02-22 17:00", 1, before, rules=rules)
    assert codes(apart) == ["quota_main"]


# --------------------------------------------------------------------- which policy, which starts


def test_the_policy_that_judges_is_the_one_for_this_person_on_this_node() -> None:
    theirs = load("policy: {id: theirs}\npools: {x: {nodes: [307G3Q3]}}\nwho: {group: other}")
    ours = load("policy: {id: ours}\npools: {x: {nodes: [307G3Q3]}}\nwho: {group: course-s25}")
    for policies in ((theirs, ours), (ours, theirs)):
        assert policy_for(ANN, LONG, policies) is ours
    assert policy_for(Member("user_eve"), LONG, (theirs, ours)) is theirs
    assert policy_for(ANN, SECOND, (theirs, ours)) is DEFAULT
    assert policy_for(ANN, SECOND, (theirs, FREE)) is FREE


NODES = st.sampled_from([LONG, SECOND, THIRD, SINGLE])
STARTS = st.integers(-24, 24 * 9).map(lambda hours: NOW.astimezone(UTC) + hours * HOUR)
LEASES = st.lists(
    st.builds(
        lambda node, start, hours: lease(node, start, hours), NODES, STARTS, st.integers(1, 3)
    ),
    max_size=3,
    unique_by=lambda fact: fact.id,
)
POLICIES = st.sampled_from(
    [
        COURSE,
        CAPPED,
        FREE,
        DEFAULT,
        policy(("crossing: counts_as_day", "crossing: prorate")),
        policy(("gaps: {mode: soft, never_leave_hours: [1]}", "gaps: {mode: hard}")),
        policy(("adjacency: {same_user_back_to_back: merge}", "adjacency: {cooldown_min: 60}")),
    ]
)


@settings(max_examples=60)
@given(NODES, STARTS, st.integers(1, 4), LEASES, LEASES, POLICIES)
def test_every_start_that_is_offered_is_accepted(
    node: NodeRef,
    start: datetime,
    hours: int,
    own: list[LeaseFact],
    taken: list[LeaseFact],
    rules: Policy,
) -> None:
    holds = tuple(Span(fact.start, fact.end, f"lease_of_another_{fact.id}") for fact in taken)
    verdict = ask(node, start, hours, *own, rules=rules, holds=holds)
    codes(verdict)
    assert len(verdict.next_starts) <= 3
    assert list(verdict.next_starts) == sorted(set(verdict.next_starts))
    for offered in verdict.next_starts:
        assert codes(ask(node, offered, hours, *own, rules=rules, holds=holds)) == []
        assert abs(offered - start) <= timedelta(days=10)
    if verdict.ok:
        assert verdict.next_starts == ()
        assert verdict.charge.hours >= 1


def test_hours_that_one_holds_oneself_are_called_so() -> None:
    mine = lease(LONG, "02-21 15:00", 3)
    verdict = ask(LONG, "02-21 15:00", 3, mine)
    taken = next(reason for reason in verdict.reasons if reason.code == "node_taken")
    assert taken.message.startswith(
        f"You hold these hours already: your lease of {LONG.name} is from Fri 2025-02-21 15:00"
    )


def test_a_quota_to_which_nothing_is_charged_is_not_told_as_left() -> None:
    assert {rest.quota for rest in ask(LONG, "02-21 15:00", 3).left} >= {"main", "extra"}
    uncharged = policy(("_of: overnight, quota: main", "_of: overnight"))
    assert "main" not in {rest.quota for rest in ask(LONG, "02-21 15:00", 3, rules=uncharged).left}
