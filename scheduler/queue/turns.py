"""Jobs of agendas: their turns, and the cancelling of jobs after an earlier one has failed."""

from datetime import datetime
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.agendas.turns import AgendaMember, Turn, turns
from core.base.reasons import ReasonCode
from core.jobs.attempts import lock
from core.states import Desired, JobState
from core.tables.agendas import Agenda, AgendaJob
from core.tables.jobs import Job
from core.transitions import advance

AGENDAS_WITH_WAITING = (
    select(AgendaJob.agenda_id)
    .join(Job, Job.id == AgendaJob.job_id)
    .where(Job.state == JobState.QUEUED)
)
MEMBERS = (  # built once: every cycle sends it
    select(
        Agenda.id,
        Agenda.name.label("agenda"),
        Agenda.side_by_side,
        Agenda.on_failure,
        Job.id.label("job_id"),
        Job.name,
        Job.state,
        Job.reason_code,
        Job.wall_time_s,
        Job.used_s,
    )
    .join(AgendaJob, AgendaJob.agenda_id == Agenda.id)
    .join(Job, Job.id == AgendaJob.job_id)
    .where(Agenda.id.in_(AGENDAS_WITH_WAITING))
    .order_by(Agenda.id, AgendaJob.position)
)


def read_turns(session: Session) -> dict[str, Turn]:
    """Map job id -> turn, for each queued job that is in an agenda."""
    rows = session.execute(MEMBERS)
    found: dict[str, Turn] = {}
    for _, group in groupby(rows, key=lambda row: row.id):
        members = list(group)
        found |= turns(
            members[0].agenda,
            [
                AgendaMember(
                    row.job_id,
                    row.name,
                    row.state,
                    row.reason_code,
                    row.wall_time_s - row.used_s,
                )
                for row in members
            ],
            side_by_side=members[0].side_by_side,
            on_failure=members[0].on_failure,
        )
    return found


def call_off(
    session: Session, job_id: str, turn: Turn, *, epoch: int, now: datetime, actor: str
) -> bool:
    """Cancel a job because another of its agenda has failed; return False if it no longer waits."""
    row = session.get_one(Job, job_id)
    lock(session, row)
    return (
        row.epoch == epoch
        and row.state is JobState.QUEUED
        and advance(
            session,
            row,
            JobState.CANCELLED,
            now=now,
            reason_code=ReasonCode.AGENDA_STOPPED,
            message=f"Not run: {turn.called_off_by} of {turn.agenda} has failed, and the agenda "
            "says on_failure: stop. Clone it to run it all the same.",
            actor=actor,
            desired=Desired.CANCEL,
            finished_at=now,
            predicted_start=None,
        )
    )
