"""A fake server that answers all that the command line asks for."""

from collections.abc import Callable

from typer.testing import Result

from tests.client import documents as d
from tests.client.fake_server import Answer, FakeServer, as_json, listed, streamed

Run = Callable[..., Result]
JOB = f"/v1/jobs/{d.JOB_ID}"


def everything(server: FakeServer) -> None:
    """Answer all that the commands ask for."""
    gets = {
        "/v1/me": as_json(d.ME),
        "/v1/me/storage": as_json(d.STORAGE),
        "/v1/jobs": listed([d.running(120, 2.5)]),
        JOB: as_json(d.ended()),
        f"{JOB}/attempts": listed([d.ATTEMPT]),
        f"{JOB}/events": listed([d.event(1, "Started.")]),
        f"{JOB}/metrics": as_json(d.METRICS),
        f"{JOB}/logs": as_json(d.LOGS),
        f"{JOB}/comparison": as_json(d.COMPARISON),
        "/v1/studies": listed([d.STUDY]),
        f"/v1/studies/{d.STUDY['id']}": as_json(d.STUDY_REPORT),
        "/v1/agendas": listed([d.AGENDA]),
        f"/v1/agendas/{d.AGENDA['id']}": as_json(d.ENDED_AGENDA),
        f"{JOB}/checkpoints": listed([d.CHECKPOINT]),
        f"{JOB}/artifacts": listed([d.ARTIFACT]),
        f"{JOB}/artifacts/{d.ARTIFACT['id']}": Answer(200, b"hello", "text/plain"),
        f"{JOB}/checkpoints/{d.CHECKPOINT['id']}": Answer(200, b"tar", "application/x-tar"),
        "/v1/nodes": listed([d.NODE]),
        "/v1/admin/network": as_json(d.NETWORK),
        "/v1/datasets": listed([d.DATASET]),
        "/v1/workspace": as_json(d.WORKSPACE),
        "/v1/workspace/files": listed([d.ENTRY]),
        "/v1/workspace/snapshots": listed([d.SNAPSHOT]),
        "/v1/models": listed([d.MODEL]),
        "/v1/models/tiny": as_json(d.MODEL),
        "/v1/shares": listed([d.SHARE]),
        "/v1/courses": listed([d.COURSE]),
        "/v1/courses/ml-lab/exercises/two": as_json(d.EXERCISE),
        "/v1/courses/ml-lab/exercises/two/roster": listed([d.STANDING]),
        "/v1/courses/ml-lab/exercises/two/results": listed([d.STUDENT_RESULT]),
        "/v1/templates": listed([d.TEMPLATE]),
        "/v1/templates/lab-1": as_json(d.TEMPLATE),
        "/v1/leases": listed([d.LEASE]),
        "/v1/leases/availability": as_json(d.AVAILABILITY),
        "/v1/waitlist": listed([d.WAIT]),
        "/v1/calendars": listed([d.FEED]),
        "/v1/tokens": listed([d.TOKEN]),
        "/v1/sessions": listed([d.SESSION]),
        "/v1/users": listed([d.USER]),
        "/v1/admin/audit": listed([d.AUDIT]),
    }
    for path, answer in gets.items():
        server.answer(f"GET {path}", answer)
    server.answer(f"GET {JOB}/stream", streamed(("1", "job", d.job()), ("2", "end", d.ended())))
    posts = {
        "/v1/jobs": as_json(d.job(), 201),
        "/v1/jobs/plan": as_json(d.PLAN_ANSWER),
        f"{JOB}/clone": as_json(d.job(), 201),
        "/v1/studies": as_json(d.STUDY, 201),
        f"/v1/studies/{d.STUDY['id']}/cancel": as_json(d.STUDY),
        "/v1/agendas": as_json(d.AGENDA, 201),
        "/v1/agendas/plan": as_json(d.AGENDA_PLAN),
        f"/v1/agendas/{d.AGENDA['id']}/cancel": as_json(d.AGENDA),
        "/v1/leases": as_json(d.LEASE, 201),
        "/v1/leases/verdict": as_json({**d.BLOCK_VERDICT, "ok": True, "chosen": ["this-machine"]}),
        "/v1/waitlist": as_json(d.WAIT, 201),
        f"/v1/waitlist/{d.WAIT['id']}/accept": as_json(d.LEASE, 201),
        f"/v1/waitlist/{d.WAIT['id']}/decline": as_json(d.WAIT),
        "/v1/calendars": as_json(d.FEED, 201),
        "/v1/datasets": as_json(d.DATASET, 201),
        "/v1/workspace/snapshots/snap_01k9/restore": as_json(d.SNAPSHOT, 201),
        "/v1/models": as_json(d.MODEL, 201),
        "/v1/models/promoted": as_json(d.MODEL, 201),
        "/v1/models/fetched": as_json(d.FETCHED, 201),
        "/v1/datasets/fetched": as_json(d.FETCHED_DATASET, 201),
        "/v1/shares": as_json(d.SHARE, 201),
        "/v1/courses/ml-lab/exercises/two/hand-in": as_json(d.EXERCISE),
        "/v1/templates": as_json(d.TEMPLATE, 201),
        "/v1/templates/lab-1/start": as_json(d.START, 201),
        "/v1/code": as_json(d.CODE, 201),
        "/v1/tokens": as_json(d.NEW_TOKEN, 201),
        "/v1/users": as_json(d.USER, 201),
        "/v1/users/ada/login-link": as_json(d.LINK, 201),
        "/v1/admin/enrolments": as_json(d.ENROLMENT, 201),
        "/v1/sessions": as_json(d.NEW_TOKEN, 201),
        "/v1/sessions/link": as_json(d.NEW_TOKEN, 201),
        "/v1/first-start": as_json(d.NEW_TOKEN, 201),
    }
    for verb in ("extend", "release", "swap", "restore"):
        posts[f"/v1/leases/{d.LEASE['id']}/{verb}"] = as_json(d.LEASE)
    for verb in ("cancel", "pause", "resume", "requeue", "profile", "snapshot"):
        posts[f"{JOB}/{verb}"] = as_json(d.job())
    for verb in ("drain", "resume", "quarantine", "retire"):
        posts[f"/v1/admin/nodes/this-machine/{verb}"] = as_json(d.NODE)
    for path, answer in posts.items():
        server.answer(f"POST {path}", answer)
    for path in (
        f"/v1/leases/{d.LEASE['id']}",
        f"/v1/waitlist/{d.WAIT['id']}",
        f"/v1/calendars/{d.FEED['id']}",
        "/v1/datasets/my-text",
        "/v1/models/tiny",
        "/v1/shares/share_01k9",
        "/v1/courses/ml-lab",
        "/v1/templates/lab-1",
        f"/v1/tokens/{d.TOKEN['id']}",
        "/v1/sessions/current",
        "/v1/users/ada/identities",
        f"/v1/sessions/{d.SESSION['id']}",
    ):
        server.answer(f"DELETE {path}", Answer(204))
    server.answer("DELETE /v1/workspace/files", as_json(d.SNAPSHOT))
    [of_class] = d.NETWORK["lists"]
    server.answer("PUT /v1/admin/network/node-classes/a100x4", as_json(of_class))
    server.answer("PUT /v1/admin/network/labs/vision", as_json(d.NO_HOSTS))
    server.answer(f"PUT {JOB}/report", as_json({**d.job(), "report_when_ended": True}))
    server.answer(f"PUT {JOB}/tags", as_json({**d.job(), "tags": ["lab-1"]}))
    server.answer("PATCH /v1/users/ada", as_json(d.USER))
