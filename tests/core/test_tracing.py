"""Traces are sent where the standard's variables say so, and cost nothing where they do not."""

import subprocess
import sys

import pytest

from core.base import tracing

WITHOUT = """
import sys
import core.base.tracing as tracing, scheduler.main, worker.main
tracing.start("test")
with tracing.span("a", parent=None, job="job_a"):
    tracing.note(node="n1")
    assert tracing.here() is None
tracing.stop()
assert not [name for name in sys.modules if name.startswith("opentelemetry.exporter")]
"""


@pytest.mark.slow
def test_without_an_endpoint_nothing_is_sent_and_no_exporter_is_imported() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], env={}, check=True, timeout=60)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_standards_own_variables_decide(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.is_wanted(environment) is wanted
