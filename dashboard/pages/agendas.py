"""Agendas: the list of them, and one as bars against its lease, with what is late."""

import asyncio
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from dashboard.rendering import redirect, render
from dashboard.viewer import Viewer
from trainyard.views import Agenda, AgendaJob

LIMIT = 100
MARGIN = 1.02  # of the lease, so that its end is seen
FAMILIES = {  # the state whose colour and shape a standing has
    "waiting": "queued",
    "paused": "paused",
    "running": "running",
    "done": "succeeded",
    "cut": "warn",
    "failed": "failed",
    "cancelled": "cancelled",
}


class Stretch(NamedTuple):
    """A piece of a bar, in per cent of the whole width."""

    left: float
    width: float


class Bars(NamedTuple):
    """Times of a job: as planned, running within the lease, running after its end."""

    planned: Stretch
    within: Stretch | None
    after: Stretch | None


async def show_all(viewer: Viewer) -> Response:
    """The newest agendas."""
    me, (agendas, has_more) = await asyncio.gather(
        viewer.me(), viewer.page(Agenda, "/v1/agendas", {"limit": LIMIT})
    )
    context = {"me": me, "section": "jobs", "agendas": agendas, "has_more": has_more}
    return render("agendas.html", {**context, "families": FAMILIES})


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    me, agenda = await asyncio.gather(viewer.me(), _agenda(viewer))
    return render("agenda.html", {"me": me, "section": "jobs", **_context(agenda)})


async def report(viewer: Viewer) -> Response:
    """Return the agenda's present state, as the page shows it."""
    return render("agenda_report.html", _context(await _agenda(viewer)))


async def cancel(viewer: Viewer) -> Response:
    """Cancel the waiting jobs."""
    agenda_id = viewer.part("agenda_id")
    await viewer.call("POST", f"/v1/agendas/{agenda_id}/cancel")
    return redirect(f"/agendas/{agenda_id}")


def bars(agenda: Agenda) -> list[Bars]:
    """A bar for each job; the whole width is from the beginning of the lease to shortly after its
    end, or to that of the last job."""
    begins, stop, whole_s = agenda.begins, agenda.usable_end, _width_s(agenda)

    def stretch(start: datetime, end: datetime) -> Stretch | None:
        left = 100 * max(0.0, (start - begins).total_seconds()) / whole_s
        width = 100 * (end - begins).total_seconds() / whole_s - left
        return Stretch(round(left, 2), round(width, 2)) if width > 0 else None

    def of(job: AgendaJob) -> Bars:
        planned = stretch(job.planned_start, job.planned_end) or Stretch(0, 0)
        if job.start is None or job.end is None:
            return Bars(planned, None, None)
        within = stretch(job.start, min(job.end, stop))
        return Bars(planned, within, stretch(max(job.start, stop), job.end))

    return [of(job) for job in agenda.jobs]


def _context(agenda: Agenda) -> dict[str, object]:
    stop = 100 * (agenda.usable_end - agenda.begins).total_seconds() / _width_s(agenda)
    return {
        "agenda": agenda,
        "rows": list(zip(agenda.jobs, bars(agenda), strict=True)),
        "stop": round(max(0.0, stop), 2),
        "families": FAMILIES,
        "waiting": sum(job.standing in ("waiting", "paused") for job in agenda.jobs),
    }


def _width_s(agenda: Agenda) -> float:
    ends = [job.end for job in agenda.jobs if job.end] + [job.planned_end for job in agenda.jobs]
    lease_s = max(1.0, (agenda.usable_end - agenda.begins).total_seconds())
    return max(MARGIN * lease_s, *((end - agenda.begins).total_seconds() for end in ends))


async def _agenda(viewer: Viewer) -> Agenda:
    return await viewer.get(Agenda, f"/v1/agendas/{viewer.part('agenda_id')}")
