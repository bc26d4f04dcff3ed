"""Acting half of the agent: thin, each action safe to repeat."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from core.base import tracing
from core.base.clock import boot_s
from core.spec.script import Script
from core.spec.workbench import Workbench
from core.states import INFRASTRUCTURE, Outcome
from core.wire.messages import Gpu, InputFiles, Order, PackagesAhead, StopOrder, Unread
from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.run_directory import Result
from strategies.plan.trust.certificate import Certificate
from strategies.plan.trust.preflight_report import Report
from worker.agent.decide import (
    UNWANTED_GRACE_S,
    Action,
    Begin,
    Conclude,
    EndTree,
    Prepare,
    Refuse,
    Reschedule,
    Spawn,
    StopUnwanted,
    Wipe,
)
from worker.agent.own_cores import OwnCores
from worker.agent.spawners import Spawners
from worker.gpus.node_gpus import NodeGpus
from worker.node.api_client import ApiClient
from worker.node.attempts import (
    Attempt,
    DeadlinesFile,
    Key,
    NetworkFile,
    NodeFolder,
    Share,
    StartFile,
    read_model,
)
from worker.node.boot import boot_id, cores
from worker.node.process_tree import attempts_of_processes
from worker.node.proven import distrust
from worker.node.share import share_of
from worker.node.sharing import SharingHost
from worker.preparing.fetching import FetchingAhead, FetchRate
from worker.preparing.peers import Peers
from worker.preparing.preparing import Preparation
from worker.preparing.preparing_script import ScriptHost
from worker.ranks.deadlines import ordered_stop, schedule_of
from worker.ranks.ending import end_tree
from worker.ranks.judge import STOPPED_SENTENCES, ExitJudgement
from worker.shim import exit_record

MOVED_S = 0.5  # a smaller move of a deadline is the delay of an answer, not a change

log = structlog.get_logger()


@dataclass
class InMemory:
    """Facts about an attempt that only this worker has; the next worker starts without them."""

    preparation: Preparation | None = None
    spawned_at: float | None = None
    spawns: int = 0
    certificate: Certificate | None = None
    preflight: Report | None = None
    has_output: bool = False
    end_rings: bool = False
    """True while a thread waits for the end of its shim."""
    end_is_known: bool = False
    """True once the GPU that its end blames, if any, is known to rest."""


@dataclass
class Actor:
    """Executor of the agent's decisions."""

    folder: NodeFolder
    node: str
    new_client: Callable[[], ApiClient]
    spawners: Spawners
    trainer: str
    """Module whose main is one rank: strategies.train.main."""
    host: ScriptHost
    sharing: SharingHost
    gpus: NodeGpus
    slots: int | None
    """CPU slots of a machine without GPUs, if they are not its cores."""
    peers: Peers
    log_bytes: int
    """Bytes kept of each stream of each rank."""
    whole_tokens_gib: float
    """Size of a dataset up to which its documents become tokens before the first step."""
    memory_bytes: int | None
    """Memory limit of one job; None: as much as the machine has."""
    wake: threading.Event
    spool: threading.Event
    """Event that wakes the spool: there is a new attempt to look after."""
    boot_id: str = field(default_factory=boot_id)
    memory: dict[Key, InMemory] = field(default_factory=dict)
    refused: set[Key] = field(default_factory=set)
    own_cores: OwnCores = field(init=False)
    fetch_rate: FetchRate = field(default_factory=FetchRate)
    ahead: FetchingAhead | None = None

    def __post_init__(self) -> None:
        self.own_cores = OwnCores([cpu for core in self.sharing.cores for cpu in core.cpus])

    def act(self, action: Action, *, sent_at: float) -> None:
        """Do the action. Raises OSError if the disk fails: the next round decides the same again.

        `sent_at` is when the request was sent that an order answers, on the boot clock.
        """
        match action:
            case Begin(order):
                self._begin(order, sent_at)
            case Reschedule(order):
                self._reschedule(self._attempt_of(order), order, sent_at)
            case StopUnwanted(key):
                self._stop_unwanted(key)
            case Prepare(key):
                self._prepare(self.folder.attempt(key))
            case Spawn(key):
                self._spawn(self.folder.attempt(key))
            case EndTree(key):
                log.error("attempt_overdue", attempt=key.folder)
                end_tree(self.folder.attempt(key))
            case Conclude(key, outcome, reason):
                self._conclude(self.folder.attempt(key), outcome, reason)
            case Wipe(key):
                self.folder.wipe(self.folder.attempt(key))
                log.info("attempt_wiped", attempt=key.folder)
            case Refuse(key, why):
                if key not in self.refused:
                    self.refused.add(key)
                    log.warning("attempt_refused", attempt=key.folder, why=why)

    def _attempt_of(self, order: Order | Unread) -> Attempt:
        return self.folder.attempt(Key(order.job_id, order.epoch))

    def _begin(self, order: Order, sent_at: float) -> None:
        attempt = self._attempt_of(order)
        if not attempt.path.exists():
            self.folder.begin(order)
            log.info("attempt_begun", attempt=attempt.path.name)
        self._reschedule(attempt, order, sent_at)
        write_atomically(attempt.order_file, json_bytes(order))

    def _reschedule(self, attempt: Attempt, order: Order | Unread, sent_at: float) -> None:
        before = attempt.schedule()
        schedule = schedule_of(
            order.deadlines,
            order.stop,
            sent_at=sent_at,
            now=boot_s(),
            boot_id=self.boot_id,
            before=before,
        )
        if before is None or has_moved(before, schedule):
            attempt.write_schedule(schedule)
        if isinstance(order, Order):
            self._take_changes(attempt, order)
        preparation = self.memory.setdefault(attempt.key, InMemory()).preparation
        if order.stop is not None and preparation is not None:
            preparation.cancelled.set()

    def _take_changes(self, attempt: Attempt, order: Order) -> None:
        known = attempt.order()
        if known is not None and known.gang != order.gang:
            write_atomically(
                attempt.order_file, json_bytes(order)
            )  # it may allow the ranks to start
        if order.request is not None and order.request != attempt.request():
            attempt.write_request(order.request)
        if order.network is not None and order.network.reach is not None:
            reach = NetworkFile(reach=tuple(order.network.reach))
            if reach != read_model(attempt.network_file, NetworkFile):
                attempt.write_network(reach)

    def _stop_unwanted(self, key: Key) -> None:
        log.info("attempt_not_wanted", attempt=key.folder)
        stop = StopOrder(reason=Outcome.CANCELLED, grace_s=UNWANTED_GRACE_S)
        schedule = ordered_stop(stop, now=boot_s(), boot_id=self.boot_id)
        self.folder.attempt(key).write_schedule(schedule)
        preparation = self.memory.setdefault(key, InMemory()).preparation
        if preparation is not None:
            preparation.cancelled.set()

    def fetch_ahead(self, inputs: Sequence[InputFiles], packages: Sequence[PackagesAhead]) -> None:
        """Have these inputs, and environments of these packages, in the cache, in a thread of their
        own; what stays wanted is marked as used now and then, so that the cache keeps it."""
        last = self.ahead
        if last is not None and (last.is_alive() or last.is_fresh(inputs, packages)):
            return
        self.ahead = None
        if inputs or packages:
            self.ahead = FetchingAhead(
                self.folder.cache,
                inputs,
                packages,
                host=self.host,
                new_client=self.new_client,
                rate=self.fetch_rate,
            )
            self.ahead.start()

    def _prepare(self, attempt: Attempt) -> None:
        order = attempt.order()
        if order is None:
            return
        preparation = Preparation(
            self.folder,
            attempt,
            order,
            host=self.host,
            gpu_devices=self.gpus.minors_of(slots_of(order)),
            new_client=self.new_client,
            rate=self.fetch_rate,
            whole_tokens_gib=self.whole_tokens_gib,
            done=self.wake.set,
        )
        self.memory.setdefault(attempt.key, InMemory()).preparation = preparation
        preparation.start()
        self.own_cores.hold(preparation.native_id)

    def _spawn(self, attempt: Attempt) -> None:
        order = attempt.order()
        if order is None:
            return
        if slots_of(order) and not self._may_use_gpus(attempt, slots_of(order)):
            return
        try:
            share = share_of(order, self.sharing.cores, self.gpus.numa_nodes())
        except ValueError as error:
            self._conclude(attempt, Outcome.START_FAILED, f"sharing_unavailable: {error}.")
            return
        known = self.memory.setdefault(attempt.key, InMemory())
        gang = order.gang
        interface = "" if gang is None else gang.rendezvous.fabric.interface or self.peers.interface
        is_script = isinstance(order.spec, Script | Workbench)
        launcher, why = order.launcher, ""
        if not is_script:
            launcher, why = self.spawners.choose(order.launcher, spawns=known.spawns)
            self.folder.take_kernels()
        start = StartFile(
            job_id=order.job_id,
            epoch=order.epoch,
            node=self.node,
            trainer=self.trainer,
            launcher=launcher,
            launcher_reason=why,
            ranks=order.plan.ranks_per_node,
            threads=order.threads_per_rank or self.threads_of(order, share),
            gpus=self.gpus.uuids_of(slots_of(order)),
            nodes=order.plan.nodes,
            position=0 if gang is None else gang.position,
            rendezvous=None if gang is None else gang.rendezvous,
            interface=interface,
            script=is_script,
            workbench=isinstance(order.spec, Workbench),
            log_bytes=self.log_bytes,
            memory_bytes=self.memory_bytes,
            share=share,
        )
        write_atomically(attempt.start_file, json_bytes(start))
        known.spawns += 1
        known.spawned_at = time.monotonic()
        with tracing.span(
            "launch",
            parent=order.traceparent,
            job=order.job_id,
            epoch=order.epoch,
            node=self.node,
            launcher=launcher,
        ):
            is_asked_for = self.spawners.spawn(attempt.path, launcher)
        if is_asked_for:
            self.spool.set()
            log.info("shim_asked_for", attempt=attempt.path.name, launcher=launcher)
        else:
            known.spawned_at = None
            log.error("spawner_gone", attempt=attempt.path.name, launcher=launcher)

    def _may_use_gpus(self, attempt: Attempt, slots: Sequence[int]) -> bool:
        """Return True if the GPUs are fit now. If they are not, conclude the attempt, unless the
        driver may still be freeing memory of the one before it."""
        self.look_at_gpus()
        why = self.gpus.why_unfit(slots)
        if why and not self.gpus.may_clear(slots):
            self._conclude(attempt, Outcome.START_FAILED, why)
        return not why

    def look_at_gpus(self) -> list[Gpu]:
        """Return the node's GPUs in order of slots, with their health now."""
        if not self.gpus.known:
            return []
        attempts = self.folder.all_attempts()
        for one in attempts:
            self._rest_failed_gpu(one)
        live = [one for one in attempts if one.shim_lives()]
        names = {one.path.name for one in live}
        starts = [start for one in live if (start := one.start()) is not None]
        shims = {shim.pid for one in live if (shim := one.shim()) is not None}
        ranks = {pid for pid, name in attempts_of_processes(self.folder.attempts) if name in names}
        return self.gpus.look(
            held={uuid for start in starts for uuid in start.gpus}, roots=shims | ranks
        )

    def leave_shares(self, live: Sequence[Key]) -> None:
        """Keep the worker's own work off the processors of live attempts that share the node."""
        starts = [start for key in live if (start := self.folder.attempt(key).start()) is not None]
        self.own_cores.leave(start.share for start in starts if start.share is not None)

    def _rest_failed_gpu(self, attempt: Attempt) -> None:
        """Let the GPU rest that the attempt's end blames, if any."""
        known = self.memory.setdefault(attempt.key, InMemory())
        if known.end_is_known or (record := attempt.exit_record()) is None:
            return
        known.end_is_known = True
        start, culprit = attempt.start(), record.culprit_rank
        if record.outcome is not Outcome.GPU_FAILED or start is None or culprit is None:
            return
        uuid = dict(zip(start.global_ranks, start.gpus, strict=False)).get(culprit)
        if uuid is not None:
            name = f"attempt {attempt.key.epoch} of job {attempt.key.job_id}"
            seconds_ago = time.time() - attempt.exit.stat().st_mtime
            self.gpus.note_failure(uuid, name, seconds_ago=seconds_ago)

    def threads_of(self, order: Order, share: Share | None) -> int:
        """Return the threads of one rank, so that other jobs may use the remaining slots."""
        if share is not None:
            return max(1, len(share.cpus) // order.plan.ranks_per_node)
        slots = len(self.gpus.known) or self.slots or cores()
        return max(1, cores() // max(slots, order.plan.ranks_per_node))

    def _conclude(self, attempt: Attempt, outcome: Outcome, reason: str) -> None:
        """Write the exit record of an attempt that has no shim (any more)."""
        if not end_tree(attempt):
            reason += " Some of its processes could not be killed; an administrator must check."
        shim = attempt.shim()
        same_boot = shim is not None and shim.boot_id == self.boot_id
        record = exit_record(
            attempt,
            ExitJudgement(outcome, reason, guilt=None if outcome in STOPPED_SENTENCES else 0),
            boot=self.boot_id if shim is None else shim.boot_id,
            evidence=[],
            duration_s=boot_s() - shim.began_s if shim is not None and same_boot else 0.0,
            result=read_model(attempt.result, Result),
        )
        attempt.write_exit(record)
        if outcome in INFRASTRUCTURE:
            distrust(attempt)
        log.info("attempt_concluded", attempt=attempt.path.name, outcome=outcome, reason=reason)


def slots_of(order: Order) -> list[int]:
    """Return the slots of an order's GPUs; none if its ranks run on the CPU."""
    if order.plan.device != "cuda":
        return []
    return order.slots or list(range(order.plan.ranks_per_node))


def has_moved(before: DeadlinesFile, after: DeadlinesFile) -> bool:
    """Return True if the shim must be given `after`."""
    if (before.boot_id, before.reason, before.ordered) != (
        after.boot_id,
        after.reason,
        after.ordered,
    ):
        return True
    moves = (
        after.checkpoint_at - before.checkpoint_at,
        after.stop_at - before.stop_at,
        after.term_at - before.term_at,
        after.kill_at - before.kill_at,
    )
    # A slow answer makes deadlines look earlier by its delay, never later.
    return any(abs(move) > MOVED_S for move in moves)
