"""Imports of a server: quick, and without what it never uses."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = "rich"  # structlog would take it for tracebacks in colours; a server's log is JSON


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import without a collection of garbage and without rich, and leave what was imported out of
    all later collections.

    Collections looked through all modules again and again and found next to nothing: a quarter of
    the time that the platform's imports take. In a fork each would also copy the pages that it
    writes its marks to. Rich and what it imports would take 4 MiB.
    """
    gc.disable()
    is_hidden = sys.modules.setdefault(UNUSED, None) is None  # type: ignore[arg-type]
    try:
        yield
    finally:
        if is_hidden:
            sys.modules.pop(UNUSED, None)
        gc.freeze()
        gc.enable()
