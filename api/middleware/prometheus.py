"""/healthz, /readyz, /metrics: questions of machines."""

import asyncio
import time
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from sqlalchemy import func, select, text
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.files.store import Store
from api.middleware.looks import Look
from api.watching.hub import Hub
from api.web.auth import Public
from api.web.process import Process, ProcessDep
from api.web.schemas import Health
from core.base.clock import utc_now
from core.database.database import Database
from core.process.cycle_numbers import CycleNumbers
from core.process.timekeeping import Timekeeper
from core.states import LIVE_LEASE, JobState
from core.tables.files import StoredFile
from core.tables.jobs import Attempt, Job
from core.tables.leases import Lease
from core.tables.nodes import Node
from core.tables.processes import Leadership

router = APIRouter(tags=["for machines"], dependencies=[Public])

VERSION = version("trainyard-platform")
STATEMENT_S = 10.0  # of those that count
LAG_EVERY_S = 1.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class RequestNumbers:
    """Counters of this process; one registry per app, so that tests may make many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "trainyard_http_requests_total",
            "Responses sent.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "trainyard_http_request_seconds",
            "Time to the first byte of a response.",
            ["method", "route"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.wait_s = Histogram(
            "trainyard_lane_wait_seconds",
            "Time that requests waited in the queue of their lane.",
            ["lane"],
            buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.waiting = Gauge(
            "trainyard_lane_waiting",
            "Requests waiting in the queue of their lane.",
            ["lane"],
            registry=self.registry,
        )
        self.turned_away = Counter(
            "trainyard_lane_turned_away_total",
            "Requests that were dropped: the lane was busy, or the client had gone.",
            ["lane", "why"],
            registry=self.registry,
        )
        self.loop_lag = Histogram(
            "trainyard_loop_lag_seconds",
            "Delay of the event loop in running a scheduled callback.",
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
            registry=self.registry,
        )
        self.viewers = Gauge(
            "trainyard_live_streams", "Open streams of this process.", registry=self.registry
        )


def numbers_of(request: Request) -> RequestNumbers:
    """Return the counters of the app that answers."""
    numbers = request.app.state.numbers
    assert isinstance(numbers, RequestNumbers)
    return numbers


class Looks:
    """Questions of machines, with threads and connections that no other request can take."""

    def __init__(self, process: Process) -> None:
        self.database = Database(
            process.settings.database_url, pool_size=2, longest_statement_s=STATEMENT_S
        )
        self._store = process.service(Store)
        self._timekeeper = process.timekeeper
        self.readiness = Look(self._require_ready, keep_s=1.0)
        self.counts = Look(self._count)

    def close(self) -> None:
        """Give the connections back."""
        self.database.close()

    def _require_ready(self) -> None:
        with self.database.read() as session:
            session.execute(text("SELECT 1"))
        self._store.create()

    def _count(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(_Counts(self.database, self._timekeeper))
        return generate_latest(registry)


def looks_of(request: Request) -> Looks:
    """Return the looks of the app that answers."""
    looks = request.app.state.looks
    assert isinstance(looks, Looks)
    return looks


async def measure_loop(numbers: RequestNumbers) -> None:
    """Count how late the event loop comes back, until cancelled."""
    while True:
        wanted = time.perf_counter() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        numbers.loop_lag.observe(max(0.0, time.perf_counter() - wanted))


class CountRequests:
    """ASGI middleware: counts answers by route, never by address."""

    def __init__(self, app: ASGIApp, numbers: RequestNumbers) -> None:
        self.app = app
        self.numbers = numbers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                self.numbers.requests.labels(scope["method"], route, message["status"]).inc()
                self.numbers.seconds.labels(scope["method"], route).observe(
                    time.perf_counter() - began
                )
            await send(message)

        await self.app(scope, receive, count)


@router.get("/healthz", summary="Check that the process is alive")
async def healthz() -> Health:
    """Answer 200 as long as the process answers at all."""
    return Health(status="ok", version=VERSION)


@router.get("/readyz", summary="Check that the process can do its work")
async def readyz(looks: Annotated[Looks, Depends(looks_of)]) -> Health:
    """Answer 200 if database and store answered within the last second. Redis may be away: nothing
    is lost without it."""
    await looks.readiness.take()
    return Health(status="ok", version=VERSION)


@router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(
    process: ProcessDep,
    numbers: Annotated[RequestNumbers, Depends(numbers_of)],
    looks: Annotated[Looks, Depends(looks_of)],
) -> Response:
    """Return counts only: no names, no ids."""
    numbers.viewers.set(process.service(Hub).num_viewers)
    counts = await looks.counts.take()
    return Response(generate_latest(numbers.registry) + counts, media_type=TEXT)


class _Counts:
    """Rows of the database, counted when asked."""

    def __init__(self, database: Database, timekeeper: Timekeeper) -> None:
        self._database = database
        self._timekeeper = timekeeper

    def describe(self) -> list[Metric]:
        """Return nothing beforehand: registering must not ask the database."""
        return []

    def collect(self) -> list[Metric]:
        """Return the gauges: rows by state, waiting work, outcomes of attempts, stored data, the
        leader."""
        jobs = GaugeMetricFamily("trainyard_jobs", "Jobs by state.", labels=["state"])
        nodes = GaugeMetricFamily("trainyard_nodes", "Nodes by state.", labels=["state"])
        leases = GaugeMetricFamily("trainyard_leases", "Open leases by state.", labels=["state"])
        age = GaugeMetricFamily(
            "trainyard_oldest_heartbeat_seconds", "Age of the oldest node's last heartbeat."
        )
        counted = (
            (jobs, select(Job.state, func.count()).group_by(Job.state)),
            (nodes, select(Node.state, func.count()).group_by(Node.state)),
            (
                leases,
                select(Lease.state, func.count())
                .where(Lease.state.in_(LIVE_LEASE))
                .group_by(Lease.state),
            ),
        )
        queue = GaugeMetricFamily(
            "trainyard_oldest_waiting_seconds", "Waiting time of the job that has waited longest."
        )
        ended = CounterMetricFamily(
            "trainyard_attempts_ended", "Attempts that ended, by outcome.", labels=["outcome"]
        )
        store = GaugeMetricFamily("trainyard_store_bytes", "Bytes of the files in the store.")
        leader = GaugeMetricFamily(
            "trainyard_scheduler_leads", "1 while a scheduler leads, else 0."
        )
        cycles = HistogramMetricFamily(
            "trainyard_scheduler_cycle_seconds", "Duration of the leader's cycles."
        )
        pauses = HistogramMetricFamily(
            "trainyard_scheduler_pause_seconds", "Pause between two of the leader's cycles."
        )
        last = GaugeMetricFamily(
            "trainyard_scheduler_last_cycle_seconds",
            "Time since the leader's last cycle ended, reported every few seconds.",
        )
        clock = GaugeMetricFamily(
            "trainyard_clock_doubt_seconds", "Jump of the database's clock that is being ignored."
        )
        now = utc_now()
        with self._database.read() as session:
            for family, query in counted:
                for state, count in session.execute(query):
                    family.add_metric([str(state)], count)
            for outcome, count in session.execute(
                select(Attempt.outcome, func.count())
                .where(Attempt.outcome.is_not(None))
                .group_by(Attempt.outcome)
            ):
                ended.add_metric([str(outcome)], count)
            waiting = session.scalar(
                select(func.min(func.coalesce(Job.queued_at, Job.created_at))).where(
                    Job.state == JobState.QUEUED
                )
            )
            size = session.scalar(
                select(func.sum(StoredFile.size)).where(StoredFile.gone_at.is_(None))
            )
            led = session.scalars(select(Leadership)).one_or_none()
            oldest = session.scalar(
                select(func.min(Node.last_seen_at)).where(Node.state != "retired")
            )
        if oldest is not None:
            age.add_metric([], (utc_now() - oldest).total_seconds())
        queue.add_metric([], (now - waiting).total_seconds() if waiting else 0.0)
        store.add_metric([], float(size or 0))
        leader.add_metric([], float(led is not None and led.expires_at > now))
        if led is not None and led.cycles is not None:
            numbers = CycleNumbers.model_validate(led.cycles)
            cycles.add_metric([], numbers.cycles.at_most(), numbers.cycles.total_s)
            pauses.add_metric([], numbers.pauses.at_most(), numbers.pauses.total_s)
            if numbers.ended_at is not None:
                last.add_metric([], (now - numbers.ended_at).total_seconds())
        clock.add_metric([], self._timekeeper.doubted.total_seconds())
        told = (jobs, nodes, leases, age, queue, ended, store, leader, cycles, pauses, last, clock)
        return [*told]
