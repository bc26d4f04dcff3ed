"""Only Celery task: a doorbell."""

import threading

from celery import shared_task

from core.wire.doorbell import LOOK

rung = threading.Event()
"""Event set by the task, in the worker's own process; the agent waits for it."""
news_wanted = threading.Event()
"""Event set by the task, too; the spool waits for it."""


@shared_task(name=LOOK, ignore_result=True)  # type: ignore[untyped-decorator]
def look() -> None:
    """Wake the agent, because there may be new orders, and the spool, because somebody may watch a
    job of this node."""
    rung.set()
    news_wanted.set()
