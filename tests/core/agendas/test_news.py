"""What the owner of an agenda is told unasked: each thing once, and only where it is news."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from core.agendas.agenda import AgendaItem, Outlook, outlook
from core.agendas.news import WHOLE, AgendaNews, news
from core.notices.notices import NoticeKind
from core.states import JobState
from tests.scheduler.world import at

BEGINS, STOP = at(12), at(13, 55)


def minutes(name: str, budget: int, **changes: object) -> AgendaItem:
    return replace(AgendaItem(name=name, slots=2, budget_s=60 * budget), **changes)  # type: ignore[arg-type]


def seen(now: datetime, *items: AgendaItem) -> Outlook:
    return outlook(items, begins=BEGINS, usable_end=STOP, now=now, slots=2, side_by_side=False)


def told(
    now: datetime, *items: AgendaItem, before: frozenset[tuple[str, str]] = frozenset()
) -> list[AgendaNews]:
    return news(
        seen(now, *items),
        called="lab (agenda_1)",
        last_leases=["lease_1"],
        job_ids=[f"job_{item.name}" for item in items],
        told=before,
    )


@pytest.mark.parametrize(
    ("now", "is_late"),
    [
        (BEGINS - timedelta(minutes=5), False),
        (BEGINS, False),
        (at(12, 14), False),  # 101 minutes and the hour is 115 long
        (at(12, 14, 59), False),  # 59 s are not worth a word
        (at(12, 15), True),
        (at(13, 54), True),
        (at(13, 55), False),
    ],
)
def test_late_is_what_fitted_and_is_over_by_a_minute(now: datetime, is_late: bool) -> None:
    found = told(now, minutes("one", 50), minutes("two", 50))
    assert [(one.kind, one.about) for one in found] == (
        [(NoticeKind.AGENDA_LATE, WHOLE)] if is_late else []
    )


def test_what_was_told_is_not_told_again() -> None:
    items = [minutes("one", 50), minutes("two", 50)]
    for now in (at(12, 30), at(14)):
        (one,) = told(now, *items)
        assert told(now, *items, before=frozenset({(str(one.kind), one.about)})) == []


def test_who_is_late_is_told_what_to_do() -> None:
    runs = minutes("one", 50, state=JobState.RUNNING, started_at=at(12, 20), used_s=600.0)
    (one,) = told(at(12, 30), runs, minutes("two", 50))
    assert "It is too long by 6min" in one.message
    assert "two would be stopped" in one.message
    assert "trainyard leases extend lease_1 1" in one.message
    assert "cancel jobs that you can do without among two (trainyard cancel JOB)" in one.message
    (alone,) = told(at(12, 50), minutes("one", 110, state=JobState.RUNNING, started_at=at(12, 50)))
    assert "left out" not in alone.message  # nothing waits that could be


def test_what_is_paused_or_over_is_not_left_over_by_the_lease() -> None:
    resting = minutes("one", 50, state=JobState.PAUSED)
    done = minutes("two", 50, state=JobState.SUCCEEDED, started_at=at(12), ended_at=at(12, 40))
    assert told(at(14), resting, done) == []
    assert told(at(13, 55, 30), minutes("three", 10)) == []  # what was stopped still may end
    (one,) = told(at(14), resting, done, minutes("three", 10))
    assert "three had not begun" in one.message


def test_each_job_that_was_cut_is_news_of_its_own() -> None:
    cut = {"state": JobState.FAILED, "reason_code": "time_limit", "started_at": at(12)}
    first = minutes("one", 50, ended_at=at(12, 50), progress=0.75, **cut)
    second = minutes("two", 20, ended_at=at(13, 11), **cut)
    one, two = told(at(13, 20), first, second)
    assert (one.about, two.about) == ("job_one", "job_two")
    assert "used up with 75% of its steps done" in one.message
    assert "steps done" not in two.message
    before = frozenset({(str(one.kind), one.about)})
    assert told(at(13, 20), first, second, before=before) == [two]
