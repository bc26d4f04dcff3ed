"""Reports: written once, found by their hash."""

import json
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from api.jobs.job_views import attempt_views, find_job, show_job
from api.jobs.schemas import ArtifactView, AttemptView, CheckpointView
from api.leases.lease_views import show_lease
from api.leases.schemas import LeaseView
from api.records import metric_store
from api.records.downsample import newest_of_each_step
from api.records.metric_store import Points
from api.records.schemas import Series
from api.studies.schemas_reports import (
    NewReport,
    ReportCheck,
    ReportContent,
    ReportJob,
    ReportLine,
    ReportVerdict,
)
from api.watching.curves import series_view
from api.web import audit
from api.web.bells import Bells
from api.web.identity import Person
from api.web.owners import read_by
from api.web.paging import cut
from api.web.schemas import EventView, Page
from api.web.sharing import end_sharing, may_read, reader_of
from core.base.errors import BadRequest, Conflict, NotFound
from core.leases.situation import lock_user
from core.policy.words import lease_text
from core.tables.courses import HandIn
from core.tables.files import Artifact, Checkpoint, Report
from core.tables.jobs import Attempt, AttemptPart, Event, Job
from core.tables.kinds import SharedKind
from core.tables.leases import Lease
from core.tables.people import User

CURVES = ("loss", "eval_loss", "grad_norm", "tokens_per_s", "max_active_gib", "lr")
RESOLUTION = 300
MOST_EVENTS = 1000
MAX_REPORTS = 200  # of one person; each may hold the curves of 20 jobs


def add_report(session: Session, _: Bells, person: Person, *, report: Report) -> None:
    """Insert a report. Raises Conflict for too many."""
    lock_user(session, person.id)
    _require_room(session, person)
    session.add(report)


def list_reports(
    session: Session, person: Person, *, limit: int, after: str | None
) -> Page[ReportLine]:
    """Return a page of the reports of a person and those shared with them, newest first."""
    reader = reader_of(session, person.id)  # staff too: all reports of everybody are no list
    allowed = may_read(reader, SharedKind.REPORT, Report.user_id, Report.sha256)
    query = (
        select(Report.sha256, Report.title, User.name, Report.made_at)
        .join(User, User.id == Report.user_id)
        .where(allowed, Report.deleted_at.is_(None))
        .order_by(Report.made_at.desc(), Report.sha256)
    )
    if after:
        query = query.where(_is_after(session, after, allowed))
    rows = cut(session, query, limit=limit)
    lines = [
        ReportLine(sha256=hash_, title=title, user=name, made_at=made_at)
        for hash_, title, name, made_at in rows
    ]
    return Page[ReportLine](data=lines, has_more=rows.has_more)


def check_report(session: Session, body: ReportCheck) -> ReportVerdict:
    """Return whether a report is stored here unchanged."""
    found = digest(canonical(body.content))
    intact = found == body.sha256
    row = session.execute(
        select(Report.made_at, User.name)
        .join(User, User.id == Report.user_id)
        .where(Report.sha256 == found)
    ).one_or_none()
    return _verdict(found, row.name if row else None, row.made_at if row else None, intact=intact)


def delete_report(
    session: Session, _: Bells, sha256: str, person: Person, *, now: datetime
) -> None:
    """Remove the content of a report, and keep its hash. Raises NotFound, Conflict."""
    report = session.get(Report, sha256, with_for_update={"key_share": True})
    if report is None or report.user_id != person.id:
        raise NotFound(f"You have no report with the hash {sha256!r}.")
    if session.scalar(select(HandIn.user_id).where(HandIn.report_sha256 == sha256)) is not None:
        raise Conflict(
            "This report was handed in, so it stays. Hand in another one to replace it.",
            code="handed_in",
        )
    if report.deleted_at is None:
        report.title, report.content, report.deleted_at = "", "", now
        end_sharing(session, SharedKind.REPORT, sha256)
        of_job = (Job.user_id == person.id, Job.report_sha256 == sha256)
        session.execute(update(Job).where(*of_job).values(report_sha256=None))
        audit.record(session, person.id, "report.delete", sha256, now=now)


def find_report(session: Session, sha256: str, person: Person) -> Report:
    """Return a report that a person may read. Raises NotFound."""
    allowed = read_by(session, SharedKind.REPORT, Report.user_id, Report.sha256, person)
    report = session.scalars(select(Report).where(Report.sha256 == sha256, allowed)).one_or_none()
    if report is None:
        raise NotFound(f"There is no report with the hash {sha256!r}.")
    if report.deleted_at is not None:
        raise NotFound(f"This report was deleted on {report.deleted_at:%Y-%m-%d}.")
    return report


def content_of(
    session: Session, body: NewReport, person: Person, url: str, now: datetime
) -> ReportContent:
    """Return the content of a new report. Raises Conflict for too many, NotFound."""
    _require_room(session, person)
    lease, jobs = _subject(session, body, person)
    return ReportContent(
        title=body.title or _title(jobs, lease),
        platform=url,
        made_by=person.name,
        made_at=now,
        lease=lease,
        jobs=[_report_job(session, job, person, now) for job in jobs],
    )


def report_of(content: ReportContent, *, user_id: str) -> Report:
    """Return the row of a report."""
    text = canonical(content.model_dump(mode="json"))
    return Report(
        sha256=digest(text),
        user_id=user_id,
        title=content.title,
        content=text,
        made_at=content.made_at,
    )


def _require_room(session: Session, person: Person) -> None:
    kept = session.scalar(
        select(func.count())
        .select_from(Report)
        .where(Report.user_id == person.id, Report.deleted_at.is_(None))
    )
    if kept is not None and kept >= MAX_REPORTS:
        raise Conflict(
            f"You have {kept} reports, and the limit is {MAX_REPORTS}. Delete one that you no "
            "longer need.",
            code="too_many_reports",
        )


def _is_after(session: Session, sha256: str, allowed: ColumnElement[bool]) -> ColumnElement[bool]:
    """Select what comes after a report in the list; reports of the same moment are ordered by
    hash."""
    last = session.scalars(select(Report).where(Report.sha256 == sha256, allowed)).one_or_none()
    if last is None:
        raise BadRequest(f"{sha256!r} is not the hash of a report in this list.", param="after")
    same_moment = and_(Report.made_at == last.made_at, Report.sha256 > last.sha256)
    return or_(Report.made_at < last.made_at, same_moment)


def canonical(content: dict[str, Any]) -> str:
    """Return the text of a content that is hashed: keys sorted, no spaces, not escaped."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()


def _verdict(
    found: str, made_by: str | None, made_at: datetime | None, *, intact: bool
) -> ReportVerdict:
    if not intact:
        message = "This report was altered: its content does not match the hash that it names."
    elif made_by is None:
        message = "The hash matches the content, but this platform did not write this report."
    else:
        message = f"This report is exactly as this platform wrote it for {made_by}."
    return ReportVerdict(
        intact=intact,
        known=made_by is not None,
        sha256=found,
        made_by=made_by,
        made_at=made_at,
        message=message,
    )


def _subject(
    session: Session, body: NewReport, person: Person
) -> tuple[LeaseView | None, list[Job]]:
    if body.lease is None:
        return None, [find_job(session, job_id, person) for job_id in dict.fromkeys(body.jobs)]
    lease = show_lease(session, body.lease, person)
    jobs = session.scalars(
        select(Job)
        .where(
            Job.id.in_(
                select(Attempt.job_id)
                .join(AttemptPart, AttemptPart.attempt_id == Attempt.id)
                .join(Lease, Lease.id == AttemptPart.lease_id)
                .where(AttemptPart.lease_id == lease.id, Lease.user_id == Job.user_id)
            )
        )
        .order_by(Job.id)
    ).all()
    if not jobs:
        raise BadRequest("No job ran in this lease, so there is nothing to report.", param="lease")
    return lease, [find_job(session, job.id, person) for job in jobs]


def _title(jobs: list[Job], lease: LeaseView | None) -> str:
    if lease is not None:
        return f"L{lease_text(None if lease.whole else lease.gpus)[1:]} on {lease.node}"
    return jobs[0].name if len(jobs) == 1 else f"{jobs[0].name} and {len(jobs) - 1} more"


def _report_job(session: Session, job: Job, person: Person, now: datetime) -> ReportJob:
    view = show_job(session, job.id, person)
    attempts = list(attempt_views(session, job))
    checkpoints = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.step)
    )
    artifacts = session.scalars(
        select(Artifact).where(Artifact.job_id == job.id).order_by(Artifact.path)
    )
    events = session.scalars(
        select(Event).where(Event.subject == job.id).order_by(Event.id).limit(MOST_EVENTS)
    )
    return ReportJob(
        job=view,
        attempts=attempts,
        events=[EventView.model_validate(row) for row in events],
        checkpoints=[
            CheckpointView(
                id=row.id,
                epoch=row.epoch,
                step=row.step,
                size=row.size,
                files=len(row.files),
                created_at=row.created_at,
            )
            for row in checkpoints
        ],
        artifacts=[ArtifactView.model_validate(row) for row in artifacts],
        curves=_curves(session, job),
        gpu_hours=_gpu_hours(attempts, now),
    )


def _gpu_hours(attempts: list[AttemptView], now: datetime) -> float:
    """Return the hours of all slots that an attempt had, from its start to its end."""
    seconds = [
        ((one.ended_at or now) - one.started_at).total_seconds()
        * sum(len(place.slots) for place in one.nodes)
        for one in attempts
        if one.started_at
    ]
    return round(sum(seconds) / 3600, 6)


def _curves(session: Session, job: Job) -> list[Series]:
    attempts = session.scalars(
        select(Attempt.id).where(Attempt.job_id == job.id).order_by(Attempt.epoch)
    ).all()
    found: dict[str, list[Points]] = {}
    for attempt_id in attempts:
        read = metric_store.read(session, attempt_id, keys=CURVES, rank=0)
        for (key, _), points in read.items():
            found.setdefault(key, []).append(points)
    return [
        series_view(key, 0, *newest_of_each_step(Points.joined(found[key])), RESOLUTION)
        for key in CURVES
        if key in found
    ]
