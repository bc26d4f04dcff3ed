"""`trainyard worker`: Celery in the main thread, the agent, the spool and the keeper beside it.

On SIGTERM it takes no more work, sends what is there, and exits. Shims and their ranks stay, and
the next worker adopts them; the same holds after kill -9.
"""

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from celery import Celery, signals
from celery.worker import state as celery_state
from pydantic import ValidationError

from core.base import tracing
from core.process.settings import WorkerSettings
from core.states import Sharing
from worker.agent import tasks
from worker.agent.acting import Actor
from worker.agent.agent import Agent
from worker.agent.celery_app import create_app
from worker.agent.inventory import take_inventory
from worker.agent.spawners import Spawners
from worker.gpus.amd import NOT_USED, count_amd_gpus
from worker.gpus.node_gpus import DriverBroken, NodeGpus
from worker.node.api_client import ApiClient
from worker.node.attempts import NodeFolder
from worker.node.enrol import IdentityFile, NotEnrolled, identify
from worker.node.process_tree import own_cgroup, pass_controllers_down
from worker.node.sharing import SharingHost, find_sharing_host
from worker.preparing.peers import find_peers
from worker.preparing.preparing_script import ScriptHost
from worker.scripts.sandbox import find_level
from worker.scripts.script_run import ScriptLimits
from worker.shipping.keep import Keeper
from worker.shipping.spool import Spool
from worker.workspaces.keeping import WorkspaceKeeper

ENROL_TOKEN = "TRAINYARD_ENROL_TOKEN"
TRAINER = "strategies.train.main"
MIB, GIB = 1 << 20, 1 << 30
FLUSH_WITHIN_S = 6.0  # less than a supervisor waits before SIGKILL
CELERY_RETRY_S = 1.0

log = structlog.get_logger()


def main(argv: Sequence[str] | None = None) -> int:
    """Run this node's worker until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="trainyard worker", description=__doc__)
    parser.add_argument("--enrol", default="", metavar="TOKEN", help="single-use, first time only")
    arguments = parser.parse_args(argv)
    configure_logs()
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        sys.stderr.write(f"The worker's settings are wrong or missing:\n{error}\n")
        return 2
    token = arguments.enrol or os.environ.pop(ENROL_TOKEN, "")
    return run(settings, enrol_token=token)


def run(settings: WorkerSettings, *, enrol_token: str = "", trainer: str = TRAINER) -> int:
    """Run the worker with `settings`; `trainer` is the module whose main is one rank."""
    folder = NodeFolder(settings.data)
    folder.create()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with folder.held() as alone:
        if not alone:
            sys.stderr.write(f"Another worker is already running on {settings.data}.\n")
            return 3
        pass_controllers_down(own_cgroup())
        limit = settings.job_memory_gib
        job_memory_bytes = None if limit is None else round(limit * GIB)
        host = script_host(settings)
        sharing = find_sharing_host(Sharing(settings.sharing))
        if num_amd := count_amd_gpus():
            log.warning("amd_gpus_not_used", count=num_amd, reason=NOT_USED)
        try:
            gpus = NodeGpus(folder.gpus, limit=settings.slots, wake=tasks.rung.set)
        except DriverBroken as error:
            sys.stderr.write(f"{error}\n")
            return 1
        gpus.measure(
            folder.speeds, idle=not any(each.shim_lives() for each in folder.all_attempts())
        )
        client = ApiClient(settings.api_url)
        try:
            identity = identify(
                folder,
                client,
                token=enrol_token,
                inventory=take_inventory(
                    gpus.look(held=(), roots=()),
                    settings.slots,
                    host.sandbox,
                    sharing,
                    shared_workspaces=settings.workspaces is not None,
                    job_memory_bytes=job_memory_bytes,
                    egress=host.egress,
                ),
                stop=stop,
            )
        except NotEnrolled as error:
            sys.stderr.write(f"{error}\n")
            return 0 if stop.is_set() else 1
        finally:
            client.close()
        structlog.contextvars.bind_contextvars(node=identity.name)
        tracing.start("trainyard-worker")
        return work(
            settings,
            folder,
            identity,
            host,
            sharing,
            gpus,
            job_memory_bytes,
            trainer=trainer,
            stop=stop,
        )


def work(
    settings: WorkerSettings,
    folder: NodeFolder,
    identity: IdentityFile,
    host: ScriptHost,
    sharing: SharingHost,
    gpus: NodeGpus,
    job_memory_bytes: int | None,
    *,
    trainer: str,
    stop: threading.Event,
) -> int:
    """Run all threads until `stop` is set."""

    def client() -> ApiClient:
        return ApiClient(settings.api_url, identity.node_token)

    wake = tasks.rung
    spool_nudge = tasks.news_wanted
    keep_nudge, workspace_nudge = threading.Event(), threading.Event()
    spawners = Spawners(
        trainer,
        warm_allowed=settings.warm_launcher,
        rest_after_s=60 * settings.warm_rests_after_min,
    )
    actor = Actor(
        folder,
        identity.name,
        client,
        spawners,
        trainer,
        host,
        sharing,
        gpus,
        settings.slots,
        find_peers(settings.peer_address, settings.api_url),
        round(settings.log_mib * MIB),
        settings.whole_tokens_gib,
        job_memory_bytes,
        wake,
        spool_nudge,
    )

    def shipped() -> None:
        keep_nudge.set()
        workspace_nudge.set()
        wake.set()

    def api_is_back() -> None:
        spool_nudge.set()
        keep_nudge.set()

    agent = Agent(
        folder,
        actor,
        client(),
        settings.slots,
        int(settings.cache_gib * GIB),
        settings.poll_s,
        wake,
        stop,
        api_is_back,
    )
    spool = Spool(folder, client(), nudge=spool_nudge, stop=stop, shipped=shipped)
    keeper = Keeper(folder, client(), nudge=keep_nudge, stop=stop, kept=wake)
    workspaces = WorkspaceKeeper(
        folder,
        client(),
        settings.workspace_every_s,
        nudge=workspace_nudge,
        stop=stop,
        kept=keep_nudge.set,
    )
    threads = [
        threading.Thread(target=crash_only(run), name=name, daemon=True)
        for name, run in (
            ("agent", agent.run),
            ("spool", spool.run),
            ("keeper", keeper.run),
            ("workspaces", workspaces.run),
        )
    ]

    def leave() -> None:
        """After `stop`: let the threads send what is there, then end, whatever Celery does."""
        stop.wait()
        for event in (wake, spool_nudge, keep_nudge, workspace_nudge):
            event.set()
        deadline = time.monotonic() + FLUSH_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        spawners.close()
        tracing.stop()
        log.info("worker_left")
        # Celery's main loop may hang in a socket of a frozen broker.
        os._exit(0)

    threading.Thread(target=leave, name="leave").start()
    for thread in threads:
        thread.start()
    listen(create_app(settings, identity.name), stop)
    stop.wait()
    return 0


def script_host(settings: WorkerSettings) -> ScriptHost:
    """Return this node's offer to scripts: the sandbox that can be built, tried once."""
    found = find_level(settings.sandbox)
    if found.level is None:
        log.warning("no_sandbox", reason=found.reason)
    limits = ScriptLimits(
        disk_bytes=round(settings.script_disk_gib * GIB),
        files=settings.script_files,
        processes=settings.script_processes,
    )
    return ScriptHost(
        found,
        limits,
        settings.wheels,
        settings.workspaces,
        settings.workspace_uid,
        settings.egress,
        settings.api_url,
    )


def listen(app: Celery, stop: threading.Event) -> None:
    """Listen for doorbells until `stop`.

    After any failure of the broker or message, start again.
    """

    def note_stop(**_: Any) -> None:
        stop.set()

    signals.worker_shutting_down.connect(note_stop, weak=False)
    while not stop.is_set():
        worker = app.Worker(
            loglevel="WARNING",
            quiet=True,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        )
        worker.start()
        if stop.is_set():
            return
        log.warning("celery_started_over", code=worker.exitcode)
        celery_state.should_stop = celery_state.should_terminate = None
        stop.wait(CELERY_RETRY_S)


def crash_only(work: Callable[[], None]) -> Callable[[], None]:
    """Return `work` so guarded that a failure ends the process.

    A supervisor starts it again, and shims are not affected.
    """

    def guarded() -> None:
        try:
            work()
        except Exception:
            log.exception("worker_crashed")
            os._exit(70)

    return guarded


def configure_logs() -> None:
    """Log one JSON object per line to standard output."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")


if __name__ == "__main__":
    sys.exit(main())
