"""OpenTelemetry traces of one process, sent where OTEL_EXPORTER_OTLP_ENDPOINT points.

Without an endpoint nothing is imported here and nothing is done. A job carries the trace of its
submission (`jobs.traceparent`), so that the work of scheduler and worker for it is recorded in the
same trace. Names of attributes are ours, except those of HTTP, which FastAPI adds itself.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
PREFIX = "trainyard."
HEADER = "traceparent"  # W3C Trace Context
FLUSH_WITHIN_MS = 3000

INSTALL = "In Trainyard's repository: pip install -c constraints.txt ./client '.[tracing]'"

log = structlog.get_logger()
_provider: "TracerProvider | None" = None
"""Provider of this process: OpenTelemetry has one per process; None: tracing is off."""


def start(service: str) -> None:
    """Send the traces of this process, named `service` unless OTEL_SERVICE_NAME says otherwise."""
    global _provider
    if not is_wanted(os.environ):
        return
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.error("no_traces", why=str(error), do=INSTALL)
        return
    name = os.environ.get("OTEL_SERVICE_NAME", service)
    _provider = TracerProvider(resource=Resource.create({"service.name": name}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(_provider)


def stop() -> None:
    """Send the remaining spans, if they can be sent soon."""
    if _provider is not None:
        _provider.force_flush(FLUSH_WITHIN_MS)


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return True if the standard's own variables ask for traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(name) for name in ENDPOINTS)


@contextmanager
def span(name: str, *, parent: str | None = None, **attributes: str | int) -> Iterator[None]:
    """Time the block; an exception marks it. `parent`: result of `here` in another process."""
    if _provider is None:
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    above = None if parent is None else TraceContextTextMapPropagator().extract({HEADER: parent})
    tracer = _provider.get_tracer("trainyard")
    told = {PREFIX + key: value for key, value in attributes.items()}
    with tracer.start_as_current_span(name, context=above, attributes=told):
        yield


def note(**attributes: str | int) -> None:
    """Add attributes to the current span."""
    if _provider is None:
        return
    from opentelemetry import trace

    trace.get_current_span().set_attributes({PREFIX + k: v for k, v in attributes.items()})


def here() -> str | None:
    """Return the current span as a parent for other processes; None where nothing is traced."""
    if _provider is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get(HEADER)
