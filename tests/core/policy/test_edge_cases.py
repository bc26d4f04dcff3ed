"""The numbered edge cases of bookings, as far as they are decided without a database.

Zone America/New_York, the course's policy, unless said. 2025-02-20 is a Thursday.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from core.policy.document import DEFAULT, BadPolicy, load
from core.policy.evaluate import evaluate
from core.policy.grid import hour_floor, usable_end, walk_in_end
from core.policy.local_time import UnclearTime, has_moved, resolve, stamp
from core.policy.verdict import BookingRequest, Member, RequestKind, Situation, Span
from core.states import LeaseState
from tests.core.policy.asking import (
    ANN,
    COURSE,
    HOUR,
    LONG,
    NEW_YORK,
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

NIGHTLY = policy(
    ('    period: window          # "another', '    period: night          # "another')
)
STRICT_SLOTS = "slots: [{pool: single, hours: 2}, {pool: second, hours: 2}]"
LOOSE_SLOTS = "slots: [{pool: [single, second], hours: 2}, {pool: [single, second], hours: 2}]"
LOOSE = policy((STRICT_SLOTS, LOOSE_SLOTS))
EVER = 'long, usable: ["2025-02-10T00:00", "2025-02-28T00:00"]'
ALL_YEAR = 'long, usable: ["2025-01-01T00:00", "2026-12-31T00:00"]'
WHOLE_YEAR = policy((EVER, ALL_YEAR))


def test_1_a_three_hour_block_is_held_for_three_hours_and_usable_to_five_to() -> None:
    verdict = ask(LONG, "02-21 15:00", 3)
    assert codes(verdict) == []
    assert verdict.charge.quota == "main"
    assert verdict.charge.hours == 3
    shown = usable_end(local("02-21 18:00"), COURSE.grid.grace_s)
    assert stamp(shown, NEW_YORK) == "2025-02-21T17:55-05:00"


def test_2_half_past_is_off_the_grid_and_both_full_hours_are_offered() -> None:
    verdict = ask(LONG, "02-21 15:30", 3)
    assert codes(verdict) == ["off_grid"]
    assert starts(verdict) == ["02-21 14:00", "02-21 15:00", "02-21 16:00"]
    assert verdict.reasons[0].numbers["next_start"] == "2025-02-21T16:00-05:00"


def test_3_the_usable_end_means_the_same_block_and_any_other_end_is_refused() -> None:
    assert codes(ask(LONG, "02-21 15:00", 3)) == []
    same = ask(LONG, "02-21 15:00", 3 - 5 / 60)
    assert codes(same) == []
    assert same.charge.hours == 3
    assert codes(ask(LONG, "02-21 15:00", 3 - 20 / 60)) == ["bad_block_length"]


@pytest.mark.parametrize("hours", [1, 4])
def test_4_other_lengths_are_refused_and_the_allowed_ones_listed(hours: int) -> None:
    verdict = ask(LONG, "02-21 15:00", hours)
    assert codes(verdict) == ["bad_block_length", "quota_main"][: 1 + (hours == 4)]
    assert verdict.reasons[0].numbers["allowed"] == "3"
    assert verdict.reasons[0].numbers["limit"] == 3


def test_5_block_lengths_by_day_are_those_of_the_pool_and_at_night_two_or_three() -> None:
    assert "bad_block_length" in codes(ask(SINGLE, "02-21 15:00", 3))
    assert "bad_block_length" in codes(ask(SECOND, "02-21 15:00", 3))
    assert codes(ask(LONG, "02-21 15:00", 2)) == ["bad_block_length"]
    for node in (LONG, SECOND, SINGLE):
        for hours in (2, 3):
            verdict = ask(node, "02-21 02:00", hours)
            assert codes(verdict) == []
            assert verdict.charge.quota == "extra"
        assert "bad_block_length" in codes(ask(node, "02-21 02:00", 4))


def test_6_a_block_may_begin_when_another_ones_hold_ends() -> None:
    before = Span(local("02-21 15:00"), local("02-21 18:00"), "lease_bob")
    assert codes(ask(LONG, "02-21 18:00", 3, holds=(before,))) == []


def test_7_an_overlap_by_an_hour_is_taken_and_the_nearest_starts_are_offered() -> None:
    before = Span(local("02-21 15:00"), local("02-21 18:00"), "lease_bob")
    verdict = ask(LONG, "02-21 17:00", 3, holds=(before,))
    assert codes(verdict) == ["node_taken"]
    assert verdict.reasons[0].numbers["held_until"] == "2025-02-21T18:00-05:00"
    assert starts(verdict) == ["02-21 18:00", "02-21 20:00", "02-21 21:00"]  # 19:00 leaves a gap


def test_8_after_one_short_block_the_other_is_left_or_the_long_one_by_a_swap() -> None:
    verdict = ask(SECOND, "02-21 15:00", 2)
    assert codes(verdict) == []
    assert left(verdict) == [
        "one-long: one 3-hour block on 307G3Q3, in place of the present leases",
        "two-short: one 2-hour block on a single-GPU node",
        "night: one 3-hour block on any node",
    ]


def test_9_two_short_blocks_on_four_gpu_nodes_are_too_many_unless_read_loosely() -> None:
    first = lease(SECOND, "02-21 15:00", 2)
    verdict = ask(THIRD, "02-22 15:00", 2, first)
    assert codes(verdict) == ["quota_main"]
    assert verdict.reasons[0].numbers["used"] == 1
    assert verdict.reasons[0].numbers["limit"] == 2
    assert codes(ask(THIRD, "02-22 15:00", 2, first, rules=LOOSE)) == []


def test_10_a_short_block_after_the_long_one_is_too_many() -> None:
    assert codes(ask(SINGLE, "02-22 15:00", 2, lease(LONG, "02-21 15:00", 3))) == ["quota_main"]


def test_11_the_two_short_blocks_lie_at_different_times() -> None:
    verdict = ask(SINGLE, "02-21 16:00", 2, lease(SECOND, "02-21 15:00", 2))
    assert codes(verdict) == ["overlaps_own", "distinct_times"]
    assert codes(ask(SINGLE, "02-21 17:00", 2, lease(SECOND, "02-21 15:00", 2))) == []


def test_12_touching_blocks_on_one_node_are_one_block_that_is_too_long() -> None:
    verdict = ask(SECOND, "02-21 17:00", 2, lease(SECOND, "02-21 15:00", 2))
    assert codes(verdict) == ["merged_too_long", "quota_main"]
    assert verdict.reasons[0].numbers == {"used": 4, "limit": 2}


def test_13_a_swap_is_judged_without_the_old_lease_and_with_the_taken_hours() -> None:
    old = lease(SECOND, "02-21 15:00", 2)
    assert codes(ask(LONG, "02-22 15:00", 3, old)) == ["quota_main"]
    assert codes(ask(LONG, "02-22 15:00", 3, old, replaces=(old,))) == []
    taken = Span(local("02-22 17:00"), local("02-22 20:00"), "lease_bob")
    verdict = ask(LONG, "02-22 15:00", 3, old, replaces=(old,), holds=(taken,))
    assert codes(verdict) == ["node_taken"]


def test_14_a_block_from_one_to_four_at_night_leaves_the_main_quota_alone() -> None:
    verdict = ask(LONG, "02-21 01:00", 3, lease(LONG, "02-22 15:00", 3))
    assert codes(verdict) == []
    assert verdict.charge.quota == "extra"


def test_15_a_block_that_ends_with_the_night_is_of_the_night() -> None:
    assert ask(SINGLE, "02-21 05:00", 2).charge.quota == "extra"


def test_16_a_block_over_the_edge_counts_as_by_day_or_is_refused_or_counts_in_part() -> None:
    as_day = ask(SINGLE, "02-21 06:00", 2)
    assert codes(as_day) == []
    assert (as_day.charge.quota, as_day.charge.hours) == ("main", 2)
    line = "crossing: counts_as_day"
    forbidden = ask(SINGLE, "02-21 06:00", 2, rules=policy((line, "crossing: forbid")))
    assert codes(forbidden) == ["crosses_band"]
    in_part = ask(SINGLE, "02-21 06:00", 2, rules=policy((line, "crossing: prorate")))
    assert (in_part.charge.quota, in_part.charge.hours) == ("main", 1)


def test_17_a_block_from_midnight_to_two_belongs_to_no_night() -> None:
    assert ask(SINGLE, "02-22 00:00", 2).charge.quota == "main"


def test_18_there_is_one_extra_block_in_all_or_one_each_night() -> None:
    first = lease(LONG, "02-21 04:00", 3)
    for rules, same, following in (
        (COURSE, ["quota_extra"], ["quota_extra"]),
        (NIGHTLY, ["quota_extra"], []),
    ):
        assert codes(ask(SECOND, "02-21 01:00", 3, first, rules=rules)) == same
        assert codes(ask(SECOND, "02-22 01:00", 3, first, rules=rules)) == following


def test_18b_a_walk_in_gets_the_same_verdict_and_is_free_of_limits_without_a_policy() -> None:
    now = local("02-21 10:57")
    end = walk_in_end(now, 40 * 60, COURSE.grid.grace_s)
    assert end == local("02-21 12:00")
    asked = BookingRequest(ANN, SINGLE, now, end, RequestKind.WALK_IN)
    by_day = evaluate(asked, Situation(now), COURSE)
    assert codes(by_day) == []
    assert (by_day.charge.quota, by_day.charge.hours) == ("main", 1)
    full = (lease(LONG, "02-22 15:00", 3),)
    assert codes(evaluate(asked, Situation(now, own=full), COURSE)) == ["quota_main"]
    booked = tuple(lease(LONG, local("03-01 15:00") + n * 5 * HOUR, 3) for n in range(20))
    assert codes(evaluate(asked, Situation(now, own=booked), DEFAULT)) == []


def test_19_a_clock_time_that_is_skipped_is_named_and_the_next_one_offered() -> None:
    with pytest.raises(UnclearTime) as caught:
        resolve(datetime(2025, 3, 9, 2), NEW_YORK)
    assert caught.value.code == "nonexistent_local_time"
    assert [stamp(c, NEW_YORK) for c in caught.value.choices] == ["2025-03-09T03:00-04:00"]
    assert "2025-03-09 03:00 -04:00" in caught.value.message


def test_20_three_hours_in_the_short_night_are_three_hours_that_pass() -> None:
    begins = local("2025-03-09 01:00")
    verdict = ask(LONG, begins, 3, rules=WHOLE_YEAR, now=local("2025-03-08 12:00"))
    assert codes(verdict) == []
    assert verdict.charge.quota == "extra"
    end = begins.astimezone(UTC) + 3 * HOUR
    assert stamp(end, NEW_YORK) == "2025-03-09T05:00-04:00"


def test_21_the_short_night_has_five_hours_so_six_go_beyond_it() -> None:
    rules = policy((EVER, ALL_YEAR), ("hours: [2, 3]}", "hours: [2, 3, 5, 6]}"))
    now = local("2025-03-08 12:00")
    begins = local("2025-03-09 01:00")
    assert stamp(begins.astimezone(UTC) + 6 * HOUR, NEW_YORK) == "2025-03-09T08:00-04:00"
    assert ask(LONG, begins, 5, rules=rules, now=now).charge.quota == "extra"
    assert ask(LONG, begins, 6, rules=rules, now=now).charge.quota == "main"
    a_week_later = local("2025-03-16 01:00")
    assert ask(LONG, a_week_later, 6, rules=rules, now=now).charge.quota == "extra"


def test_22_a_clock_time_that_comes_twice_is_named_with_both_choices() -> None:
    with pytest.raises(UnclearTime) as caught:
        resolve(datetime(2025, 11, 2, 1), NEW_YORK)
    assert caught.value.code == "ambiguous_local_time"
    choices = [stamp(c, NEW_YORK) for c in caught.value.choices]
    assert choices == ["2025-11-02T01:00-04:00", "2025-11-02T01:00-05:00"]


def test_23_both_one_o_clocks_of_the_long_night_are_blocks_of_their_own() -> None:
    rules = policy((EVER, ALL_YEAR), ("hours: [2, 3]}", "hours: [1]}"))
    now = local("2025-11-01 12:00")
    first = datetime.fromisoformat("2025-11-02T01:00-04:00")
    second = datetime.fromisoformat("2025-11-02T01:00-05:00")
    held = Span(first, first.astimezone(UTC) + HOUR, "lease_bob")
    assert codes(ask(LONG, second, 1, rules=rules, now=now, holds=(held,))) == []
    assert codes(ask(LONG, first, 1, rules=rules, now=now, holds=(held,))) == ["node_taken"]


@pytest.mark.parametrize(
    ("day", "hours", "of_the_night", "night_utc"),
    [
        ("2025-03-09", 23, 5, ("06:00", "11:00")),
        ("2026-03-08", 23, 5, ("06:00", "11:00")),
        ("2025-11-02", 25, 7, ("05:00", "12:00")),
        ("2026-11-01", 25, 7, ("05:00", "12:00")),
        ("2025-07-01", 24, 6, ("05:00", "11:00")),
        ("2025-01-15", 24, 6, ("06:00", "12:00")),
    ],
)
def test_24_days_have_their_true_hours_and_nights_theirs(
    day: str, hours: int, of_the_night: int, night_utc: tuple[str, str]
) -> None:
    midnight = local(f"{day} 00:00")
    following = local(f"{day} 00:00") + timedelta(days=1)  # on the clock of the zone
    columns = []
    at = midnight.astimezone(UTC)
    while at < following.astimezone(UTC):
        columns.append(at)
        at += HOUR
    assert len(columns) == hours
    nightly = [a for a in columns if COURSE.clock.place(a, a + HOUR).band == "overnight"]
    assert len(nightly) == of_the_night
    assert (f"{nightly[0]:%H:%M}", f"{nightly[-1] + HOUR:%H:%M}") == night_utc


def test_25_a_cap_per_day_counts_the_civil_day_of_25_hours_as_one() -> None:
    day_cap = "period: day, max_node_hours: {all: 5}"
    rules = policy(
        (EVER, ALL_YEAR),
        ("  open: {max_f", f"  daily: {{{day_cap}}}\n  open: {{max_f"),
        ("hours: [3]}", "hours: [1, 3]}"),
        ("slots: [{pool: long, hours: 3}]", "slots: [" + "{pool: long, hours: 3}, " * 4 + "]"),
    )
    now = local("2025-11-01 12:00")
    first = lease(LONG, "2025-11-02 09:00", 3)
    late = lease(LONG, "2025-11-02 20:00", 1)
    # 23:00 is 24 h after the day began, and still the same day.
    verdict = ask(LONG, "2025-11-02 23:00", 3, first, late, rules=rules, now=now)
    assert "user_cap" in codes(verdict)
    [reason] = [reason for reason in verdict.reasons if reason.code == "user_cap"]
    assert (reason.numbers["used"], reason.numbers["limit"]) == (4, 5)
    assert codes(ask(LONG, "2025-11-03 00:00", 1, first, late, rules=rules, now=now)) == []


def test_26_one_moment_with_two_offsets_is_one_moment() -> None:
    begins = datetime.fromisoformat("2025-02-21T15:00-05:00")
    utc = datetime.fromisoformat("2025-02-21T20:00+00:00")
    held = Span(utc, utc + 3 * HOUR, "lease_bob")
    assert codes(ask(LONG, begins, 3, holds=(held,))) == ["node_taken"]


@pytest.mark.parametrize(
    "text", ["2025-02-30T00:00", "2025-02-10T23:59:60", "infinity", "9999-01-01T00:00"]
)
def test_27_moments_that_are_none_are_refused_in_a_document(text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        policy(("2025-02-10T00:00", text))
    assert caught.value.status == 422
    assert "windows.0.usable" in caught.value.message


def test_28_the_grid_follows_zones_of_half_hours_and_lord_howe_is_refused() -> None:
    kolkata = ZoneInfo("Asia/Kolkata")
    text = "policy: {id: delhi, zone: Asia/Kolkata}\ngrid: {anchor_min: 30}\n"
    rules = load(text)
    now = datetime(2025, 2, 20, 12, tzinfo=kolkata)
    assert codes(ask(LONG, datetime(2025, 2, 21, 9, tzinfo=kolkata), 2, rules=rules, now=now)) == []
    off = ask(LONG, datetime(2025, 2, 21, 9, 30, tzinfo=kolkata), 2, rules=rules, now=now)
    assert codes(off) == ["off_grid"]
    assert off.reasons[0].numbers["next_start"] == "2025-02-21T10:00+05:30"
    with pytest.raises(BadPolicy, match="a fraction of an hour"):
        load("policy: {id: island, zone: Australia/Lord_Howe}")


def test_29_a_moved_rule_of_a_zone_is_seen_and_the_lease_stays_where_it_is() -> None:
    shown = "2025-07-01T15:00-04:00"
    assert not has_moved(shown, NEW_YORK)
    without_summer_time = ZoneInfo("America/Panama")  # as New York would be, had it none
    assert has_moved(shown, without_summer_time)


def test_30_a_hold_that_crosses_the_end_of_the_window_is_outside() -> None:
    verdict = ask(LONG, "02-27 23:00", 3)
    assert codes(verdict) == ["outside_window"]
    assert verdict.reasons[0].numbers["window_end"] == "2025-02-28T00:00-05:00"
    assert starts(verdict)[-1] == "02-27 21:00"


def test_31_a_second_before_it_opens_booking_is_not_open_and_then_it_is() -> None:
    opens = local("02-20 00:00")
    early = ask(SINGLE, "02-21 15:00", 2, now=opens - timedelta(seconds=1))
    assert codes(early) == ["not_open_yet"]
    assert early.reasons[0].numbers["opens_at"] == "2025-02-20T00:00-05:00"
    assert codes(ask(SINGLE, "02-21 15:00", 2, now=opens)) == []


def test_32_the_hour_that_runs_may_be_booked_in_full_if_a_late_start_is_allowed() -> None:
    now = local("02-21 15:10")
    verdict = ask(LONG, "02-21 15:00", 3, now=now)
    assert codes(verdict) == []
    assert verdict.charge.hours == 3
    assert codes(ask(LONG, "02-21 14:00", 3, now=now)) == ["in_the_past"]
    lead = policy(("min_lead_min: 0 ", "min_lead_min: 30 "))
    refused = ask(LONG, "02-21 15:00", 3, now=now, rules=lead)
    assert codes(refused) == ["too_soon"]
    assert starts(refused)[0] == "02-21 16:00"
    no_late = policy(("min_lead_min: 0 ", "late_start: false\n  min_lead_min: 0 "))
    assert codes(ask(LONG, "02-21 15:00", 3, now=now, rules=no_late)) == ["too_soon"]


def test_33_a_day_of_the_other_cohort_is_a_warning_or_a_refusal() -> None:
    enforced = policy(("cohorts_enforced: false", "cohorts_enforced: true"))
    friday, saturday = "02-21 15:00", "02-22 15:00"
    asked_for = ask(LONG, friday, 3)
    assert codes(asked_for) == []
    assert [reason.code for reason in asked_for.warnings] == ["cohort_day"]
    demanded = ask(LONG, friday, 3, rules=enforced)
    assert codes(demanded) == ["cohort_day"]
    assert starts(demanded)[-1].startswith("02-22")
    assert codes(ask(LONG, saturday, 3, rules=enforced)) == []
    nobody_knows = replace(ANN, attributes={})
    assert codes(ask(LONG, saturday, 3, rules=enforced, member=nobody_knows)) == ["cohort_day"]
    for is_staff, helps in ((False, "ask staff."), (True, "an administrator can set it.")):
        member = replace(nobody_knows, is_staff=is_staff)
        told = ask(LONG, saturday, 3, rules=enforced, member=member).reasons[0].message
        assert told.endswith(helps), "staff are not sent to staff"


def test_34_who_is_not_in_the_group_may_not_book_and_staff_may() -> None:
    stranger = Member("user_eve")
    assert codes(ask(LONG, "02-21 15:00", 3, member=stranger)) == ["not_eligible"]
    staff = Member("user_sue", is_staff=True)
    assert codes(ask(LONG, "02-21 15:00", 3, member=staff)) == []


def test_42_the_seventh_cancel_of_a_day_ends_booking_for_that_day() -> None:
    assert codes(ask(LONG, "02-21 15:00", 3, cancels_today=6)) == []
    verdict = ask(LONG, "02-21 15:00", 3, cancels_today=7)
    assert codes(verdict) == ["churn"]
    assert verdict.reasons[0].numbers == {"used": 7, "limit": 6}


def test_45_the_next_hour_is_added_in_the_last_hour_if_quota_and_neighbours_allow() -> None:
    running = lease(LONG, "02-21 15:00", 2, state=LeaseState.ACTIVE)
    extension = {"kind": RequestKind.EXTENSION, "replaces": (running,)}
    soon = local("02-21 16:10")
    assert codes(ask(LONG, "02-21 15:00", 3, running, now=soon, **extension)) == []
    early = ask(LONG, "02-21 15:00", 3, running, now=local("02-21 15:59"), **extension)
    assert codes(early) == ["too_soon"]
    assert early.reasons[0].numbers["opens_at"] == "2025-02-21T16:00-05:00"
    bob = Span(local("02-21 17:00"), local("02-21 20:00"), "lease_bob")
    blocked = ask(LONG, "02-21 15:00", 3, running, now=soon, holds=(bob,), **extension)
    assert codes(blocked) == ["node_taken"]


def test_47_an_extension_is_judged_anew_with_all_that_counts() -> None:
    running = lease(SECOND, "02-21 15:00", 2, state=LeaseState.ACTIVE)
    other = lease(SINGLE, "02-22 15:00", 2)
    verdict = ask(
        SECOND,
        "02-21 15:00",
        3,
        running,
        other,
        now=local("02-21 16:30"),
        kind=RequestKind.EXTENSION,
        replaces=(running,),
    )
    assert codes(verdict) == ["quota_main"]
    beyond = policy(("needs: [free_next_hold, quota_ok]", "needs: [free_next_hold]"))
    allowed = ask(
        SECOND,
        "02-21 15:00",
        3,
        running,
        other,
        now=local("02-21 16:30"),
        kind=RequestKind.EXTENSION,
        replaces=(running,),
        rules=beyond,
    )
    assert codes(allowed) == []


def test_67_a_new_version_judges_the_next_request_on_all_that_counts() -> None:
    held = (lease(SECOND, "02-21 15:00", 2), lease(SINGLE, "02-22 15:00", 2))
    only_long = policy(
        ("version: 1 ", "version: 4 "),
        (
            "slots: [{pool: single, hours: 2}, {pool: second, hours: 2}]",
            "slots: [{pool: second, hours: 2}]",
        ),
    )
    verdict = ask(OTHER_SINGLE, "02-23 15:00", 2, *held, rules=only_long)
    assert codes(verdict) == ["quota_main"]
    assert (verdict.policy_id, verdict.policy_version) == ("course-unit-4", 4)
    again = ask(SECOND, "02-23 15:00", 2, *held, rules=only_long)
    assert codes(again) == ["quota_main"], "what was granted before still counts"


def test_76_labels_carry_the_offset_so_that_both_one_o_clocks_differ() -> None:
    first = datetime.fromisoformat("2025-11-02T01:00-04:00")
    shown = [COURSE.clock.local_date(first + n * HOUR) for n in range(2)]
    assert shown[0] == shown[1]
    labels = {stamp(first.astimezone(UTC) + n * HOUR, NEW_YORK) for n in range(2)}
    assert labels == {"2025-11-02T01:00-04:00", "2025-11-02T01:00-05:00"}
    assert hour_floor(first) == first
    assert NOW.utcoffset() == timedelta(hours=-5)
