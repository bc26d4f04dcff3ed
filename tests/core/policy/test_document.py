"""Reading a policy: what is unclear or contradicts itself is refused, with its line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.base.strict_text import BadText
from core.policy.advice import advice
from core.policy.document import BadPolicy, load
from tests.core.policy.asking import COURSE, COURSE_TEXT, LONG, NOW, ask, codes, policy


def test_the_course_policy_reads_and_says_what_handover_needs() -> None:
    table = COURSE.timetable
    assert (table.checkpoint_s, table.stop_s, table.kill_after_stop_s) == (600, 300, 30)
    assert table.notify_s == (1800, 900)
    assert [window.opens_at is None for window in COURSE.times] == [True, False]


def test_every_switch_of_the_course_policy_reads_too() -> None:
    """A line that begins with "#|" is the other reading of the lines above it."""
    lines = COURSE_TEXT.splitlines()
    switches = [at for at, line in enumerate(lines) if line.strip().startswith("#| ")]
    assert len(switches) > 8
    replaced = {
        "crossing: prorate": "crossing: counts_as_day",
        "crossing: forbid": "crossing: counts_as_day",
        "period: night": 'period: window          # "another block" is one in all',
        "cohorts_enforced: true": "cohorts_enforced: false",
        "gaps: {mode: hard, never_leave_hours: [1]}": "gaps: {mode: soft, never_leave_hours: [1]}",
    }
    for new, old in replaced.items():
        assert any(new in lines[at] for at in switches), new
        policy((old, new))
    policy(
        (
            "slots: [{pool: single, hours: 2}, {pool: second, hours: 2}]",
            "slots: [{pool: [single, second], hours: 2}, {pool: [single, second], hours: 2}]",
        )
    )
    policy(('opens_at: "2025-02-20T00:00"', "opens_at: now"))
    policy(("  #| lab_cap:", "  lab_cap:"))
    policy(
        ("soft_fit: on ", "soft_fit: off"),
        ("backfill_after_min: 15, ", ""),
        ("  #| shares:", "  shares:"),
    )
    policy(("  #| min_run_min:", "  min_run_min:"), ("  #| preemptible:", "  preemptible:"))
    kept = next(line for line in lines if line.startswith("no_show:"))
    policy((kept, ""), ("#| no_show:\n#|  ", "no_show:\n "))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('["01:00", "07:00"]', "[01:00, 07:00]", ["Line ", '"01:00"', "quotes"]),
        ('["01:00", "07:00"]', "[100, 700]", ["bands.overnight.local", "line", "must be text"]),
        ('["01:00", "07:00"]', '["1:00", "7:00"]', ["bands.overnight.local", "line"]),
        ('["01:00", "07:00"]', '["07:00", "07:00"]', ["bands.overnight.local", "ends when"]),
        ("America/New_York ", "Amerika/New_York ", ["policy.zone", "IANA"]),
        ("America/New_York ", "America ", ["policy.zone", "IANA"]),
        ("America/New_York ", "Australia/Lord_Howe ", ["policy.zone", "a fraction of an hour"]),
        ("crossing: counts_as_day", "crossing: sometimes", ["crossing", "line", "prorate"]),
        ("grace_min: 5 ", "grace_mins: 5 ", ["grid.grace_mins", "line", "does not exist"]),
        ("grace_min: 5 ", "grace_min: 6 ", ["end_of_lease", "at_min: -6"]),
        ("quota: extra,", "quota: night,", ["bands.overnight.quota", "main, extra"]),
        ("quota: extra,", "quota: open,", ["bands.overnight.quota", "no slots"]),
        ("{pool: long, hours: 3}", "{pool: lang, hours: 3}", ["quotas.main.one_of.0", "'lang'"]),
        ("{pool: long, usable", "{pool: lang, usable", ["windows.0.pool", "long, single"]),
        (
            '["2025-02-10T00:00", "2025-02-28T00:00"]',
            '["2025-02-28T00:00", "2025-02-28T00:00"]',
            ["windows.0.usable", "ends before it starts"],
        ),
        (
            "{pool: [single, second], us",
            "{pool: [single, long], us",
            ["windows.1.usable", "overlaps"],
        ),
        ('"2025-02-10T00:00"', '"2025-03-09T02:30"', ["windows.0.usable", "does not exist"]),
        ('"2025-02-28T00:00"], opens_at: now', '"2025-11-02T01:30"], opens_at: now', ["twice"]),
        ('opens_at: "2025-02-20T00:00"', 'opens_at: "2025-03-20T00:00"', ["windows.1.opens_at"]),
        ("{class: a100x1, hours", "{hours", ["pools.single", "nodes"]),
        ("[P3-GPU-009, P3-GPU-012], gpus", "[JOBG3Q3], gpus", ["classes.v100x4", "a100x4"]),
        ("complement_of: overnight", "complement_of: night", ["bands.daytime", "overnight"]),
        ("cohort_key: netid_parity", "# cohort_key", ["who", "cohort_key"]),
        ("soft_fit: on ", "soft_fit: maybe ", ["scheduling.soft_fit", "line"]),
        ("min_useful_min: 30", "shares: {vision: 0}", ["scheduling.shares.vision", "line"]),
        ("strikes: 3}", "penalty_days: 3}", ["no_show.penalty_days", "strikes"]),
        (
            "backfill_after_min: 15",
            "backfill_after_min: 30",
            ["no_show.backfill_after_min", "less than 30 minutes"],
        ),
        (
            "soft_fit: on ",
            "soft_fit: off ",
            ["no_show.backfill_after_min", "soft_fit, which is off"],
        ),
        (
            "strikes: 3}",
            "strikes: 3, penalty_days: 3, penalty_horizon_days: 21}",
            ["no_show.penalty_horizon_days", "21 days"],
        ),
        ("kill_after_s: 30", "kill_after_s: 120, at_min: -5", ["twice"]),
        ("do: notify}\n  - {at_min: -15", "do: dance}\n  - {at_min: -15", ["end_of_lease.0.do"]),
        ("max_future_leases: 3,", "max_future_leases: -3,", ["quotas.open.max_future_leases"]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_field_and_line(
    old: str, new: str, words: list[str]
) -> None:
    with pytest.raises((BadPolicy, BadText)) as caught:
        policy((old, new))
    for word in words:
        assert word in caught.value.message


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(BadPolicy) as caught:
        policy(("crossing: counts_as_day", "crossing: x"), ("horizon_days: 21", "horizon_days: 0"))
    assert {flaw.param for flaw in caught.value.flaws} == {"crossing", "grid.horizon_days"}
    assert all("(line " in flaw.message for flaw in caught.value.flaws)


@pytest.mark.parametrize(
    "text", ["", "- a", "policy: 3", "policy: {id: a b}", "a: &a [*a]", "\x00"]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises((BadPolicy, BadText)):
        load(text)


def test_a_policy_of_one_line_is_one() -> None:
    assert load("policy: {id: open}").version == 1


WORDS = sorted(set(COURSE_TEXT.split()))
BROKEN = ["null", "-1", "[]", "{}", "1.5", '""', "9" * 30, "{a: {b: [1]}}", "true", '"\\u0000"']


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from(BROKEN + WORDS)), min_size=1, max_size=3
    ),
    st.integers(0, len(COURSE_TEXT.splitlines())),
)
def test_whatever_is_wrong_in_a_document_is_told_and_never_a_crash(
    swaps: list[tuple[str, str]], gone: int
) -> None:
    lines = COURSE_TEXT.splitlines()
    text = "\n".join(lines[:gone] + lines[gone + 1 :])
    for old, new in swaps:
        text = text.replace(old, new, 1)
    try:
        rules = load(text)
    except (BadPolicy, BadText) as error:
        told = error.message
    else:
        told = "It is a policy."
        codes(ask(LONG, "02-21 15:00", 3, rules=rules))
        assert all(sentence.endswith(".") for sentence in advice(rules, [LONG], NOW))
    assert told.endswith((".", ")"))
