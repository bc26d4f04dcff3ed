"""Celery app of a node: it receives one doorbell on one queue, and carries nothing else."""

from celery import Celery
from kombu.entity import Queue

from core.process.settings import WorkerSettings
from core.wire.doorbell import broker_url, queue_of
from worker.agent import tasks

WAIT_S = 10  # for a doorbell, until the queue is waited for again


def create_app(settings: WorkerSettings, node: str) -> Celery:
    """Return Celery for the queue of `node`.

    Early acknowledgement, no results, no prefetch, JSON only.
    """
    app = Celery("trainyard", broker=broker_url(settings.redis_url), include=[tasks.__name__])
    app.conf.update(
        task_queues=[Queue(queue_of(node))],  # type: ignore[no-untyped-call]
        task_default_queue=queue_of(node),
        task_create_missing_queues=False,
        task_acks_late=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        task_track_started=False,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_pool="solo",
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_connect_timeout": 3.0,
            "socket_keepalive": True,
            "polling_interval": WAIT_S,
        },
    )
    return app
