"""Imports of a server: quick, and without what it never uses."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = (
    "rich",  # structlog would take it for tracebacks in colours; a server's log is JSON
    "opentelemetry.sdk.metrics",  # redis would take it; we trace, and count by Prometheus
)


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import without a collection of garbage and without what is UNUSED, and leave what was
    imported out of all later collections.

    Collections looked through all modules again and again and found next to nothing: a quarter of
    the time that the platform's imports take. In a fork each would also copy the pages that it
    writes its marks to. Rich and what it imports would take 4 MiB, opentelemetry's metrics, where
    they are installed, 2 MiB.
    """
    gc.disable()
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
        gc.freeze()
        gc.enable()
