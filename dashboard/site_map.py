"""Every address of the dashboard and what answers it."""

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dashboard import (
    account,
    datasets,
    job_list,
    job_page,
    leases,
    nodes,
    sessions,
    study_page,
    submission,
)
from dashboard.rendering import PAGE_HEADERS, redirect, refusal
from dashboard.static_files import StaticFiles
from dashboard.viewer import Refused, TooLarge, Viewer

Page = Callable[[Viewer], Awaitable[Response]]

PAGES: list[tuple[str, str, Page]] = [
    ("GET", "/", job_list.start),
    ("GET", "/login", sessions.login_form),
    ("POST", "/login", sessions.log_in),
    ("POST", "/login/link", sessions.log_in_by_link),
    ("GET", "/first-start", sessions.first_start_form),
    ("POST", "/first-start", sessions.start_first),
    ("POST", "/logout", sessions.log_out),
    ("GET", "/jobs", job_list.show),
    ("GET", "/jobs/rows", job_list.rows),
    ("POST", "/jobs/cancel", job_list.cancel_selected),
    ("GET", "/jobs/new", submission.form),
    ("POST", "/jobs/new", submission.submit),
    ("POST", "/jobs/plan", submission.plan),
    ("GET", "/jobs/{job_id}", job_page.show),
    ("GET", "/jobs/{job_id}/head", job_page.head),
    ("GET", "/jobs/{job_id}/events", job_page.events),
    ("GET", "/jobs/{job_id}/history", job_page.history),
    ("POST", "/jobs/{job_id}/{action:str}", job_page.act),
    ("GET", "/studies", study_page.show_all),
    ("GET", "/studies/{study_id}", study_page.show),
    ("GET", "/studies/{study_id}/report", study_page.report),
    ("POST", "/studies/{study_id}/cancel", study_page.cancel),
    ("GET", "/nodes", nodes.show),
    ("GET", "/nodes/rows", nodes.rows),
    ("POST", "/nodes/{node_id}/{action:str}", nodes.act),
    ("GET", "/leases", leases.show),
    ("POST", "/leases", leases.book),
    ("POST", "/leases/{lease_id}/cancel", leases.cancel),
    ("GET", "/datasets", datasets.show),
    ("POST", "/datasets/{dataset_id}/delete", datasets.delete),
    ("GET", "/account", account.show),
    ("POST", "/account/login-link", account.make_link),
    ("POST", "/account/tokens", account.make_token),
    ("POST", "/account/tokens/{token_id}/revoke", account.revoke_token),
]


def create(app: ASGIApp) -> APIRouter:
    """The dashboard's routes. They ask `app`, in process, what the viewer's session may know."""
    routes = [
        Route(path, _answering(app, page), methods=[method], include_in_schema=False)
        for method, path, page in PAGES
    ]
    static = Route("/static/{path:path}", StaticFiles().answer, include_in_schema=False)
    return APIRouter(routes=[*routes, static])


def _answering(app: ASGIApp, page: Page) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        viewer = Viewer(app, request)
        try:
            return await page(viewer)
        except Refused as refused:
            if refused.status == 401:
                return _to_login(viewer)
            return refusal(refused, is_fragment=viewer.is_fragment)
        except TooLarge:
            return PlainTextResponse("This form is larger than 1,000,000 bytes.", status_code=413)

    return answer


def _to_login(viewer: Viewer) -> Response:
    """Sign in first, then come back to the page that was asked for."""
    request = viewer.request
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if viewer.is_fragment:
        return Response(status_code=204, headers={**PAGE_HEADERS, "HX-Redirect": "/login"})
    return redirect(f"/login?next={quote(asked)}" if request.method == "GET" else "/login")
