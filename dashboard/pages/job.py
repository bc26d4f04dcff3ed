"""One job: state, reason, track, plan beside measured, charts, logs, and what happened.

The server draws what is known; the page's scripts then keep tiles, track, charts and logs alive
from the API's own stream, and ask for `head`, `lead` and `history` again when a state changes.
"""

import asyncio
from datetime import UTC, datetime

from starlette.responses import Response

from dashboard.failures import failure_of
from dashboard.host_uses import host_uses
from dashboard.rank_grid import rank_grid
from dashboard.rendering import redirect, render
from dashboard.sentences import (
    LIVE,
    WAITING,
    batch_words,
    certificate_family,
    certificate_sentence,
    cost_words,
    event_family,
    event_title,
    layout_words,
    outcome_family,
    spec_yaml,
    worth_telling,
)
from dashboard.viewer import ApiProblem, Viewer
from trainyard.views import Artifact, Attempt, Checkpoint, Event, Job, JobLayout

WITHOUT_PLAN = ("script", "unknown")  # of a script, or of a row that the API can't read
ACTIONS = ("cancel", "pause", "resume", "requeue", "profile", "snapshot")
EVENT_PAGE, EVENT_PAGES = 200, 5  # 1,000 events are more than a job has in weeks


async def show(viewer: Viewer) -> Response:
    """The whole page."""
    return await _page(viewer, None)


async def head(viewer: Viewer) -> Response:
    """Title, state, reason and the buttons that make sense now."""
    me, job = await asyncio.gather(viewer.me(), _job(viewer))
    return render("job_head.html", {**_job_context(job), "me": me, "refused": None})


async def events(viewer: Viewer) -> Response:
    """Return the job's events, newest first."""
    return render("job_events.html", await _events(viewer))


async def lead(viewer: Viewer) -> Response:
    """Return why the job failed and what to try, or its result; empty while it has neither."""
    return render("job_lead.html", await _past(viewer))


async def history(viewer: Viewer) -> Response:
    """Attempts, checks, checkpoints and artifacts."""
    return render("job_history.html", await _past(viewer))


async def act(viewer: Viewer) -> Response:
    """Cancel, pause, resume, requeue; a refusal stands on the job's own page."""
    job_id, action = viewer.part("job_id"), str(viewer.request.path_params["action"])
    if action not in ACTIONS:
        return Response("This action does not exist.", status_code=404, media_type="text/plain")
    try:
        await viewer.call("POST", f"/v1/jobs/{job_id}/{action}")
    except ApiProblem as refused:
        if refused.status == 401:
            raise
        return await _page(viewer, refused)
    return redirect(f"/jobs/{job_id}")


async def put_tags(viewer: Viewer) -> Response:
    """Set the tags of a job; a refusal stands on the job's own page."""
    job_id = viewer.part("job_id")
    words = (await viewer.form()).get("tags", "").replace(",", " ").lower().split()
    tags = list(dict.fromkeys(words))
    answer = await viewer.or_refusal(
        viewer.call("PUT", f"/v1/jobs/{job_id}/tags", json={"tags": tags}), (422,)
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect(f"/jobs/{job_id}")


async def put_report(viewer: Viewer) -> Response:
    """Have a report written when the job has ended, or no longer; a refusal stands on the job's own
    page."""
    job_id = viewer.part("job_id")
    wanted = (await viewer.form()).get("when_ended") == "true"
    answer = await viewer.or_refusal(
        viewer.call("PUT", f"/v1/jobs/{job_id}/report", json={"when_ended": wanted}), (409,)
    )
    if isinstance(answer, ApiProblem):
        return await _page(viewer, answer)
    return redirect(f"/jobs/{job_id}")


async def _page(viewer: Viewer, refused: ApiProblem | None) -> Response:
    me, happened, past, placed = await asyncio.gather(
        viewer.me(),
        _events(viewer),
        _past(viewer),
        viewer.get(JobLayout, f"/v1/jobs/{viewer.part('job_id')}/layout"),
    )
    job = past["job"]
    assert isinstance(job, Job)
    grid = rank_grid(placed, job.plan)
    context: dict[str, object] = {"me": me, "section": "jobs", "refused": refused}
    context |= {**happened, **past}
    context |= {
        "rank_columns": grid.columns,
        "rank_rows": grid.rows if len(placed.seats) > 1 else [],
        "timeline": placed.timeline,
        "spec_text": spec_yaml(job.spec),
        "stages": list(enumerate(job.plan.needed_by_stage_gib)),
    }
    return render("job.html", context, status=refused.status if refused else 200)


def _job_context(job: Job) -> dict[str, object]:
    return {
        "job": job,
        "now": datetime.now(UTC),
        "layout": layout_words(job),
        "is_script": job.plan.strategy in WITHOUT_PLAN,
        "batch": batch_words(job),
        "certificate_sentence": certificate_sentence(job),
        "certificate_family": certificate_family(job.certificate),
        "is_final": job.is_final,
        "can_pause": job.state in ("queued", *LIVE) and job.desired == "run",
        "can_resume": job.state == "paused" or (job.desired == "pause" and job.state in LIVE),
        "can_requeue": job.state in ("starting", "running") and job.desired == "run",
        "can_cancel": job.state in (*WAITING, *LIVE) and job.desired != "cancel",
    }


async def _events(viewer: Viewer) -> dict[str, object]:
    path = f"/v1/jobs/{viewer.part('job_id')}/events"
    found: list[Event] = []
    has_more = True
    for _ in range(EVENT_PAGES):
        after = found[-1].id if found else 0
        page, has_more = await viewer.page(Event, path, {"limit": EVENT_PAGE, "after": after})
        found += page
        if not has_more:
            break
    return {
        "events": [
            (event, event_title(event), event_family(event))
            for event in reversed(worth_telling(found))
        ],
        "has_more_events": has_more,
        "last_event_id": found[-1].id if found else 0,
    }


async def _past(viewer: Viewer) -> dict[str, object]:
    path = f"/v1/jobs/{viewer.part('job_id')}"
    job, (attempts, _), (checkpoints, _), (artifacts, _) = await asyncio.gather(
        _job(viewer),
        viewer.page(Attempt, f"{path}/attempts"),
        viewer.page(Checkpoint, f"{path}/checkpoints"),
        viewer.page(Artifact, f"{path}/artifacts"),
    )
    return {
        **_job_context(job),
        "failure": failure_of(job, attempts),
        "cost": cost_words(job),
        "attempts": [
            (attempt, outcome_family(attempt.outcome, attempt.state))
            for attempt in reversed(attempts)
        ],
        "host_rows": host_uses(reversed(attempts)),
        "proven": next((one for one in reversed(attempts) if one.preflight), None),
        "checkpoints": sorted(checkpoints, key=lambda one: one.step, reverse=True),
        "artifacts": artifacts,
    }


async def _job(viewer: Viewer) -> Job:
    return await viewer.get(Job, f"/v1/jobs/{viewer.part('job_id')}")
