"""Shapes of /v1/reports."""

from typing import Any, Literal

from pydantic import Field

from api.jobs.schemas import ArtifactView, AttemptView, CheckpointView, JobView
from api.leases.schemas import LeaseView
from api.records.schemas import Series
from api.web.schemas import Body, EventView, Moment, View

FORMAT: Literal["trainyard-report/1"] = "trainyard-report/1"
MOST_JOBS = 50


class NewReport(Body):
    """Subject of a new report: jobs by id, or a lease for all jobs that ran in it."""

    title: str = Field(default="", max_length=120)
    jobs: list[str] = Field(default_factory=list, max_length=MOST_JOBS)
    lease: str | None = Field(default=None, max_length=200)


class ReportJob(View):
    """One job with everything that is recorded about it."""

    job: JobView
    attempts: list[AttemptView]
    events: list[EventView]
    checkpoints: list[CheckpointView]
    artifacts: list[ArtifactView]
    curves: list[Series]
    """Metrics of rank 0, at most 300 points each."""
    gpu_hours: float
    """Hours multiplied by ranks, summed over all attempts."""


class ReportContent(View):
    """Content of a report: author, time, lease, and jobs with their results."""

    format: Literal["trainyard-report/1"] = FORMAT
    title: str
    platform: str
    """Address of the platform that wrote the report."""
    made_by: str
    made_at: Moment
    lease: LeaseView | None
    jobs: list[ReportJob]


class ReportView(View):
    """A report. `sha256` is that of `content` as JSON with sorted keys and no spaces, in UTF-8."""

    sha256: str
    content: ReportContent


class ReportLine(View):
    """A report in a list."""

    sha256: str
    title: str
    user: str
    made_at: Moment


class ReportCheck(Body):
    """A report to check, as a file that somebody handed in."""

    sha256: str = Field(max_length=64)
    content: dict[str, Any]


class ReportVerdict(View):
    """Answer to the check of a report: whether it was changed since this platform wrote it."""

    intact: bool
    """True if the content has the hash that stands beside it."""
    known: bool
    """True if this platform wrote exactly this content."""
    sha256: str
    """Hash of the content that was sent."""
    made_by: str | None
    made_at: Moment | None
    message: str
