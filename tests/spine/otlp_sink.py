"""Takes traces as a collector does: OTLP over HTTP, and decoded."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    """What a process has told of one thing that it did."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, str | int]


@dataclass
class Sink:
    """All spans that have come so far."""

    url: str
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            told = {item.key: item.value.string_value for item in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [
                    Span(
                        service=told["service.name"],
                        name=span.name,
                        trace=span.trace_id.hex(),
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        attributes={
                            item.key: item.value.string_value or item.value.int_value
                            for item in span.attributes
                        },
                    )
                    for span in scope.spans
                ]

    def of_trace(self, trace: str) -> dict[tuple[str, str], Span]:
        """By service and name."""
        return {(span.service, span.name): span for span in self.spans if span.trace == trace}


@contextmanager
def running_sink() -> Iterator[Sink]:
    """A collector on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces", self.path
            sink.take(body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sink = Sink(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
