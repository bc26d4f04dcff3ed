"""What the agent decides: pure, repeatable, and complete."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.nodes import orders
from core.states import Outcome
from core.tables.jobs import Attempt, Job
from core.tables.leases import Lease
from core.wire.messages import AttemptRef, Deadlines, Orders, StopOrder, Unread
from tests.worker.nodes import make_order
from worker.agent.decide import (
    MAX_SPAWNS,
    OVERDUE_S,
    AttemptFolder,
    Begin,
    Conclude,
    EndTree,
    Prepare,
    Refuse,
    Reschedule,
    Spawn,
    StopUnwanted,
    Wipe,
    follow,
    next_step,
)
from worker.node.attempts import DeadlinesFile, Key, ShimState
from worker.ranks.deadlines import KILL_AFTER_TERM_S, DueAction, due, schedule_of, stop_past

BOOT = "boot-1"
KEY = Key("job_a", 1)
SHIM = ShimState(pid=1, boot_id=BOOT, launcher="warm", began_s=0.0)  # type: ignore[arg-type]
ORDER = make_order()


def schedule(stop_at: float = 100.0, *, ordered: bool = False, boot: str = BOOT) -> DeadlinesFile:
    return DeadlinesFile(
        boot_id=boot,
        checkpoint_at=stop_at - 10,
        stop_at=stop_at,
        term_at=stop_at,
        kill_at=stop_at + 30,
        reason=Outcome.LEASE_ENDED,
        ordered=ordered,
    )


NEW = AttemptFolder(KEY, schedule=schedule())


def step(seen: AttemptFolder, now: float = 0.0) -> object:
    return next_step(seen, now=now, boot_id=BOOT)


def test_an_attempt_is_carried_from_its_folder_to_its_shim() -> None:
    assert step(NEW) == Prepare(KEY)
    assert step(replace(NEW, preparing=True)) is None
    prepared = replace(NEW, prepared=True)
    assert step(prepared) == Spawn(KEY)
    assert step(replace(prepared, spawn_pending=True, spawns=1)) is None
    assert step(replace(prepared, started=True, shim_lives=True, shim=SHIM)) is None
    assert step(replace(prepared, started=True, exited=True)) is None


def test_without_a_readable_order_or_deadlines_of_this_boot_nothing_starts() -> None:
    assert step(replace(NEW, has_order=False)) is None
    assert step(replace(NEW, schedule=None)) is None
    assert step(replace(NEW, schedule=schedule(boot="boot-0"), prepared=True)) is None


def test_what_cannot_start_is_concluded_with_its_reason() -> None:
    failure = (Outcome.START_FAILED, "The disk is full.")
    assert step(replace(NEW, cannot_start=failure)) == Conclude(KEY, *failure)
    tired = step(replace(NEW, prepared=True, spawns=MAX_SPAWNS))
    assert isinstance(tired, Conclude)
    assert tired.outcome is Outcome.START_FAILED
    late = step(NEW, now=101.0)
    assert isinstance(late, Conclude)
    assert late.outcome is Outcome.LEASE_ENDED


def test_a_shim_that_is_gone_without_a_record_was_lost_to_something() -> None:
    lost = replace(NEW, started=True, shim=SHIM)
    assert isinstance(found := step(lost), Conclude)
    assert found.outcome is Outcome.SHIM_LOST
    rebooted = replace(lost, shim=SHIM.model_copy(update={"boot_id": "boot-0"}))
    assert isinstance(found := step(rebooted), Conclude)
    assert found.outcome is Outcome.NODE_LOST
    assert isinstance(found := step(lost, now=200.0), Conclude)
    assert found.outcome is Outcome.LEASE_ENDED
    assert isinstance(found := step(replace(lost, trained="Trained 400 steps.")), Conclude)
    assert found.outcome is Outcome.SUCCEEDED
    failure = (Outcome.USER_ERROR, "Rank 0 failed.")  # and was held: it is not tried again
    assert step(replace(rebooted, failed=failure)) == Conclude(KEY, *failure)


def test_a_shim_that_outlives_its_last_deadline_is_ended() -> None:
    alive = replace(NEW, started=True, shim_lives=True, shim=SHIM)
    assert step(alive, now=130.0 + OVERDUE_S) is None
    assert step(alive, now=130.1 + OVERDUE_S) == EndTree(KEY)


def test_orders_are_followed() -> None:
    orders = Orders(attempts=[ORDER], forget=[])
    assert follow([], orders, wiped={}) == [Begin(ORDER)]
    assert follow([NEW], orders, wiped={}) == [Reschedule(ORDER)]
    assert follow([replace(NEW, exited=True)], orders, wiped={}) == []
    assert follow([replace(NEW, has_order=False)], orders, wiped={}) == [Begin(ORDER)]


def test_what_the_api_cannot_read_goes_on_by_its_deadlines_and_is_not_begun() -> None:
    unread = Unread(job_id="job_a", epoch=1, deadlines=ORDER.deadlines)
    orders = Orders(attempts=[], unread=[unread], forget=[])
    assert follow([NEW], orders, wiped={}) == [Reschedule(unread)]
    assert follow([], orders, wiped={}) == []
    assert follow([replace(NEW, exited=True)], orders, wiped={}) == []


def test_what_is_not_listed_is_stopped_once() -> None:
    nothing = Orders(attempts=[], forget=[])
    assert follow([NEW], nothing, wiped={}) == [StopUnwanted(KEY)]
    stopping = replace(NEW, schedule=schedule(ordered=True))
    assert follow([stopping], nothing, wiped={}) == []
    assert follow([replace(NEW, exited=True)], nothing, wiped={}) == []


def test_only_an_exited_attempt_that_nobody_wants_is_wiped() -> None:
    forget = [AttemptRef(job_id="job_a", epoch=1)]
    assert follow([replace(NEW, exited=True)], Orders(attempts=[], forget=forget), wiped={}) == [
        Wipe(KEY)
    ]
    assert Wipe(KEY) not in follow([NEW], Orders(attempts=[], forget=forget), wiped={})
    assert follow([], Orders(attempts=[], forget=forget), wiped={}) == []


def test_old_epochs_are_refused_and_new_ones_wait_for_old_ones() -> None:
    orders = Orders(attempts=[make_order(epoch=2)], forget=[])
    assert isinstance(follow([], orders, wiped={"job_a": 2})[0], Refuse)
    newer = replace(NEW, key=Key("job_a", 3), exited=True)
    assert isinstance(follow([newer], orders, wiped={})[0], Refuse)
    older = NEW
    assert follow([older], orders, wiped={}) == [StopUnwanted(KEY)]
    assert isinstance(follow([replace(older, exited=True)], orders, wiped={})[0], Begin)


flags = st.booleans()


@given(flags, flags, flags, flags, flags, flags, st.integers(0, 5), st.floats(0, 300))
def test_every_state_of_a_folder_leads_somewhere_and_never_to_a_second_start(
    exited: bool,
    lives: bool,
    started: bool,
    prepared: bool,
    preparing: bool,
    pending: bool,
    spawns: int,
    now: float,
) -> None:
    seen = replace(
        NEW,
        exited=exited,
        shim_lives=lives,
        started=started,
        shim=SHIM if started else None,
        prepared=prepared,
        preparing=preparing,
        spawn_pending=pending,
        spawns=spawns,
    )
    action = step(seen, now)
    if started or lives or exited:
        assert not isinstance(action, Prepare | Spawn)
    if action is None:  # somebody else is at it, or it is over
        assert exited or lives or preparing or pending


def deadlines(stop_in_s: float) -> Deadlines:
    return Deadlines(
        checkpoint_in_s=stop_in_s - 300,
        stop_in_s=stop_in_s,
        stop_reason=Outcome.LEASE_ENDED,
        kill_in_s=stop_in_s + 30,
    )


def test_deadlines_count_from_the_moment_the_request_was_sent() -> None:
    made = schedule_of(deadlines(600), None, sent_at=50, now=58, boot_id=BOOT, before=None)
    assert (made.checkpoint_at, made.stop_at, made.kill_at) == (350, 650, 680)
    assert [due(made, now) for now in (0, 350, 650, 680)] == [
        DueAction.NOTHING,
        DueAction.CHECKPOINT,
        DueAction.TERM,
        DueAction.KILL,
    ]


def test_a_lease_may_be_extended_until_its_stop_has_begun() -> None:
    first = schedule_of(deadlines(600), None, sent_at=0, now=0, boot_id=BOOT, before=None)
    later = schedule_of(deadlines(900), None, sent_at=100, now=100, boot_id=BOOT, before=first)
    assert later.stop_at == 1000
    too_late = schedule_of(deadlines(900), None, sent_at=700, now=700, boot_id=BOOT, before=first)
    assert too_late.stop_at == first.stop_at


@pytest.mark.parametrize("boot_s", [5.0, 8_000_000.0])
def test_a_node_keeps_the_seconds_that_remain_whatever_its_own_clock_says_63(
    boot_s: float,
) -> None:
    """The database is three minutes ahead of the node, or behind: it makes no difference here."""
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    lease = Lease(hold_end=noon, grace_s=300, checkpoint_s=600, kill_after_s=30)
    job, attempt = Job(wall_time_s=7200, used_s=0), Attempt(started_at=None)
    by_database = lease.hold_end - timedelta(minutes=20)
    told = orders.deadlines(job, attempt, [lease], now=by_database)
    made = schedule_of(told, None, sent_at=boot_s, now=boot_s, boot_id=BOOT, before=None)
    assert (made.checkpoint_at, made.stop_at) == (boot_s + 600, boot_s + 900)
    assert due(made, boot_s + 899) is DueAction.CHECKPOINT
    assert due(made, boot_s + 901) in (DueAction.STOP, DueAction.TERM)


def test_an_ordered_stop_keeps_its_times_however_often_it_is_repeated() -> None:
    stop = StopOrder(reason=Outcome.CANCELLED, grace_s=10)
    first = schedule_of(deadlines(600), stop, sent_at=100, now=101, boot_id=BOOT, before=None)
    assert (first.stop_at, first.term_at) == (101, 111)
    assert first.kill_at == 111 + KILL_AFTER_TERM_S
    again = schedule_of(deadlines(590), stop, sent_at=110, now=110, boot_id=BOOT, before=first)
    assert again == first
    by_lease = schedule_of(deadlines(2), stop, sent_at=103, now=103, boot_id=BOOT, before=first)
    assert (by_lease.term_at, by_lease.kill_at) == (105, 135)


def test_the_deadlines_of_another_boot_count_for_nothing() -> None:
    before = schedule(5.0, ordered=True, boot="boot-0")
    made = schedule_of(deadlines(600), None, sent_at=0, now=10, boot_id=BOOT, before=before)
    assert made.stop_at == 600
    assert not made.ordered


def test_a_workbench_that_ends_by_itself_after_its_time_is_over_with_its_lease() -> None:
    assert stop_past(schedule(), now=99.9, boot_id=BOOT) is None
    assert stop_past(schedule(), now=100.1, boot_id=BOOT) is Outcome.LEASE_ENDED
    assert stop_past(schedule(), now=100.1, boot_id="boot-2") is None
    assert stop_past(None, now=100.1, boot_id=BOOT) is None
