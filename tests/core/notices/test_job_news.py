"""The end of a job is news for those who asked for it, written with the change itself."""

from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.base.reasons import Code, ReasonCode
from core.database.database import Database
from core.notices.notices import JOB_NEWS, NoticeKind
from core.notices.words import write
from core.states import JobState, Outcome
from core.tables.kinds import Channel
from core.tables.notices import ChannelChoice, Notice
from core.transitions import advance
from tests.core.people import NOW, add_job, add_user


def end(session: Session, user_id: str, to: JobState, code: Code) -> None:
    """Start a job of `user_id`, and move it to `to`."""
    job = add_job(session, user_id)
    for state in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, to):
        is_last = state is to
        moved = advance(
            session,
            job,
            state,
            now=NOW,
            reason_code=code if is_last else ReasonCode.RUNNING,
            message="Rank 1 failed." if is_last else "Training.",
            actor="node",
        )
        assert moved, state


def choose(session: Session, user_id: str, kind: str, channel: Channel) -> None:
    session.add(ChannelChoice(user_id=user_id, kind=kind, channel=channel))
    session.flush()


@pytest.mark.parametrize(
    ("to", "code", "kind"),
    [
        (JobState.SUCCEEDED, Outcome.SUCCEEDED, NoticeKind.JOB_SUCCEEDED),
        (JobState.FAILED, Outcome.USER_ERROR, NoticeKind.JOB_FAILED),
        (JobState.PAUSED, ReasonCode.HELD, NoticeKind.JOB_HELD),
    ],
)
def test_the_owner_who_chose_a_channel_is_notified_once_and_nobody_else(
    database: Database, to: JobState, code: Code, kind: NoticeKind
) -> None:
    with database.write() as session:
        asked, other, off = (add_user(session, name) for name in ("ann", "bob", "cid"))
        choose(session, asked, kind, Channel.WEBHOOK)
        choose(session, other, next(iter(JOB_NEWS - {kind})), Channel.MAIL)
        choose(session, off, kind, Channel.OFF)
        for user_id in (asked, other, off):
            end(session, user_id, to, code)
    with database.read() as session:
        notice = session.scalars(select(Notice)).one()
        assert (notice.user_id, notice.kind) == (asked, kind)
        assert notice.facts["message"] == "tiny: Rank 1 failed."
        letter = write([notice], name="ada", zone=ZoneInfo("UTC"), url="https://yard.example")
    assert f"https://yard.example/jobs/{notice.subject}" in letter.text


def test_a_pause_or_a_cancellation_is_no_news(database: Database) -> None:
    with database.write() as session:
        user_id = add_user(session)
        for kind in JOB_NEWS:
            choose(session, user_id, kind, Channel.MAIL)
        end(session, user_id, JobState.PAUSED, Outcome.PAUSED)
        end(session, user_id, JobState.CANCELLED, Outcome.CANCELLED)
        assert session.scalars(select(Notice)).all() == []
