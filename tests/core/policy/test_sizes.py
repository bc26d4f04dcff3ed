"""Leases of some GPUs of a node: sizes, quotas, gaps; and whole nodes as they were before."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.advice import advice
from core.policy.document import DEFAULT, BadPolicy, Policy, load
from core.policy.evaluate import evaluate, first_refusal
from core.policy.gaps import hours_made_dead
from core.policy.matching import CountedLease, Room, rooms_left
from core.policy.verdict import (
    BookingRequest,
    LeaseFact,
    Member,
    NodeRef,
    RequestKind,
    Situation,
    Span,
    Verdict,
)
from core.states import LeaseState, Sharing
from tests.core.policy.asking import HOUR, NEW_YORK, ROOT, codes, left, local, policy
from tests.core.policy.test_first_refusal import (
    MEMBERS,
    NODES,
    POLICIES,
    STARTS,
    fresh,
    situations,
)

TEXT = (ROOT / "examples" / "policies" / "course-gpus.yaml").read_text(encoding="utf-8")
RULES = load(TEXT)
HARD = policy(("gaps: {mode: soft}", "gaps: {mode: hard}"), text=TEXT)
H100 = NodeRef("node_h1", "h100-1", "h100x4", slots=4, sharing=Sharing.FULL)
OTHER = replace(H100, id="node_h2", name="h100-2")
BO = Member("user_bo", groups=frozenset({"course-s26"}))
NOW = datetime(2026, 2, 2, 8, 0, tzinfo=NEW_YORK)


def when(text: str) -> datetime:
    return local(f"2026-{text}").astimezone(UTC)


def held(start: str, hours: int, num_slots: int | None = None) -> Span:
    return Span(when(start), when(start) + hours * HOUR, f"lease_of_others_{start}", num_slots)


def lease(start: str, hours: int = 3, num_slots: int | None = 1, node: NodeRef = H100) -> LeaseFact:
    begins = when(start)
    return LeaseFact(
        id=f"lease_{node.name}_{start}_{num_slots}",
        user_id=BO.id,
        lab_id=None,
        node=node,
        start=begins,
        end=begins + hours * HOUR,
        kind="booked",
        state=LeaseState.BOOKED,
        counts=True,
        created_at=NOW,
        num_slots=num_slots,
    )


def ask(
    gpus: int | None,
    start: str,
    *own: LeaseFact,
    hours: int = 3,
    node: NodeRef = H100,
    holds: tuple[Span, ...] = (),
    rules: Policy = RULES,
    kind: RequestKind = RequestKind.BOOKING,
) -> Verdict:
    """The verdict on `gpus` of a node; own leases hold their slots too."""
    begins = when(start)
    request = BookingRequest(BO, node, begins, begins + hours * HOUR, kind, num_slots=gpus)
    mine = [Span(f.start, f.end, f.id, f.num_slots) for f in own if f.node == node]
    situation = Situation(now=NOW, own=own, holds=(*holds, *mine))
    return evaluate(request, situation, rules)


# ----------------------------------------------------------------------------- the course's rules


def test_a_block_of_one_gpu_or_of_four_lasts_two_hours_and_fifty_minutes() -> None:
    assert codes(ask(1, "02-03 09:00")) == []
    assert codes(ask(4, "02-03 09:00")) == []
    assert codes(ask(None, "02-03 09:00")) == []  # the whole node: all four
    assert codes(ask(1, "02-03 09:00", hours=2)) == ["bad_block_length"]
    table = RULES.timetable
    assert (table.stop_s, table.checkpoint_s, RULES.grid.grace_s) == (600, 900, 600)
    assert advice(RULES, [H100, OTHER], NOW) == []


def test_only_listed_sizes_are_sold_and_parts_only_where_owners_can_be_kept_apart() -> None:
    two = ask(2, "02-03 09:00")
    assert codes(two) == ["bad_size"]
    assert two.reasons[0].message == "A lease on h100-1, which has 4 GPUs, has 1 or 4, not 2."
    assert two.reasons[0].numbers == {"asked": 2, "limit": 4, "allowed": "1, 4"}
    assert two.next_starts == ()
    alone = replace(H100, sharing=Sharing.NONE)
    assert codes(ask(1, "02-03 09:00", node=alone)) == ["sharing_unavailable"]
    assert codes(ask(4, "02-03 09:00", node=alone)) == []
    assert codes(ask(1, "02-03 09:00", node=replace(H100, sharing=Sharing.RECIPES))) == []


def test_a_policy_without_sizes_leases_whole_nodes_only() -> None:
    for rules in (DEFAULT, policy(("gpus: [1], ", ""), ("gpus: [4], ", ""), text=TEXT)):
        assert codes(ask(1, "02-03 09:00", rules=rules)) == ["bad_size"]
        assert codes(ask(None, "02-03 09:00", rules=rules)) == []
        assert codes(ask(4, "02-03 09:00", rules=rules)) == []


def test_slots_of_others_refuse_a_lease_only_if_too_few_are_free() -> None:
    three = (held("02-03 09:00", 3, 2), held("02-03 11:00", 2, 1))
    assert codes(ask(1, "02-03 09:00", holds=three)) == []
    refused = ask(4, "02-03 09:00", holds=three)
    assert codes(refused) == ["node_taken"]
    assert refused.reasons[0].message.startswith(
        "1 of 4 GPUs of h100-1 is free from Tue 2026-02-03"
    )
    assert refused.reasons[0].message.endswith("; this block needs 4.")
    assert codes(ask(1, "02-03 09:00", holds=(held("02-03 10:00", 1),))) == ["node_taken"]
    whole = ask(1, "02-03 09:00", holds=(held("02-03 10:00", 1),)).reasons[0]
    assert whole.message.startswith("h100-1 is held from")


def test_quotas_name_the_size_and_a_large_room_takes_no_more_than_it_says() -> None:
    assert left(ask(1, "02-03 09:00"))[1] == "two-single: one 3-hour block of 1 GPU on one H100"
    first = lease("02-03 09:00")
    assert codes(ask(1, "02-04 09:00", first)) == []
    refused = ask(4, "02-04 09:00", first)
    assert codes(refused) == ["quota_main", "user_cap"]
    assert refused.reasons[0].message == (
        "Quota main allows one 3-hour block of 4 GPUs on a node of four H100, or two 3-hour blocks "
        "of 1 GPU on one H100; you have already 3 h of 1 GPU on h100-1."
    )
    third = ask(1, "02-05 09:00", first, lease("02-04 09:00"))
    assert codes(third) == ["too_many_open", "quota_main"]
    charge = ask(4, "02-04 09:00").charge
    assert (charge.hours, charge.gpu_hours) == (3, 12)


def test_gpu_hours_are_capped_by_size_times_length() -> None:
    rules = policy(
        ("    max_gpu_hours: {all: 12}", "  cap: {max_gpu_hours: {all: 5}}"),
        ("hours: 3, gpus: 1}, {pool: one, hours: 3, gpus: 1}", "hours: 3}, {pool: one, hours: 3}"),
        text=TEXT,
    )
    assert codes(ask(1, "02-03 09:00", rules=rules)) == []
    second = ask(1, "02-04 09:00", lease("02-03 09:00"), rules=rules)
    assert codes(second) == ["user_cap"]
    assert second.reasons[0].message == "You have used 3 of 5 GPU-hours; this block needs 3."
    assert codes(ask(4, "02-03 09:00", rules=rules)) == ["user_cap"]
    assert "all: 2 GPU-hours" in left(ask(1, "02-03 09:00", rules=rules))


def test_touching_leases_of_one_size_are_one_block_and_of_two_sizes_are_two() -> None:
    loose = policy(
        ("gpus: [1],", "gpus: [1, 2],"),
        ("hours: 3, gpus: 1}, {pool: one, hours: 3, gpus: 1}", "hours: 3}, {pool: one, hours: 3}"),
        text=TEXT,
    )
    before = lease("02-03 09:00")
    assert codes(ask(1, "02-03 12:00", before, rules=loose)) == [
        "merged_too_long",
        "quota_main",
    ]
    assert codes(ask(2, "02-03 12:00", before, rules=loose)) == []
    beside = (lease("02-03 09:00", num_slots=1), lease("02-03 09:00", num_slots=2))
    assert "merged_too_long" not in codes(ask(1, "02-04 09:00", *beside, rules=loose))


def test_walk_ins_have_a_largest_size() -> None:
    assert codes(ask(1, "02-02 08:00", kind=RequestKind.WALK_IN)) == []
    refused = ask(4, "02-02 08:00", kind=RequestKind.WALK_IN)
    assert codes(refused) == ["bad_size"]
    assert "may have at most 1 GPU, and this one needs 4" in refused.reasons[0].message


# ------------------------------------------------------------------------------------------- gaps


def test_a_block_may_not_leave_gpus_free_in_hours_that_no_block_fits() -> None:
    taken = (
        held("02-03 09:00", 3, 3),
        held("02-03 16:00", 3, 4),
    )  # one GPU free, then four for 4 h
    fits = ask(1, "02-03 09:00", holds=taken, rules=HARD)
    assert codes(fits) == []
    late = ask(1, "02-03 10:00", holds=taken, rules=HARD)  # the GPU's hour at 9 is then useless
    assert codes(late) == []  # hours before are free: a block from 7 to 10 may cover it
    closed = (*taken, held("02-03 00:00", 9))
    refused = ask(1, "02-03 10:00", holds=closed, rules=HARD)
    assert codes(refused) == ["leaves_gap"]
    assert refused.reasons[0].numbers == {"lost_hours": 1}
    assert codes(ask(1, "02-03 09:00", holds=closed, rules=HARD)) == []


def test_an_hour_with_room_by_its_sum_is_not_dead_though_no_level_has_two_hours() -> None:
    shapes = {(1, 2)}
    # 1, 2 and 1 free: two blocks of two hours fit, one after the other begins.
    assert hours_made_dead([0, 1, 2, 1, 0], range(1, 3), size=1, shapes=shapes) == 0
    assert hours_made_dead([0, 1, 1, 1, 1, 0], range(2, 4), size=1, shapes=shapes) == 2
    assert hours_made_dead([0, 1, 1, 1, 0], range(1, 3), size=1, shapes=shapes) == 0  # unavoidable
    lost = hours_made_dead([0, 1, 1, 1, 1, 0], range(2, 4), size=1, shapes=shapes, never_leave=[2])
    assert lost == 0  # two runs of one hour, and none of two


# ---------------------------------------------------------------------------------------- matching


def test_the_tightest_room_takes_a_lease_first() -> None:
    start = datetime(2026, 2, 3, tzinfo=UTC)
    single = CountedLease(("one",), 2, start, start + 2 * HOUR, 1)
    rooms = [Room(("one",), 2, 4), Room(("one",), 3, 1), Room(("one",), 2)]
    assert rooms_left([single], rooms, distinct_times=False) == (rooms[0], rooms[2])
    quad = replace(single, gpus=4)
    assert rooms_left([quad, quad], rooms[:2], distinct_times=False) is None
    assert rooms_left([quad, single], rooms[:2], distinct_times=False) == ()


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gpus: [1],", "gpus: [0],", ["pools.one.gpus", "line"]),
        ("gpus: [1],", "gpus: 1,", ["pools.one.gpus", "line"]),
        (
            "pools:\n",
            "classes: {h100x4: {nodes: [h100-1], gpus: 2}}\npools:\n",
            ["pools.four.gpus", "has 2 GPUs, not 4"],
        ),
        (
            "  open: {max_future_leases: 2}",
            "  cap: {max_node_hours: {all: 3}}",
            ["quotas.cap.max_node_hours", "pool one lists gpus", "max_gpu_hours"],
        ),
        ("{all: 12}", "{night: 12}", ["quotas.main.max_gpu_hours", "'night'"]),
        (
            "max_future_leases: 2",
            "max_future_leases: 2, max_gpu_hours: {all: 3}",
            ["quotas.open", "exactly one"],
        ),
        ("max_gpus: 1", "max_gpus: 0", ["walk_in.max_gpus"]),
        ("at_min: -10", "at_min: -5", ["end_of_lease", "at_min: -10"]),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_with_their_field(
    old: str, new: str, words: list[str]
) -> None:
    with pytest.raises(BadPolicy) as caught:
        policy((old, new), text=TEXT)
    for word in words:
        assert word in caught.value.message


def test_advice_names_sizes_that_no_node_has_or_can_keep_apart() -> None:
    alone = replace(H100, sharing=Sharing.NONE)
    told = advice(RULES, [alone], NOW)
    assert told == [
        "pools.one: h100-1 cannot keep two owners apart, so 1 GPU of it cannot be booked."
    ]
    pair = replace(H100, slots=2)
    assert advice(RULES, [pair], NOW) == ["pools.four: none of its nodes has 4 GPUs."]
    small = policy(("four, hours: 3, gpus: 4", "four, hours: 3, gpus: 2"), text=TEXT)
    assert any(
        "no block of at most 2 GPUs can be booked on four" in a for a in advice(small, [H100], NOW)
    )


# ------------------------------------------------------------------------------------ as it was


@settings(max_examples=150)
@given(
    st.sampled_from(POLICIES),
    MEMBERS,
    situations(),
    st.lists(st.tuples(NODES, STARTS, st.integers(1, 4)), min_size=1, max_size=4),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(list(RequestKind)),
)
def test_without_sizes_whole_nodes_are_judged_the_same_with_and_without_a_number(
    rules: Policy,
    member: Member,
    situation: Situation,
    wanted: list[tuple[NodeRef, datetime, int]],
    slots: int,
    kind: RequestKind,
) -> None:
    """A policy that lists no sizes says about all n slots what it says about the whole node."""

    def numbered(fact: LeaseFact) -> LeaseFact:
        return replace(fact, node=replace(fact.node, slots=slots), num_slots=slots)

    counted = replace(
        situation,
        own=tuple(map(numbered, situation.own)),
        lab=tuple(map(numbered, situation.lab)),
        holds=tuple(replace(span, num_slots=slots) for span in situation.holds),
    )
    for node, start, hours in wanted:
        request = BookingRequest(member, node, start, start + hours * HOUR, kind)
        of_all = replace(request, node=replace(node, slots=slots), num_slots=slots)
        before = evaluate(request, situation, fresh(rules), offers=2)
        after = evaluate(of_all, counted, fresh(rules), offers=2)
        assert replace(after, charge=before.charge) == before
        assert after.charge.hours * slots == after.charge.gpu_hours
        assert first_refusal(of_all, counted, rules) == first_refusal(request, situation, rules)
