"""Which changed reasons of waiting jobs are written at once, and which later."""

from datetime import datetime, timedelta

import pytest

from core.base.reasons import Code, ReasonCode
from scheduler.queue.sentences import WaitingReason
from scheduler.queue.telling import FEW, JobReason, worth_telling
from tests.scheduler.world import NOON, waiting_job

NOW = NOON
MINUTE = timedelta(minutes=1)
CROWD = FEW + 1


def changed(
    number: int,
    *,
    start: datetime | None = NOW + 60 * MINUTE,
    code: Code = ReasonCode.NODE_BUSY,
    before: str = "Starts at 12:59.",
) -> JobReason:
    """A job that was told `before`, and a new reason for it."""
    job = waiting_job(f"job_{number}", told=(ReasonCode.NODE_BUSY, before, start))
    return JobReason(job, WaitingReason(code, "Starts at 13:00.", start))


def test_few_changes_are_all_written() -> None:
    waiting = [changed(number) for number in range(FEW)]
    told_at = {one.job.id: NOW for one in waiting}
    assert worth_telling(waiting, told_at, NOW) == waiting


def test_what_has_not_changed_is_never_written() -> None:
    same = changed(0, before="Starts at 13:00.")
    crowd = [changed(number) for number in range(1, CROWD + 1)]
    assert worth_telling([same], {}, NOW) == []
    assert same not in worth_telling([same, *crowd], {}, NOW)


@pytest.mark.parametrize(
    ("ago_s", "wait", "is_written"),
    [
        (59, 60 * MINUTE, False),
        (60, 60 * MINUTE, True),
        (4, 5 * MINUTE, False),
        (5, 5 * MINUTE, True),
        (299, 5000 * MINUTE, False),  # the longest
        (300, 5000 * MINUTE, True),
        (299, None, False),
        (300, None, True),
        (0, -MINUTE, True),
    ],
)
def test_in_a_crowd_a_far_start_is_written_less_often(
    ago_s: int, wait: timedelta | None, is_written: bool
) -> None:
    start = None if wait is None else NOW + wait
    waiting = [changed(number, start=start) for number in range(CROWD)]
    told_at = {one.job.id: NOW - timedelta(seconds=ago_s) for one in waiting}
    assert worth_telling(waiting, told_at, NOW) == (waiting if is_written else [])


def test_in_a_crowd_another_kind_of_reason_is_written_at_once() -> None:
    crowd = [changed(number) for number in range(CROWD)]
    other = changed(CROWD, code=ReasonCode.BACK_OFF)
    told_at = {one.job.id: NOW for one in (*crowd, other)}
    assert worth_telling([*crowd, other], told_at, NOW) == [other]


def test_a_new_leader_writes_what_has_changed() -> None:
    crowd = [changed(number) for number in range(CROWD)]
    assert worth_telling(crowd, {}, NOW) == crowd
