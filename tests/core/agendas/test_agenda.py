"""Agendas: the sum law, no job that fits and ends too late, whose turn it is, what is late."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.agendas.agenda import (
    HANDOVER,
    AgendaItem,
    Capacity,
    Outlook,
    Standing,
    lay_out,
    outlook,
    place_of,
)
from core.agendas.turns import AgendaMember, turns
from core.agendas.words import rules, summary
from core.states import JobState
from core.tables.kinds import OnFailure
from scheduler.queue.timeline import CLEANING_S
from tests.scheduler.world import at

SLOTS = 4
BEGINS, STOP = at(12), at(14, 55)
J = JobState
ITEMS = st.lists(
    st.builds(
        AgendaItem,
        name=st.just("a job"),
        slots=st.integers(1, SLOTS),
        budget_s=st.integers(60, 5 * 3600),
        expected_s=st.none() | st.floats(0, 1e5),
    ),
    min_size=1,
    max_size=8,
)
MOMENTS = st.integers(-3600, 6 * 3600).map(lambda s: BEGINS + timedelta(seconds=s))


def seen(
    items: list[AgendaItem],
    now: datetime = BEGINS,
    *,
    side_by_side: bool = False,
    beside: tuple[AgendaItem, ...] = (),
) -> Outlook:
    return outlook(
        items,
        begins=BEGINS,
        usable_end=STOP,
        now=now,
        slots=SLOTS,
        side_by_side=side_by_side,
        beside=beside,
    )


def minutes(
    budget: int, *, slots: int = SLOTS, name: str = "a job", **changes: object
) -> AgendaItem:
    return replace(AgendaItem(name=name, slots=slots, budget_s=60 * budget), **changes)  # type: ignore[arg-type]


def running(budget: int, since: datetime, now: datetime, **changes: object) -> AgendaItem:
    used_s = (now - since).total_seconds()
    return minutes(budget, state=J.RUNNING, started_at=since, used_s=used_s, **changes)


def done(budget: int, start: datetime, end: datetime, **changes: object) -> AgendaItem:
    changes = {"state": J.SUCCEEDED, **changes}
    return minutes(budget, started_at=start, ended_at=end, **changes)


@st.composite
def under_way(draw: st.DrawFn) -> tuple[list[AgendaItem], datetime]:
    """An agenda in the middle: some jobs have ended, one or none runs, the rest waits."""
    items, now = draw(ITEMS), draw(MOMENTS)
    num_ended = draw(st.integers(0, len(items)))
    reached = BEGINS
    told = []
    for index, item in enumerate(items):
        if index < num_ended and reached < now:
            end = min(now, reached + timedelta(seconds=draw(st.integers(0, int(item.budget_s)))))
            told.append(replace(item, state=J.SUCCEEDED, started_at=reached, ended_at=end))
            reached = end + HANDOVER
        elif index == num_ended and reached < now:
            used_s = min(item.budget_s, (now - reached).total_seconds())
            told.append(replace(item, state=J.RUNNING, started_at=reached, used_s=used_s))
        else:
            told.append(item)
    return told, now


# ---------------------------------------------------------------------------------- whether it fits


@given(ITEMS)
def test_one_after_the_other_takes_all_wall_times_and_the_hand_overs_between_them(
    items: list[AgendaItem],
) -> None:
    found = seen(items)
    whole = timedelta(seconds=sum(item.budget_s for item in items)) + (len(items) - 1) * HANDOVER
    assert found.lines[-1].planned.end == BEGINS + whole
    assert found.spare_s == (STOP - BEGINS - whole).total_seconds()
    assert found.fits == (found.spare_s >= 0)


@given(under_way(), st.booleans())
def test_nothing_fits_that_ends_after_the_end(
    case: tuple[list[AgendaItem], datetime], side_by_side: bool
) -> None:
    items, now = case
    found = seen(items, now, side_by_side=side_by_side)
    for line in found.lines:
        assert line.fits == (line.latest is None or line.latest.end <= STOP)
        if line.likely is not None and line.latest is not None:
            assert line.likely.end <= line.latest.end
    assert found.fits == all(line.fits for line in found.lines)
    if not found.fits:
        assert found.spare_s < 0
        assert found.first_cut is not None
        assert all(line.fits for line in found.lines[: found.first_cut])
    assert summary(found)


@given(ITEMS, MOMENTS)
def test_side_by_side_no_slot_is_given_twice_and_nobody_is_passed(
    items: list[AgendaItem], now: datetime
) -> None:
    spans = [line.latest for line in seen(items, now, side_by_side=True).lines]
    starts = [span.start for span in spans if span]
    assert starts == sorted(starts)
    for start in starts:
        held = [
            item.slots
            for item, span in zip(items, spans, strict=True)
            if span and span.start <= start < span.end + HANDOVER
        ]
        assert sum(held) <= SLOTS


@given(ITEMS)
def test_side_by_side_is_never_later_than_one_after_the_other(items: list[AgendaItem]) -> None:
    beside, after = seen(items, side_by_side=True), seen(items)
    for one, other in zip(beside.lines, after.lines, strict=True):
        assert one.planned.start <= other.planned.start


def test_small_jobs_run_beside_each_other_and_a_wide_one_waits_for_both() -> None:
    items = [minutes(60, slots=2), minutes(30, slots=2), minutes(30, slots=4)]
    lines = seen(items, side_by_side=True).lines
    assert [line.planned.start for line in lines] == [BEGINS, BEGINS, at(13, 1)]


def test_the_first_job_that_would_not_end_is_named_and_how_much_to_cut() -> None:
    items = [minutes(m, name=f"part {m}") for m in (100, 60, 50, 20)]
    found = seen(items)
    assert (found.first_cut, found.spare_s) == (2, -(230 + 3 - 175) * 60)
    assert summary(found) == (
        "It is too long by 58min if every job uses up its wall time: part 50 would be stopped, "
        "part 20 would not start. Reduce the wall time by 58min, or leave jobs out."
    )


def test_what_is_likely_is_told_beside_what_is_sure() -> None:
    items = [minutes(100, expected_s=3000), minutes(100, expected_s=3000)]
    found = seen(items)
    assert not found.fits
    assert found.likely_spare_s == (175 - 101) * 60
    assert summary(found).endswith("At the present speed, all jobs end with 1h 14min to spare.")
    unknown = seen([*items, minutes(20)])
    assert unknown.likely_spare_s is None
    assert "At the present speed" not in summary(unknown)


def test_the_hand_over_is_the_schedulers() -> None:
    assert HANDOVER.total_seconds() == CLEANING_S


# ------------------------------------------------------------------- what else runs in the lease


def test_a_job_beside_it_that_leaves_room_changes_nothing() -> None:
    now = at(12, 10)
    other = running(120, at(12), now, slots=2, name="other")
    alone, beside = (
        seen([minutes(60, slots=2)], now),
        seen([minutes(60, slots=2)], now, beside=(other,)),
    )
    assert alone.lines == beside.lines
    assert beside.in_the_way == []


def test_a_job_beside_it_that_has_its_slots_makes_it_late_and_is_named() -> None:
    now = at(12, 10)
    other = running(90, at(12), now, slots=2, name="big (job_1)")
    items = [minutes(20, slots=2, name="one"), minutes(60, name="two")]
    found = seen(items, now, beside=(other,))
    assert [line.latest and line.latest.start for line in found.lines] == [now, at(13, 31)]
    assert found.fits
    assert summary(found) == (
        "It fits with 24min to spare, even if every job uses up its wall time. Late: one and two, "
        "by 1h 10min at most. big (job_1) holds 2 of the 4 slots until 13:30 UTC at the latest."
    )


def test_a_job_beside_it_that_lasts_longer_than_the_lease_leaves_it_no_room() -> None:
    now = at(12, 10)
    found = seen(
        [minutes(20, name="one")], now, beside=(running(600, at(12), now, slots=1, name="x"),)
    )
    assert not found.fits
    assert "one would not start" in summary(found)
    assert "x holds 1 of the 4 slots until 14:55 UTC at the latest" in summary(found)


def test_of_those_that_wait_the_one_before_it_in_the_queue_takes_the_slots_first() -> None:
    mine = minutes(60, name="mine", place=place_of(at(11), 3600))
    for other_wall, queued_at, start in (
        (120, at(9, 59), at(14, 1)),
        (120, at(10, 1), BEGINS),  # mine is short, so it passes as if it had come at ten
        (50, at(11, 1), BEGINS),
        (50, at(10, 59), at(12, 51)),
    ):
        other = minutes(other_wall, name="other", place=place_of(queued_at, 60 * other_wall))
        found = seen([mine], beside=(other,))
        assert found.lines[0].latest is not None
        assert found.lines[0].latest.start == start
        assert ("other holds 4 of the 4 slots from 12:00 UTC until" in summary(found)) == (
            start > BEGINS
        )


def test_one_behind_it_in_the_queue_may_still_take_what_is_free() -> None:
    """Nothing is kept free for a job of an agenda whose turn has not come."""
    items = [minutes(20, slots=2, place=at(10)), minutes(60, place=at(10))]
    other = minutes(90, slots=2, place=at(11))
    found = seen(items, beside=(other,))
    assert [line.latest and line.latest.start for line in found.lines] == [BEGINS, at(13, 31)]


@given(under_way(), ITEMS, st.booleans())
def test_with_others_beside_it_no_slot_is_counted_twice(
    case: tuple[list[AgendaItem], datetime], others: list[AgendaItem], side_by_side: bool
) -> None:
    items, now = case
    layout = lay_out(
        items,
        others,
        Capacity(1, SLOTS),
        lambda item: item.left_s,
        now=max(now, BEGINS),
        side_by_side=side_by_side,
    )
    taken = [
        (item, span) for item, span in zip(items, layout.spans, strict=True) if span is not None
    ] + layout.in_the_way
    for item, span in taken:
        held = [one.slots for one, other in taken if other.start <= span.start < other.end]
        assert sum(held) <= SLOTS or item.state is J.SUCCEEDED


# ------------------------------------------------------------------------------------ several nodes


def over(
    num_nodes: int, *items: AgendaItem, beside: tuple[AgendaItem, ...] = (), **more: bool
) -> Outlook:
    """Items on so many nodes of 4 slots, from 12:00 on."""
    return outlook(
        items,
        begins=BEGINS,
        usable_end=STOP,
        now=BEGINS,
        num_nodes=num_nodes,
        slots=SLOTS,
        beside=beside,
        side_by_side=more.get("side_by_side", True),
    )


def stays(found: Outlook) -> list[tuple[datetime, tuple[int, ...]] | None]:
    return [line.latest and (line.latest.start, line.latest.nodes) for line in found.lines]


def test_slots_are_counted_node_by_node_and_never_added_up() -> None:
    three = [minutes(60, slots=3) for _ in range(3)]
    assert stays(over(2, *three)) == [(BEGINS, (0,)), (BEGINS, (1,)), (at(13, 1), (0,))]


def test_a_job_on_several_nodes_needs_its_slots_on_each_of_them() -> None:
    small, wide = minutes(30, slots=1), minutes(60, slots=4, num_nodes=2)
    assert stays(over(2, small, wide)) == [(BEGINS, (0,)), (at(12, 31), (0, 1))]
    assert stays(over(3, small, wide)) == [(BEGINS, (0,)), (BEGINS, (1, 2))]
    half = minutes(60, slots=2, num_nodes=2)
    assert stays(over(2, half, half)) == [(BEGINS, (0, 1)), (BEGINS, (0, 1))]


def test_what_has_its_nodes_waits_for_these_even_if_others_are_free() -> None:
    first = minutes(60, nodes=(0,))
    assert stays(over(2, first, first))[1] == (at(13, 1), (0,))
    assert stays(over(2, first, minutes(60)))[1] == (BEGINS, (1,))


def test_who_is_in_the_way_is_told_with_its_nodes() -> None:
    other = minutes(100, slots=1, nodes=(1,), state=J.RUNNING, started_at=BEGINS, name="other")
    aside = minutes(100, slots=1, nodes=(2,), state=J.RUNNING, started_at=BEGINS, name="aside")
    wide = minutes(60, num_nodes=2, nodes=(0, 1), name="wide")
    found = over(3, wide, beside=(other, aside))
    assert stays(found) == [(at(13, 41), (0, 1))]
    assert "other holds 1 of the 4 slots on 1 of the 3 nodes until 13:40 UTC" in summary(found)
    assert "aside" not in summary(found)


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(1, SLOTS), st.integers(1, 3), st.integers(1, 90)), max_size=6),
    st.booleans(),
)
def test_on_no_node_is_a_slot_given_twice(
    num_nodes: int, wanted: list[tuple[int, int, int]], side_by_side: bool
) -> None:
    items = [
        minutes(length, slots=slots, num_nodes=min(nodes, num_nodes))
        for slots, nodes, length in wanted
    ]
    lines = over(num_nodes, *items, side_by_side=side_by_side).lines
    for line in lines:
        assert line.latest is not None
        assert len(line.latest.nodes) == line.item.num_nodes
        for node in line.latest.nodes:
            held = [
                one.item.slots
                for one in lines
                if one.latest
                and node in one.latest.nodes
                and one.latest.start <= line.latest.start < one.latest.end + HANDOVER
            ]
            assert sum(held) <= SLOTS


# ------------------------------------------------------------------------------------- what is late


@pytest.mark.parametrize(
    ("begun", "late_s"), [(at(12), 0), (at(12, 0, 30), 0), (at(12, 7), 7 * 60)]
)
def test_what_begins_late_makes_those_behind_it_late(begun: datetime, late_s: int) -> None:
    now = at(12, 10)
    found = seen([running(60, begun, now, name="one"), minutes(60, name="two")], now)
    assert [line.late_s for line in found.lines] == [late_s, late_s]
    assert ("Late: one and two, by 7min at most." in summary(found)) == bool(late_s)


def test_what_ends_early_leaves_more_time() -> None:
    now = at(12, 20)
    found = seen([done(60, at(12), now), minutes(60), minutes(52)], now)
    assert [line.latest and line.latest.start for line in found.lines] == [
        at(12),
        at(12, 21),
        at(13, 22),
    ]
    assert found.fits
    assert not any(line.late_s for line in found.lines)
    assert summary(found) == "It fits with 41min to spare, even if every job uses up its wall time."


def test_a_lease_that_has_begun_while_nothing_runs_is_late_by_the_time_that_is_gone() -> None:
    found = seen([minutes(60), minutes(60)], at(12, 5))
    assert [line.late_s for line in found.lines] == [300, 300]


def test_a_running_job_is_judged_by_the_speed_that_it_has() -> None:
    now = at(12, 20)
    found = seen([running(60, at(12), now, progress=0.5)], now)
    (line,) = found.lines
    assert line.likely is not None
    assert line.likely.end == at(12, 40)
    slow = running(60, at(12), now, progress=0.1)
    assert seen([slow], now).lines[0].likely == seen([slow], now).lines[0].latest  # cut at 13:00


def test_a_job_that_never_ran_takes_no_time_and_a_paused_one_is_not_counted() -> None:
    now = at(12, 20)
    gone = minutes(60, name="gone", state=J.CANCELLED, ended_at=now)
    resting = minutes(90, name="resting", state=J.PAUSED)
    found = seen([gone, resting, minutes(100, name="last")], now)
    assert [line.latest and line.latest.start for line in found.lines] == [None, None, now]
    assert found.fits
    assert summary(found).endswith("Paused, and not counted: resting.")


def test_what_is_over_is_told_by_how_it_went() -> None:
    items = [
        done(20, at(12), at(12, 10)),
        done(20, at(12, 11), at(12, 31), state=J.FAILED, reason_code="time_limit"),
        done(20, at(12, 32), at(12, 33), state=J.FAILED, reason_code="user_error"),
    ]
    found = seen(items, at(14))
    assert [line.item.standing for line in found.lines] == [
        Standing.DONE,
        Standing.CUT,
        Standing.FAILED,
    ]
    assert summary(found) == "Over: 1 done, 1 cut, 1 failed."


def test_the_rules_stand_in_a_sentence() -> None:
    assert "if one fails, the others continue" in rules(
        side_by_side=False, on_failure=OnFailure.GO_ON
    )
    assert "are cancelled" in rules(side_by_side=True, on_failure=OnFailure.STOP)


# --------------------------------------------------------------------------------------- whose turn


def ahead(
    *states: JobState,
    side_by_side: bool = False,
    on_failure: OnFailure = OnFailure.GO_ON,
    code: str = "",
) -> dict[str, tuple[str, ...] | str]:
    """By job (1, 2, ...), those it waits for; or the failed one because of which it is not to
    run."""
    members = [
        AgendaMember(str(i), str(i), state, code, 600.0) for i, state in enumerate(states, start=1)
    ]
    found = turns("agenda_1", members, side_by_side=side_by_side, on_failure=on_failure)
    return {job: turn.called_off_by or turn.ahead for job, turn in found.items()}


def test_one_after_the_other_each_waits_for_those_before_it() -> None:
    assert ahead(J.QUEUED, J.QUEUED, J.QUEUED) == {"1": (), "2": ("1",), "3": ("1", "2")}
    assert ahead(J.SUCCEEDED, J.RUNNING, J.QUEUED) == {"3": ("2",)}
    assert ahead(J.FAILED, J.CANCELLED, J.QUEUED) == {"3": ()}


def test_nobody_waits_for_a_paused_job_and_it_comes_back_behind_the_one_that_runs() -> None:
    assert ahead(J.PAUSED, J.QUEUED) == {"2": ()}
    assert ahead(J.QUEUED, J.RUNNING, J.QUEUED) == {"1": ("2",), "3": ("1", "2")}


def test_side_by_side_each_waits_until_those_before_it_have_started() -> None:
    assert ahead(J.RUNNING, J.STARTING, J.QUEUED, J.QUEUED, side_by_side=True) == {
        "3": (),
        "4": ("1", "2", "3"),
    }


def test_a_failure_calls_the_rest_off_where_that_was_asked_for() -> None:
    stop = OnFailure.STOP
    assert ahead(J.FAILED, J.RUNNING, J.QUEUED, on_failure=stop) == {"3": "1"}
    assert ahead(J.FAILED, J.QUEUED, on_failure=stop, code="time_limit") == {"2": ()}
    assert ahead(J.CANCELLED, J.QUEUED, on_failure=stop) == {"2": ()}


@given(st.lists(st.sampled_from(list(JobState)), max_size=8), st.booleans())
def test_somebody_who_waits_always_has_the_turn_or_waits_for_one_who_runs(
    states: list[JobState], side_by_side: bool
) -> None:
    members = [AgendaMember(str(i), str(i), state, "", 60.0) for i, state in enumerate(states)]
    found = turns("a", members, side_by_side=side_by_side, on_failure=OnFailure.GO_ON)
    runs = {m.job_id for m in members if m.state in (J.STARTING, J.RUNNING, J.STOPPING)}
    if found:
        first = found[min(found, key=int)]
        assert not first.ahead or set(first.ahead) & runs
