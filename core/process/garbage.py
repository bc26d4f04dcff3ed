"""Garbage collection, switched off while modules are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without a collection of garbage, and leave what was imported out of all later ones.

    Collections looked through all modules again and again and found next to nothing: a quarter of
    the time that the platform's imports take. In a fork each would also copy the pages that it
    writes its marks to.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
