"""Every page, when one of the answers that it is made from is refused: it says so, and is no half
of a page."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

import dashboard
from api.app import create_app
from api.web.auth import COOKIE
from core.base.clock import utc_now
from core.process.settings import ApiSettings
from dashboard import site_map
from tests.api.courses.bundle import write_bundle
from tests.api.shapes import job_spec
from tests.dashboard import stage as stages
from tests.dashboard.stage import Stage
from tests.dashboard.test_on_stage import COMPARED, address
from trainyard import Trainyard

pytestmark = pytest.mark.xdist_group("refused parts")  # one stage for all of them

WHY = "The database is not answering right now."
REPORT = "/reports/{report}"
"""A document for everybody, which does not say who looks at it."""
PAGES = (
    "/jobs",
    COMPARED,
    "/jobs/new",
    "/jobs/{homework-4-ddp}",
    "/programs/new",
    "/studies",
    "/studies/new",
    "/studies/{study}",
    "/agendas",
    "/agendas/new",
    "/agendas/{agenda}",
    "/templates",
    "/templates/{template}",
    "/reports",
    REPORT,
    "/courses",
    "/courses/ml-lab",
    "/courses/ml-lab/own",
    "/courses/ml-lab/own/roster",
    "/courses/ml-lab/own/forecast",
    "/nodes",
    "/nodes/enrol",
    "/nodes/north-02",
    "/nodes/east-02/drain",
    "/calendar",
    "/leases",
    "/leases/{lease of ada}",
    "/datasets",
    "/datasets/python-stdlib",
    "/models",
    "/tokenizers",
    "/shares",
    "/shares/job/{homework-4-ddp}",
    "/workspace",
    "/workbenches",
    "/usage",
    "/help",
    "/help/keys",
    "/help/leases",
    "/search?q=homework",
    "/admin/cleanups",
    "/admin/cleanups/{cleanup}",
    "/admin/policies",
    "/admin/people",
    "/admin/people/import",
    "/admin/people/{person}/disable",
    "/admin/grants",
    "/admin/audit",
    "/admin/settings",
    "/account",
)
PIECES = (
    "/jobs/rows",
    "/jobs/{homework-4-ddp}/head",
    "/jobs/{homework-4-ddp}/lead",
    "/jobs/{homework-4-ddp}/events",
    "/jobs/{homework-4-ddp}/history",
    "/studies/{study}/report",
    "/agendas/{agenda}/report",
    "/nodes/rows",
    "/nodes/north-02/now",
    "/search/found?q=homework",
)
"""Parts of pages, which their scripts ask for again."""
OTHERS = {
    "/",  # leads to one of the above
    "/admin",
    "/login",  # for nobody who is signed in
    "/login/oidc",
    "/login/oidc/callback",
    "/first-start",
    "/invite",
    "/new-password",
    "/forgotten-password",
    "/courses/{course}/{exercise}/results.csv",  # files
    "/courses/{course}/{exercise}/results.json",
    "/reports/{sha256}/bundle",
    "/models/{model_id}",  # nothing of this kind is on the stage
    "/workbenches/{workbench_id}",
}


@dataclass
class Refusing:
    """The API, which refuses one address and notes what was asked."""

    api: ASGIApp
    refused: str = ""
    asked: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        if scope["path"] == self.refused:
            problem = {"title": "Unavailable", "status": 503, "code": "unavailable", "detail": WHY}
            await JSONResponse(problem, 503)(scope, receive, send)
        else:
            await self.api(scope, receive, send)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A platform full of data, with a course."""
    with stages.raised(tmp_path_factory.mktemp("stage")) as stage:
        stages.fill(stage)
        bundle = write_bundle(tmp_path_factory.mktemp("bundle"))
        with Trainyard(stage.url, stage.secrets["ada"]) as ada:
            assert ada.courses.apply(bundle, (utc_now() - timedelta(days=3)).date()).applied
        yield stage


@pytest.fixture(scope="module")
def api(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Refusing:
    settings = ApiSettings(
        database_url=str(stage.database.engine.url),
        redis_url=stages.NOWHERE,
        store=tmp_path_factory.mktemp("store"),
    )
    app = create_app(settings)
    app.openapi_schema = stages.openapi()
    return Refusing(app)


@pytest.fixture(scope="module")
def page(stage: Stage, api: Refusing, one_loop: None) -> Iterator[TestClient]:
    """Ada's browser."""
    app = Starlette(routes=dashboard.create(api).routes)
    cookies = {COOKIE: stage.secrets["ada"]}
    with TestClient(app, base_url="http://127.0.0.1:8471", cookies=cookies) as client:
        yield client


@pytest.fixture(scope="module")
def ids(stage: Stage) -> dict[str, str]:
    """Ids of what is not on every stage."""
    with Trainyard(stage.url, stage.secrets["ada"]) as ada:
        report = ada.reports.write([stage.jobs["homework-4-ddp"]]).sha256
        template = ada.templates.keep({"name": "lab", "spec": job_spec()}).id
        cleanup = ada.cleanups.preview(["no_show"], reason="Test.").id
    person = stage.people["student-04"]
    return {"report": report, "template": template, "cleanup": cleanup, "person": person}


def addresses(stage: Stage, ids: dict[str, str], paths: Sequence[str]) -> list[str]:
    named = [re.sub(r"\{(\w+)\}", lambda m: ids.get(m[1], m[0]), path) for path in paths]
    return [address(stage, path) for path in named]


def test_every_address_of_the_dashboard_is_looked_at_here(
    stage: Stage, ids: dict[str, str]
) -> None:
    given = [path.partition("?")[0] for path in addresses(stage, ids, (*PAGES, *PIECES))]
    for method, path, _ in site_map.PAGES:
        if method != "GET" or path in OTHERS:
            continue
        pattern = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))
        assert any(pattern.fullmatch(one) for one in given), f"{path} is missing in PAGES"


@pytest.mark.parametrize("path", [*PAGES, *PIECES])
def test_a_refused_part_is_told_in_the_words_of_the_refusal(
    stage: Stage, ids: dict[str, str], api: Refusing, page: TestClient, path: str
) -> None:
    [found] = addresses(stage, ids, [path])
    headers = {"HX-Request": "true"} if path in PIECES else {}
    api.refused, api.asked = "", []
    whole = page.get(found, headers=headers)
    assert whole.status_code == 200, whole.text
    assert "/v1/me" in api.asked or path in (*PIECES, REPORT)
    assert api.asked
    for part in sorted(set(api.asked)):
        api.refused = part
        answer = page.get(found, headers=headers)
        assert WHY in answer.text, part
        assert answer.status_code in (200, 503), part
        if path in PAGES and answer.status_code == 503:
            assert "Try again" in answer.text
