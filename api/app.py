"""The web application: routes under /v1, the dashboard below them, and the middleware around
both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio
from fastapi import FastAPI
from fastapi.routing import APIRoute

import dashboard
from api.admin import routes as admin
from api.admin import routes_cleanups as cleanups
from api.admin import routes_fabric as fabric
from api.admin import routes_network as network
from api.admin import routes_read_only as read_only
from api.admin import routes_unsafe_settings as unsafe_settings
from api.agendas import routes as agendas
from api.contract.openapi import DESCRIPTION, describe
from api.contract.routes import router as client_wheel_router
from api.courses import routes as courses
from api.courses import routes_exercises as exercises
from api.courses import routes_forecasts as course_forecasts
from api.files import routes_datasets as datasets
from api.files import routes_models as models
from api.files import routes_storage as storage
from api.files import routes_tokenizers as tokenizers
from api.files import routes_uploads as uploads
from api.files.arrival import Arrivals
from api.files.store import Store
from api.housekeeping import keep_house, keep_time
from api.jobs import routes as jobs
from api.jobs import routes_checkpoints as checkpoints
from api.jobs import routes_layout as job_layout
from api.jobs import routes_plan_accuracy as plan_accuracy
from api.jobs import routes_submission as submission
from api.jobs.plain_submissions import PlainSubmissions
from api.jobs.plan_cache import PlanCache
from api.jobs.queueing import Submissions
from api.jobs.reading import Readings
from api.jobs.routes_plan_accuracy import keep_learning
from api.leases import routes as leases
from api.leases import routes_calendars as calendars
from api.leases import routes_forecast as forecast
from api.leases import routes_maintenance as maintenance
from api.leases import routes_moved_leases as moved_leases
from api.leases import routes_waitlist as waitlist
from api.leases.openings import Openings
from api.leases.routes_forecast import Forecasts
from api.middleware import prometheus
from api.middleware.body_cap import BodyCap
from api.middleware.headers import BehindProxy, Shell, allowed_hosts
from api.middleware.lanes import THREADS, Lanes
from api.middleware.request_ids import NameRequests
from api.nodes import routes as nodes
from api.nodes import routes_files as node_files
from api.nodes import routes_heartbeat as node_heartbeat
from api.nodes import routes_logs as node_logs
from api.nodes import routes_metrics as node_metrics
from api.nodes import routes_protocol as node_protocol
from api.nodes import routes_workspaces as node_workspaces
from api.nodes.log_pieces import LogPieces
from api.nodes.metric_batches import Merges, MetricBatches
from api.nodes.pace import NodeCount
from api.nodes.unchanged_beats import MarkedBeats
from api.nodes.watched import Watched
from api.people import routes as users
from api.people import routes_grants as grants
from api.people import routes_imports as imports
from api.people import routes_labs as labs
from api.people import routes_letters as letters
from api.people import routes_notifications as notifications
from api.people import routes_quotas as quotas
from api.people import routes_usage as usage
from api.policies import routes as policies
from api.policies import routes_bands as bands
from api.policies import routes_windows as windows
from api.scripts import routes as code_archives
from api.scripts import routes_node_secrets as node_secrets
from api.scripts import routes_secrets as user_secrets
from api.sharing import routes as shares
from api.sign_in import routes as sessions
from api.sign_in import routes_invites as invites
from api.sign_in import routes_oidc as oidc
from api.sign_in import routes_tokens as tokens
from api.sign_in.oidc_provider import Provider
from api.studies import routes as studies
from api.studies import routes_comparison as comparison
from api.studies import routes_reports as reports
from api.studies.due_reports import keep_reporting
from api.templates import routes as templates
from api.watching import routes_calendar as calendar
from api.watching import routes_changes as changes
from api.watching import routes_logs as logs
from api.watching import routes_metrics as metrics
from api.watching import routes_stream as stream
from api.watching.audience import Audience
from api.watching.hub import Hub
from api.web.auth import TokenLookups, declared_scope, policy_of
from api.web.bells import Ringer
from api.web.errors import add_error_handlers
from api.web.process import Process
from api.web.rate_limits import RateLimits
from api.workbenches import routes as workbenches
from api.workbenches.origins import WorkbenchOrigins
from api.workbenches.tunnels import Tunnels
from api.workspaces import routes as workspaces
from core.database.database import Database
from core.process.settings import ApiSettings
from core.process.timekeeping import Timekeeper
from core.wire.doorbell import Doorbell

LONGEST_STATEMENT_S = 20.0  # whoever asked has given up by then

ROUTERS = (  # the busiest first: an address is looked for from the top
    node_heartbeat.router,
    node_metrics.router,
    node_logs.router,
    plan_accuracy.router,
    submission.router,
    jobs.router,
    metrics.router,
    comparison.router,
    job_layout.router,
    studies.router,
    agendas.router,
    reports.router,
    logs.router,
    stream.router,
    changes.router,
    checkpoints.router,
    datasets.router,
    models.router,
    uploads.router,
    tokenizers.router,
    code_archives.router,
    shares.router,
    templates.router,
    courses.router,
    exercises.router,
    course_forecasts.router,
    user_secrets.router,
    calendars.feed_router,
    calendars.router,
    forecast.router,
    calendar.router,
    leases.router,
    maintenance.router,
    waitlist.router,
    nodes.router,
    imports.router,
    users.router,
    notifications.router,
    quotas.router,
    usage.router,
    invites.router,
    letters.router,
    grants.router,
    policies.router,
    bands.router,
    moved_leases.router,
    windows.router,
    tokens.router,
    labs.router,
    oidc.router,
    sessions.router,
    storage.router,
    admin.router,
    cleanups.router,
    unsafe_settings.router,
    fabric.router,
    network.router,
    read_only.router,
    node_protocol.router,
    node_workspaces.router,
    workspaces.router,
    workbenches.router,
    node_files.router,
    node_secrets.router,
    prometheus.router,
    client_wheel_router,
)


def create_app(settings: ApiSettings) -> FastAPI:
    """Return the application. The database must be migrated; Redis may be away."""
    # As many connections as the lanes have threads that use one.
    database = Database(
        settings.database_url, pool_size=20, longest_statement_s=LONGEST_STATEMENT_S
    )
    store = Store(settings.store)
    store.create()
    ringer = Ringer(Doorbell(settings.redis_url))
    watched = Watched(database, settings.redis_url, ringer)
    hub = Hub(database, settings.redis_url, watched)
    audience = Audience(database)
    plans = PlanCache()
    tunnels = Tunnels(settings.redis_url)
    planned = PlainSubmissions()
    services = [
        store,
        Arrivals(store.root / "uploads"),
        hub,
        watched,
        audience,
        plans,
        tunnels,
        TokenLookups(),
        planned,
        Submissions(feeder=planned),
        Readings(),
        MetricBatches(),
        LogPieces(),
        Merges(),
        Openings(),
        Forecasts(),
        NodeCount(),
        MarkedBeats(),
    ]
    if settings.oidc_issuer:
        services.append(Provider(settings))
    process = Process(
        settings=settings,
        database=database,
        ringer=ringer,
        limits=RateLimits(settings),
        timekeeper=Timekeeper(database),
        services={type(service): service for service in services},
        wake=hub.wake_soon,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        hub.start()
        watched.start()
        tunnels.start()
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        chores = [
            asyncio.create_task(prometheus.measure_loop(app.state.numbers)),
            asyncio.create_task(keep_house(process)),
            asyncio.create_task(keep_time(process)),
            asyncio.create_task(audience.look_after()),
            asyncio.create_task(keep_learning(database, plans)),
            asyncio.create_task(keep_reporting(process)),
        ]
        yield
        for chore in chores:
            chore.cancel()
        await hub.close()
        await watched.close()
        await tunnels.close()
        process.ringer.close()
        process.limits.close()
        app.state.looks.close()
        database.close()

    app = FastAPI(  # telemetry: core/base/tracing.py
        title="Trainyard",
        summary="Training as a service on a few shared GPU nodes.",
        description=DESCRIPTION,
        version=version("trainyard-platform"),
        lifespan=lifespan,
        openapi_url=None,  # api/contract/openapi.py answers
        docs_url=None,
        redoc_url=None,
        routes=[*api_routes()],  # include_router would build each of them a second time
        telemetry={"operation_spans": False, "metrics": False, "logs": False},
    )
    app.state.process = process
    app.state.numbers = prometheus.RequestNumbers()
    app.state.looks = prometheus.Looks(process)
    add_error_handlers(app)
    scopes = {}
    for route in api_routes():  # deny by default: a route without policy or scope stops the start
        policy = policy_of(route.dependant)
        assert policy, f"{route.path} does not say who may call it"
        route.operation_id = route.name
        for method in route.methods or ():
            scopes[method.lower(), route.path] = declared_scope(policy, method, route.path)
    describe(app, scopes)
    app.include_router(workbenches.sockets)  # they check who opens them by themselves
    app.include_router(dashboard.create(app))
    app.state.nothing_here = dashboard.nothing_here(app)
    app.add_middleware(Lanes, numbers=app.state.numbers)
    app.add_middleware(BodyCap, process=process)
    app.add_middleware(prometheus.CountRequests, numbers=app.state.numbers)
    app.add_middleware(NameRequests)
    app.add_middleware(Shell, hosts=allowed_hosts(settings), is_https=process.is_https)
    app.add_middleware(WorkbenchOrigins, process=process)
    if settings.trust_proxy:
        app.add_middleware(BehindProxy)
    return app


def api_routes() -> list[APIRoute]:
    """Return every route of the API; the dashboard's are not among them."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
