"""What a document may say but hardly means, and what a new version changes."""

from datetime import datetime

import pytest

from core.policy.advice import advice
from core.policy.changes import changes
from core.policy.verdict import NodeRef
from tests.core.policy.asking import COURSE, NEW_YORK, NOW, policy

SITE = [
    NodeRef(f"node_{name}", name, class_name)
    for class_name, hardware in COURSE.classes.items()
    for name in hardware.nodes
]


def test_the_course_policy_gets_no_advice_on_its_own_site_in_its_own_time() -> None:
    assert advice(COURSE, SITE, NOW) == []


def test_a_share_of_a_lab_that_is_not_here_is_told() -> None:
    shared = policy(("min_useful_min: 30", "shares: {vision: 8, speech: 4}"))
    assert advice(shared, SITE, NOW, labs=["vision", "speech"]) == []
    told = advice(shared, SITE, NOW, labs=["speech"])
    assert told == ["scheduling.shares: there is no lab vision here."]


def test_nodes_that_are_not_here_are_named() -> None:
    told = advice(COURSE, SITE[1:], NOW)
    assert told == [
        "classes.a100x4: there is no node 307G3Q3 here.",
        "pools.long: there is no node 307G3Q3 here.",
    ]
    elsewhere = policy(("{class: a100x1, hours", "{class: h100x8, hours"))
    assert "pools.single: no node here is of class h100x8." in advice(elsewhere, SITE, NOW)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{pool: long, hours: 3}", "{pool: long, hours: 2}", "quotas.main.one-long: no block"),
        ("{pool: all, hours: 3}", "{pool: all, hours: 1}", "quotas.extra.night: no block"),
        ("max_future_leases: 3", "max_future_leases: 0", "quotas.open: max_future_leases is 0"),
        ("_of: overnight, quota: main", "_of: overnight", "quotas.main: no band"),
        ("grace_min: 5 ", "anchor_min: 30\n  grace_min: 5 ", "grid.anchor_min"),
        ("hours: [2, 3]}", "hours: [7]}", "bands.overnight: no block of 7 hours"),
        ("never_leave_hours: [1]}  ", "never_leave_hours: [1, 2]}  ", "gaps.never_leave_hours"),
        ('["2025-02-10T00:00"', '["2025-02-27T22:00"', "shorter"),
        ('], opens_at: "2025-02-20T00:00"', '], opens_at: "2025-02-21T00:00"', "after the window"),
    ],
)  # fmt: skip
def test_rules_that_can_never_bite_or_be_met_are_named(old: str, new: str, words: str) -> None:
    told = advice(policy((old, new)), SITE, NOW)
    assert any(words in sentence for sentence in told)


def test_windows_that_are_over_are_told() -> None:
    later = datetime(2025, 3, 1, tzinfo=NEW_YORK)
    [told] = advice(COURSE, SITE, later)
    assert told == (
        "windows: all of them ended by Fri 2025-02-28 00:00 -05:00; nothing can be booked."
    )


def test_a_new_version_is_told_field_by_field() -> None:
    changed = policy(
        ("version: 1 ", "version: 2 "),
        ("horizon_days: 21", "horizon_days: 14"),
        ("{pool: all, hours: 3}", "{pool: all, hours: 2}"),
        ("open: {max_future_leases: 3, max_concurrent_leases: 1}", "daily: {max_open_leases: 2}"),
        ("strikes: 3}", "strikes: 2}"),
    )
    assert changes(COURSE, changed) == [
        "grid.horizon_days: changed from 21 to 14.",
        "quotas.extra.one_of: {name: night, slots: [{pool: [all], hours: 3}], "
        "distinct_times: false} was removed.",
        "quotas.extra.one_of: {name: night, slots: [{pool: [all], hours: 2}], "
        "distinct_times: false} was added.",
        "quotas.open was removed; it was {scope: user, period: window, max_future_leases: 3, "
        "max_concurrent_leases: 1}.",
        "quotas.daily was added: {scope: user, period: window, max_open_leases: 2}.",
        "no_show.strikes: changed from 3 to 2.",
    ]
    assert changes(COURSE, COURSE) == []
