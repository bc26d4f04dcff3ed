"""The web application: routes under /v1, the dashboard below them, and what surrounds both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.routing import APIRoute

import dashboard
from api import (
    admin,
    checkpoints,
    comparison,
    datasets,
    jobs,
    labs,
    leases,
    logs,
    metrics,
    models,
    node_files,
    node_protocol,
    nodes,
    prometheus,
    sessions,
    stream,
    studies,
    tokens,
    users,
)
from api.auth import policy_of
from api.bells import Ringer
from api.body_cap import BodyCap
from api.errors import add_error_handlers
from api.headers import Shell, allowed_hosts
from api.housekeeping import keep_house
from api.hub import Hub
from api.openapi import DESCRIPTION, describe
from api.plan_cache import PlanCache
from api.process import Process
from api.rate_limits import RateLimits
from api.store import Store
from core.database import Database
from core.doorbell import Doorbell
from core.settings import ApiSettings

ROUTERS = (
    jobs.router,
    metrics.router,
    comparison.router,
    studies.router,
    logs.router,
    stream.router,
    checkpoints.router,
    datasets.router,
    models.router,
    leases.router,
    nodes.router,
    users.router,
    tokens.router,
    labs.router,
    sessions.router,
    admin.router,
    node_protocol.router,
    node_files.router,
    prometheus.router,
)


def create_app(settings: ApiSettings) -> FastAPI:
    """The application. The database must be migrated; Redis may be away."""
    database = Database(settings.database_url, pool_size=20)
    process = Process(
        settings=settings,
        database=database,
        store=Store(settings.store),
        ringer=Ringer(Doorbell(settings.redis_url)),
        limits=RateLimits(settings),
        plans=PlanCache(),
        hub=Hub(database, settings.redis_url),
    )
    process.store.create()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        process.hub.start()
        housekeeping = asyncio.create_task(keep_house(database))
        yield
        housekeeping.cancel()
        await process.hub.close()
        process.ringer.close()
        database.close()

    app = FastAPI(
        title="Trainyard",
        summary="Training as a service on a few shared GPU nodes.",
        description=DESCRIPTION,
        version=version("trainyard-platform"),
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.process = process
    app.state.numbers = prometheus.RequestNumbers()
    add_error_handlers(app)
    for route in api_routes():  # deny by default: a route without a policy stops the start
        assert policy_of(route.dependant), f"{route.path} does not say who may call it"
    for router in ROUTERS:
        app.include_router(router)
    describe(app)
    app.include_router(dashboard.create(app))
    app.add_middleware(BodyCap, max_bytes=settings.max_body_bytes)
    app.add_middleware(prometheus.CountRequests, numbers=app.state.numbers)
    app.add_middleware(Shell, hosts=allowed_hosts(settings), is_https=process.is_https)
    return app


def api_routes() -> list[APIRoute]:
    """Every route of the API; the dashboard's are not among them."""
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
