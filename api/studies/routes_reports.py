"""/v1/reports: results of a job, a set of jobs or a lease, kept unchanged.

A report is written once and named by the SHA-256 of its content. Whoever holds a report can have it
checked: was a digit changed since, and did this platform write it?
"""

from fastapi import APIRouter, Response

from api.studies import reports
from api.studies.schemas_reports import (
    NewReport,
    ReportCheck,
    ReportLine,
    ReportVerdict,
    ReportView,
)
from api.web.auth import SignedIn
from api.web.process import ProcessDep
from api.web.schemas import Page
from api.web.text_types import After, Limit, PlainText
from core.base.clock import utc_now
from core.base.errors import BadRequest
from core.tables.files import Report

router = APIRouter(prefix="/v1/reports", tags=["reports"])


@router.post("", status_code=201, response_model=ReportView, summary="Write a report")
def make_report(body: NewReport, person: SignedIn, process: ProcessDep) -> Response:
    """Freeze the results of jobs or of a lease as a report: author, time, spec, plan, curves,
    certificate, end.

    The answer is the report, to be handed in as it is; the platform also keeps it under its hash.
    """
    if bool(body.jobs) == bool(body.lease):
        raise BadRequest("Name jobs in `jobs`, or one lease in `lease`.", param="jobs")
    now = utc_now()
    with process.read() as session:
        content = reports.content_of(session, body, person, process.url, now)
    report = reports.report_of(content, user_id=person.id)
    process.transact(reports.add_report, person, report=report)
    return _answer(report, 201)


@router.get("", summary="List reports")
def list_reports(
    person: SignedIn, process: ProcessDep, limit: Limit = 50, after: After = None
) -> Page[ReportLine]:
    """List your reports, newest first."""
    with process.read() as session:
        return reports.list_reports(session, person, limit=limit, after=after)


@router.post("/check", summary="Check a report")
def check_report(body: ReportCheck, person: SignedIn, process: ProcessDep) -> ReportVerdict:
    """Check whether a report that somebody handed in is exactly what this platform wrote."""
    with process.read() as session:
        return reports.check_report(session, body)


@router.get("/{sha256}", response_model=ReportView, summary="Get a report")
def get_report(sha256: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Return the report with this hash."""
    with process.read() as session:
        return _answer(reports.find_report(session, sha256, person), 200)


@router.delete("/{sha256}", status_code=204, summary="Delete a report")
def delete_report(sha256: PlainText, person: SignedIn, process: ProcessDep) -> Response:
    """Delete a report of your own. Its content is removed from the platform; its hash is kept, so
    that a copy can still be checked."""
    now = utc_now()
    process.transact(reports.delete_report, sha256, person, now=now)
    return Response(status_code=204)


def _answer(report: Report, status: int) -> Response:
    body = f'{{"sha256":"{report.sha256}","content":{report.content}}}'
    return Response(body, status_code=status, media_type="application/json")
