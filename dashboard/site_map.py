"""Every address of the dashboard and what answers it."""

from collections.abc import Awaitable, Callable, Collection
from urllib.parse import quote

from fastapi import APIRouter
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dashboard import static_files
from dashboard.pages import (
    account,
    agendas,
    calendar,
    comparison,
    course_forecasts,
    courses,
    datasets,
    enrolment,
    forgotten,
    help,
    job,
    jobs,
    lease,
    leases,
    models,
    new_group,
    new_program,
    node,
    nodes,
    reports,
    search,
    shares,
    signing_in,
    studies,
    submission,
    templates,
    usage,
    workbenches,
    workspace,
)
from dashboard.pages.admin import audit, cleanups, grants, people, people_import, policies, settings
from dashboard.pages.doors import FIRST_START, INVITATION, NEW_PASSWORD, opening, showing
from dashboard.rendering import PAGE_HEADERS, redirect, refusal
from dashboard.viewer import ApiProblem, TooLarge, Viewer

Page = Callable[[Viewer], Awaitable[Response]]

DOORS = (FIRST_START, INVITATION, NEW_PASSWORD)
PAGES: list[tuple[str, str, Page]] = [
    ("GET", "/", jobs.start),
    ("GET", "/login", signing_in.login_form),
    ("POST", "/login", signing_in.log_in),
    ("POST", "/login/link", signing_in.log_in_by_link),
    ("GET", signing_in.OIDC_PATH, signing_in.go_to_provider),
    ("GET", f"{signing_in.OIDC_PATH}/callback", signing_in.come_back),
    *(("GET", door.path, showing(door)) for door in DOORS),
    *(("POST", door.path, opening(door)) for door in DOORS),
    ("GET", "/forgotten-password", forgotten.show),
    ("POST", "/forgotten-password", forgotten.ask),
    ("POST", "/logout", signing_in.log_out),
    ("GET", "/jobs", jobs.show),
    ("GET", "/jobs/rows", jobs.rows),
    ("POST", "/jobs/cancel", jobs.cancel_selected),
    ("POST", "/jobs/tag", jobs.tag_selected),
    ("POST", "/jobs/columns", jobs.choose_columns),
    ("POST", "/jobs/compare", jobs.compare_selected),
    ("GET", "/jobs/compare", comparison.show),
    ("GET", "/jobs/new", submission.form),
    ("POST", "/jobs/new", submission.submit),
    ("POST", "/jobs/plan", submission.plan),
    ("POST", "/jobs/new/fields", submission.fields),
    ("GET", "/jobs/{job_id}", job.show),
    ("GET", "/jobs/{job_id}/head", job.head),
    ("GET", "/jobs/{job_id}/lead", job.lead),
    ("GET", "/jobs/{job_id}/events", job.events),
    ("GET", "/jobs/{job_id}/history", job.history),
    ("POST", "/jobs/{job_id}/again", submission.again),
    ("POST", "/jobs/{job_id}/tags", job.put_tags),
    ("POST", "/jobs/{job_id}/report", job.put_report),
    ("POST", "/jobs/{job_id}/{action:str}", job.act),
    ("GET", "/programs/new", new_program.show),
    ("POST", "/programs/new", new_program.submit),
    ("GET", "/studies", studies.show_all),
    ("GET", "/studies/new", new_group.study_form),
    ("POST", "/studies/new", new_group.submit_study),
    ("GET", "/studies/{study_id}", studies.show),
    ("GET", "/studies/{study_id}/report", studies.report),
    ("POST", "/studies/{study_id}/cancel", studies.cancel),
    ("GET", "/agendas", agendas.show_all),
    ("GET", "/agendas/new", new_group.agenda_form),
    ("POST", "/agendas/new", new_group.submit_agenda),
    ("POST", "/agendas/new/plan", new_group.plan_agenda),
    ("GET", "/agendas/{agenda_id}", agendas.show),
    ("GET", "/agendas/{agenda_id}/report", agendas.report),
    ("POST", "/agendas/{agenda_id}/cancel", agendas.cancel),
    ("GET", "/templates", templates.show_all),
    ("GET", "/templates/{template_id}", templates.show),
    ("POST", "/templates/{template_id}/start", templates.start),
    ("POST", "/templates/{template_id}/delete", templates.delete),
    ("GET", "/reports", reports.show_all),
    ("POST", "/reports", reports.make),
    ("GET", "/reports/{sha256}", reports.show),
    ("GET", "/reports/{sha256}/bundle", reports.bundle),
    ("POST", "/reports/{sha256}/delete", reports.delete),
    ("GET", "/courses", courses.show_all),
    ("GET", "/courses/{course}", courses.show),
    ("GET", "/courses/{course}/{exercise}", courses.exercise),
    ("POST", "/courses/{course}/{exercise}/hand-in", courses.hand_in),
    ("GET", "/courses/{course}/{exercise}/roster", courses.roster),
    ("GET", "/courses/{course}/{exercise}/forecast", course_forecasts.show),
    ("GET", "/courses/{course}/{exercise}/results.csv", courses.results_csv),
    ("GET", "/courses/{course}/{exercise}/results.json", courses.results_json),
    ("GET", "/nodes", nodes.show),
    ("GET", "/nodes/rows", nodes.rows),
    ("GET", "/nodes/enrol", enrolment.show),
    ("POST", "/nodes/enrol", enrolment.make),
    ("GET", "/nodes/{node_id}", node.show),
    ("GET", "/nodes/{node_id}/now", node.now),
    ("GET", "/nodes/{node_id}/{action:str}", nodes.ask),
    ("POST", "/nodes/{node_id}/{action:str}", nodes.act),
    ("GET", "/calendar", calendar.show),
    ("GET", "/leases", leases.show),
    ("POST", "/leases", leases.book),
    ("GET", "/leases/{lease_id}", lease.show),
    ("POST", "/leases/{lease_id}/extend", lease.extend),
    ("POST", "/leases/{lease_id}/release", lease.release),
    ("POST", "/leases/{lease_id}/restore", lease.restore),
    ("GET", "/datasets", datasets.show),
    ("POST", "/datasets", datasets.upload),
    ("POST", "/datasets/uploads/{upload_id}/delete", datasets.delete_upload),
    ("GET", "/datasets/{dataset_id}", datasets.preview),
    ("POST", "/datasets/{dataset_id}/delete", datasets.delete),
    ("GET", "/models", models.show_all),
    ("GET", "/models/{model_id}", models.show),
    ("GET", "/tokenizers", models.show_tokenizers),
    ("GET", "/shares", shares.show_all),
    ("GET", "/shares/{kind}/{thing}", shares.show),
    ("POST", "/shares/{kind}/{thing}", shares.share),
    ("POST", "/shares/{kind}/{thing}/{share_id}/end", shares.end),
    ("GET", "/workspace", workspace.show),
    ("POST", "/workspace/files", workspace.put),
    ("POST", "/workspace/delete", workspace.delete),
    ("POST", "/workspace/snapshots/{snapshot_id}/restore", workspace.restore),
    ("GET", "/workbenches", workbenches.show),
    ("POST", "/workbenches", workbenches.start),
    ("GET", "/workbenches/{workbench_id}", workbenches.terminal),
    ("POST", "/workbenches/{workbench_id}/stop", workbenches.stop),
    ("POST", "/workbenches/{workbench_id}/release", workbenches.release),
    ("POST", "/workbenches/{workbench_id}/enter", workbenches.enter),
    ("GET", "/usage", usage.show),
    ("GET", "/help", help.show_all),
    ("GET", "/help/keys", help.keys),
    ("GET", "/help/{name:path}", help.show),
    ("GET", "/search", search.show),
    ("GET", "/search/found", search.found),
    ("GET", "/admin", audit.start),
    ("GET", "/admin/cleanups", cleanups.show_all),
    ("POST", "/admin/cleanups", cleanups.preview),
    ("GET", "/admin/cleanups/{cleanup_id}", cleanups.show),
    ("POST", "/admin/cleanups/{cleanup_id}/apply", cleanups.apply),
    ("POST", "/admin/cleanups/{cleanup_id}/undo", cleanups.undo),
    ("GET", "/admin/policies", policies.show),
    ("POST", "/admin/policies", policies.apply),
    ("POST", "/admin/policies/plan", policies.plan),
    ("GET", "/admin/people", people.show),
    ("POST", "/admin/people/invite", people.invite),
    ("GET", "/admin/people/import", people_import.show),
    ("POST", "/admin/people/import/check", people_import.check),
    ("POST", "/admin/people/import/run", people_import.run),
    ("GET", "/admin/people/{user_id}/{action:str}", people.ask),
    ("POST", "/admin/people/{user_id}/{action:str}", people.act),
    ("GET", "/admin/grants", grants.show),
    ("POST", "/admin/grants", grants.grant),
    ("POST", "/admin/grants/{grant_id}/revoke", grants.revoke),
    ("GET", "/admin/audit", audit.show),
    ("GET", "/admin/settings", settings.show),
    ("GET", "/account", account.show),
    ("POST", "/account/zone", account.set_zone),
    ("POST", "/account/notifications", account.choose),
    ("POST", "/account/notifications/test", account.send_test),
    ("POST", "/account/webhook", account.set_webhook),
    ("POST", "/account/webhook/forget", account.forget_webhook),
    ("POST", "/account/calendars/{feed_id}/revoke", account.revoke_feed),
    ("POST", "/account/login-link", account.make_link),
    ("POST", "/account/tokens", account.make_token),
    ("POST", "/account/tokens/{token_id}/revoke", account.revoke_token),
    ("POST", "/account/sessions/{session_id}/end", account.end_session),
]


def create(app: ASGIApp) -> APIRouter:
    """The dashboard's routes. They ask `app`, in process, what the viewer's session may know."""
    pages = {path for method, path, _ in PAGES if method == "GET"}
    routes = []
    for method, path, page in PAGES:
        answer = _answering(app, page)
        routes.append(Route(path, answer, methods=[method], include_in_schema=False))
        if steps := _steps_to_a_page(path, pages):
            back = _going_back(steps)
            routes.append(Route(path, back, methods=["GET"], include_in_schema=False))
    static = Route("/static/{path:path}", static_files.answer, include_in_schema=False)
    return APIRouter(routes=[*routes, static])


def _steps_to_a_page(path: str, pages: Collection[str]) -> int:
    """How many parts of a form's address are left out for the page that it stands on."""
    steps = 0
    while path and path not in pages:
        path, steps = path.rpartition("/")[0], steps + 1
    return steps if path else 0


def _going_back(steps: int) -> Callable[[Request], Awaitable[Response]]:
    """Whoever opens the address of a form again comes to the page that the form stands on."""

    async def answer(request: Request) -> Response:
        return redirect(request.url.path.rsplit("/", steps)[0])

    return answer


def nothing_here(app: ASGIApp) -> Callable[[Request], Awaitable[Response]]:
    """The page for an address at which nothing is, or nothing to look at."""

    async def ask(viewer: Viewer) -> Response:
        await viewer.call(viewer.request.method, viewer.request.url.path)
        raise AssertionError("what is not there has answered")

    return _answering(app, ask)


def _answering(app: ASGIApp, page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        viewer = Viewer(app, request)
        try:
            return await page(viewer)
        except ApiProblem as refused:
            if refused.status == 401:
                return _to_login(viewer)
            return await refusal(viewer, refused)
        except HTTPException as error:  # of a form longer than is read of a stranger
            if error.status_code == 401:
                return _to_login(viewer)
            raise
        except TooLarge as error:
            return PlainTextResponse(str(error), status_code=413)

    return answer


def _to_login(viewer: Viewer) -> Response:
    """Sign in first, then come back: to the page that was asked for, or that the form stands on."""
    request = viewer.request
    is_page = request.method == "GET" and not viewer.is_fragment
    asked = _path(request.url) if is_page else _page_before(request)
    login = f"/login?next={quote(asked)}" if asked else "/login"
    if viewer.is_fragment:
        return Response(status_code=204, headers={**PAGE_HEADERS, "HX-Redirect": login})
    return redirect(login)


def _page_before(request: Request) -> str:
    """The page of ours that sent this request, or an empty text."""
    referer = URL(request.headers.get("referer", ""))
    return _path(referer) if referer.netloc == request.url.netloc else ""


def _path(url: URL) -> str:
    return url.path + (f"?{url.query}" if url.query else "")
