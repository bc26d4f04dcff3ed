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
from api import prometheus, read_only
from api.admin import admin, cleanups, unsafe_settings
from api.auth import declared_scope, policy_of
from api.bells import Ringer
from api.body_cap import BodyCap
from api.client_wheel import router as client_wheel_router
from api.errors import add_error_handlers
from api.files import datasets, models, storage
from api.files.store import Store
from api.headers import BehindProxy, Shell, allowed_hosts
from api.housekeeping import keep_house, keep_time
from api.jobs import (
    agendas,
    checkpoints,
    comparison,
    job_layout,
    jobs,
    plan_accuracy,
    reports,
    studies,
)
from api.jobs.plan_accuracy import keep_learning
from api.jobs.plan_cache import PlanCache
from api.lanes import THREADS, Lanes
from api.leases import calendars, forecast, leases, maintenance, moved_leases, waitlist
from api.leases.answer_cache import AnswerCache
from api.leases.openings import Openings
from api.nodes import node_files, node_protocol, nodes
from api.openapi import DESCRIPTION, describe
from api.people import (
    grants,
    imports,
    invites,
    labs,
    notifications,
    oidc,
    sessions,
    tokens,
    usage,
    users,
)
from api.people.oidc_provider import Provider
from api.policies import bands, policies, quotas, windows
from api.process import Process
from api.rate_limits import RateLimits
from api.request_ids import NameRequests
from api.scripts import code_archives, node_secrets, user_secrets
from api.watching import calendar, changes, logs, metrics, stream
from api.watching.audience import Audience
from api.watching.hub import Hub
from core.base.settings import ApiSettings
from core.database.database import Database
from core.process.timekeeping import Timekeeper
from core.wire.doorbell import Doorbell

LONGEST_STATEMENT_S = 20.0  # whoever asked has given up by then

ROUTERS = (
    plan_accuracy.router,
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
    code_archives.router,
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
    read_only.router,
    node_protocol.router,
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
    process = Process(
        settings=settings,
        database=database,
        store=Store(settings.store),
        ringer=Ringer(Doorbell(settings.redis_url)),
        limits=RateLimits(settings),
        plans=PlanCache(),
        hub=Hub(database, settings.redis_url),
        audience=Audience(database),
        timekeeper=Timekeeper(database),
        openings=Openings(),
        forecasts=AnswerCache(),
        provider=Provider(settings) if settings.oidc_issuer else None,
    )
    process.store.create()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        process.hub.start()
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        chores = [
            asyncio.create_task(prometheus.measure_loop(app.state.numbers)),
            asyncio.create_task(keep_house(process)),
            asyncio.create_task(keep_time(process)),
            asyncio.create_task(process.audience.look_after()),
            asyncio.create_task(keep_learning(database, process.plans)),
        ]
        yield
        for chore in chores:
            chore.cancel()
        await process.hub.close()
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
        openapi_url=None,  # api/openapi.py answers
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
    app.include_router(dashboard.create(app))
    app.state.nothing_here = dashboard.nothing_here(app)
    app.add_middleware(Lanes, numbers=app.state.numbers)
    app.add_middleware(BodyCap, process=process)
    app.add_middleware(prometheus.CountRequests, numbers=app.state.numbers)
    app.add_middleware(NameRequests)
    app.add_middleware(Shell, hosts=allowed_hosts(settings), is_https=process.is_https)
    if settings.trust_proxy:
        app.add_middleware(BehindProxy)
    return app


def api_routes() -> list[APIRoute]:
    """Return every route of the API; the dashboard's are not among them."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
