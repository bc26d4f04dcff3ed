"""Studies: the list of them, and one with what its jobs found so far, side by side."""

import asyncio

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.sentences import STUDY_KINDS, VERDICT_FAMILY
from dashboard.viewer import Viewer
from trainyard.views import Study, StudyReport

LIMIT = 100


async def show_all(viewer: Viewer) -> Response:
    """The newest studies."""
    me, (studies, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Study, "/v1/studies", {"limit": LIMIT})
    )
    context = {"me": me, "section": "jobs", "studies": studies, "has_more": has_more}
    return render("studies.html", {**context, "kinds": STUDY_KINDS})


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    me, report = await asyncio.gather(viewer.me(), _report(viewer))
    return render("study.html", {"me": me, "section": "jobs", **_context(report)})


async def report(viewer: Viewer) -> Response:
    """Return the study's findings so far, as the page shows them."""
    return render("study_report.html", _context(await _report(viewer)))


async def cancel(viewer: Viewer) -> Response:
    """Cancel the jobs that have not ended."""
    study_id = viewer.part("study_id")
    await viewer.call("POST", f"/v1/studies/{study_id}/cancel")
    return redirect(f"/studies/{study_id}")


def _context(report: StudyReport) -> dict[str, object]:
    return {
        "study": report,
        "kind": STUDY_KINDS[report.kind],
        "rows": list(zip(report.jobs, report.points, strict=True)),
        "families": VERDICT_FAMILY,
        "has_schedules": report.kind == "schedules",
        "has_bubble": any(point.bubble is not None for point in report.points),
        "has_serial": any(point.serial_fraction is not None for point in report.points),
        "has_curve": report.kind != "weak",
        "notes": [
            (point.label, point.missing or point.judgement)
            for point in report.points
            if point.missing or point.judgement
        ],
    }


async def _report(viewer: Viewer) -> StudyReport:
    return await viewer.get(StudyReport, f"/v1/studies/{viewer.part('study_id')}")
