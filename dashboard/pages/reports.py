"""Reports: the list of them with a place to check one, and each as a page that stands alone.

A report's page needs nothing from this server once it is there: its styles are in it, its curves
are drawn here as SVG, and it has no script. Its policy allows exactly that style, by its hash.
"""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from markupsafe import Markup
from starlette.responses import Response

from dashboard import static_files
from dashboard.host_uses import HostRow, host_uses
from dashboard.rendering import ENVIRONMENT, PAGE_HEADERS, redirect, render
from dashboard.report_curves import Drawing, drawing
from dashboard.sentences import batch_words, layout_words, spec_yaml
from dashboard.viewer import ApiProblem, Viewer
from trainyard.transport.decoding import decode
from trainyard.views import Report, ReportJob, ReportLine, Series

STYLE = "\n".join((static_files.ROOT / name).read_text() for name in ("tokens.css", "report.css"))
STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    **PAGE_HEADERS,
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
CURVES = (
    ("loss", "Loss", "nats per token"),
    ("tokens_per_s", "Speed", "tokens/s, all ranks"),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("max_active_gib", "Peak memory", "GiB, rank 0"),
)
ANSWERED = (404, 422)


@dataclass(frozen=True)
class ReportSection:
    """One job as the page tells it."""

    part: ReportJob
    layout: str
    batch: str
    spec_text: str
    host_rows: Sequence[HostRow]
    drawings: list[Drawing]


async def show_all(viewer: Viewer) -> Response:
    """The list, and the place where one is checked."""
    me, (reports, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(ReportLine, "/v1/reports", {"limit": 100})
    )
    context = {"me": me, "section": "jobs", "reports": reports, "has_more": has_more}
    return render("reports.html", context)


async def make(viewer: Viewer) -> Response:
    """Write one about the jobs, or the lease, that the form names."""
    fields = await viewer.form_fields()
    jobs = [value for name, value in fields if name == "job"]
    leases = [value for name, value in fields if name == "lease"]
    body = {"lease": leases[0]} if leases else {"jobs": jobs}
    answer = await viewer.call("POST", "/v1/reports", json=body)
    return redirect(f"/reports/{decode(Report, answer.json()).sha256}")


async def show(viewer: Viewer) -> Response:
    """A report as a page that can be saved, printed and handed in."""
    try:
        report = await viewer.get(Report, f"/v1/reports/{viewer.part('sha256')}")
    except ApiProblem as refused:
        if refused.status in ANSWERED:
            await viewer.me()
        raise
    context = {
        "report": report,
        "content": report.content,
        "told": [_told(part) for part in report.content.jobs],
        "style": Markup(STYLE),  # ours, from static/
    }
    text = ENVIRONMENT.get_template("report.html").render(context)
    return Response(text, media_type="text/html; charset=utf-8", headers=HEADERS)


async def bundle(viewer: Viewer) -> Response:
    """The same as a file: what is checked."""
    sha256_ = viewer.part("sha256")
    answer = await viewer.call("GET", f"/v1/reports/{sha256_}")
    name = f"trainyard-report-{sha256_[:12]}.json"
    headers = {**PAGE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(answer.body, media_type="application/json", headers=headers)


async def delete(viewer: Viewer) -> Response:
    """Remove one of one's own from the server."""
    await viewer.call("DELETE", f"/v1/reports/{viewer.part('sha256')}")
    return redirect("/reports")


def _told(part: ReportJob) -> ReportSection:
    series = {one.key: one for one in part.curves}
    return ReportSection(
        part=part,
        layout=layout_words(part.job),
        batch=batch_words(part.job),
        spec_text=spec_yaml(part.job.spec),
        host_rows=host_uses(part.attempts),
        drawings=[
            drawing(title, unit, series[key], points=_points(series, key))
            for key, title, unit in CURVES
            if key in series and len(series[key].steps) > 1
        ],
    )


def _points(series: dict[str, Series], key: str) -> Series | None:
    return series.get("eval_loss") if key == "loss" else None
