"""Agent: brings this node from what runs here to what the API wants to run here.

One round: observe the attempts' folders, carry each one step on, report to the API, follow its
orders. Every round starts from the folders, so it does not matter which worker created them, nor
how often a round is cut short. While the API is away nothing is stopped: deadlines run in the
shims.
"""

import math
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from core.base.clock import boot_s
from core.states import Outcome, Phase
from core.wire.messages import (
    Heartbeat,
    HeldSandbox,
    ObservedAttempt,
    Orders,
)
from strategies.plan.run_directory import Result
from strategies.plan.trust.certificate import Certificate
from strategies.plan.trust.preflight_report import Report
from worker.agent.acting import Actor, InMemory
from worker.agent.decide import Action, AttemptFolder, follow, next_step
from worker.agent.inventory import take_inventory
from worker.agent.telemetry import TelemetrySource
from worker.node.api_client import ApiClient, RequestRefused, Unreachable
from worker.node.attempts import Attempt, Glance, Key, NodeFolder, StartFile, read_model
from worker.node.plain_files import plain_files
from worker.node.process_tree import strays
from worker.preparing import cache
from worker.ranks.judge import trained
from worker.scripts.script_run import ScriptFolders
from worker.shipping.keep import KeptState
from worker.shipping.spool import ShippedPositions

# Pauses between looks at the folders. What this process does beside ranks that are at work is taken
# from them: then a glance now and then says if there is anything to look at.
STARTING_LOOK_S, RUNNING_LOOK_S, GLANCE_EVERY_S = 0.03, 0.4, 2.0
INVENTORY_EVERY_S = 300.0
AGAIN = (0.3, 0.7)  # of the pause between two heartbeats, until one that failed is tried again
SPAWN_PATIENCE_S = 45.0  # for a shim to take its lock; the warm process imports for seconds first
EXIT_HELD_BACK_S = 2.0  # so that the last lines, if they can be sent, arrive before the exit
REFUSED_PAUSE_S = 15.0

log = structlog.get_logger()


@dataclass(frozen=True)
class KnownOrders:
    """Orders of the API, which stand until it sends others."""

    orders: Orders
    mark: str
    """Text that names them in the next heartbeat; empty: they are wanted again."""
    asked_at: float
    """Boot clock of the heartbeat that they answer, from which their deadlines count."""


@dataclass
class Agent:
    """Loop that reconciles this node with the API; one per node, in a thread of its own."""

    folder: NodeFolder
    actor: Actor
    client: ApiClient
    slots: int | None
    max_cache_bytes: int
    poll_s: float
    wake: threading.Event
    stop: threading.Event
    api_is_back: Callable[[], None]
    """Function called when the API answers again after a failure."""
    is_cut_off: bool = False
    known: KnownOrders | None = None
    """Orders that the API last sent; None before the first."""
    pause_s: float = 0.0
    """Seconds that the API last wanted between two heartbeats."""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> None:
        """Run rounds until `stop` is set."""
        self.telemetry = TelemetrySource(self.folder.path, self.actor.gpus, self.actor.fetch_rate)
        self.inventory_at = -math.inf
        next_beat = 0.0
        told: list[tuple[object, ...]] = []
        at_work: Glance | None = None
        while not self.stop.is_set():
            self.actor.spawners.keep_ready()
            glance = self.folder.glance()
            is_due = self.wake.is_set() or time.monotonic() >= next_beat
            if is_due or glance != at_work:
                seen, observed = self.look()
                news = [_news_of(one) for one in observed]
                at_work = glance if _are_at_work(seen, observed) else None
                if is_due or news != told:
                    self.wake.clear()
                    told = news
                    next_beat = time.monotonic() + self.beat(seen, observed)
            look_s = look_again_s(observed, self.poll_s) if at_work is None else GLANCE_EVERY_S
            self.wake.wait(max(0.0, min(look_s, next_beat - time.monotonic())))
        for known in self.actor.memory.values():
            if known.preparation is not None:
                known.preparation.cancelled.set()
        self.actor.gpus.close()
        self.client.close()

    def look(self) -> tuple[list[AttemptFolder], list[ObservedAttempt]]:
        """Carry every attempt on as far as it goes now; return all, and the report about them."""
        seen = self.observe()
        if self.carry_on(seen):
            seen = self.observe()
        observed = [self.describe(one) for one in seen]
        for folder, one in zip(seen, observed, strict=True):
            if folder.exited and one.exit is None:
                self.actor.spool.set()  # an exit waits for the attempt's last lines
            if folder.shim_lives:
                self._ring_at_end(folder.key)
        return seen, observed

    def observe(self) -> list[AttemptFolder]:
        """Return every attempt that has a folder here."""
        attempts = self.folder.all_attempts()
        memory = self.actor.memory
        for key in memory.keys() - {attempt.key for attempt in attempts}:
            del memory[key]
        return [
            self._see(attempt, memory.setdefault(attempt.key, InMemory())) for attempt in attempts
        ]

    def _see(self, attempt: Attempt, known: InMemory) -> AttemptFolder:
        lives = attempt.shim_lives()
        # In this order: a shim writes its exit record before it releases the lock.
        exited = attempt.exit_record() is not None
        started = attempt.shim_file.exists()
        result = read_model(attempt.result, Result) if started and not (lives or exited) else None
        preparation = known.preparation
        failure = None if preparation is None else preparation.failure
        order = None if exited or started else attempt.order()
        gang = None if order is None else order.gang
        return AttemptFolder(
            key=attempt.key,
            exited=exited,
            shim_lives=lives,
            started=started,
            shim=attempt.shim() if started else None,
            has_order=exited or started or order is not None,
            prepared=attempt.plan.exists(),
            may_start=gang is None or gang.start,
            preparing=preparation is not None and preparation.is_alive(),
            cannot_start=None if failure is None else (failure.outcome, failure.reason),
            spawn_pending=self._is_spawn_pending(attempt, known),
            spawns=known.spawns,
            schedule=attempt.schedule(),
            trained=trained(result) if result is not None and result.finished else None,
            failed=_failed(attempt) if started and not (lives or exited) else None,
        )

    def _ring_at_end(self, key: Key) -> None:
        """Have the agent woken when this attempt's shim ends, which holds its lock until then."""
        known = self.actor.memory[key]
        if known.end_rings:
            return
        known.end_rings = True

        def wait() -> None:
            self.folder.attempt(key).wait_for_shim()
            known.end_rings = False
            self.wake.set()

        threading.Thread(target=wait, name=f"end of {key.folder}", daemon=True).start()

    def _is_spawn_pending(self, attempt: Attempt, known: InMemory) -> bool:
        if known.spawned_at is None:
            return False
        start = attempt.start()
        patient = time.monotonic() - known.spawned_at < SPAWN_PATIENCE_S
        return patient and start is not None and self.actor.spawners.is_running(start.launcher)

    def describe(self, seen: AttemptFolder) -> ObservedAttempt:
        """Return the report to the API about an attempt."""
        attempt, known = self.folder.attempt(seen.key), self.actor.memory[seen.key]
        if known.certificate is None:
            known.certificate = read_model(attempt.certificate, Certificate)
        if known.preflight is None:
            known.preflight = read_model(attempt.preflight, Report)
        step, message = attempt.last_step(), ""
        start = attempt.start()
        record = attempt.exit_record() if seen.exited else None
        kept = False
        if record is not None and may_tell_exit(attempt):
            phase = Phase.EXITED
            state = read_model(attempt.kept_file, KeptState)
            kept = state is not None and state.complete
        elif record is None and seen.schedule and boot_s() >= seen.schedule.stop_at:
            phase = Phase.STOPPING
        elif record is not None or seen.shim_lives:
            is_at_work = step > 0 or attempt.ready_file.exists()
            record, phase = None, Phase.RUNNING if is_at_work else Phase.STARTING
        elif seen.prepared and not seen.may_start:
            phase, message = Phase.READY, "Waiting for its other nodes."
        else:
            phase, message = Phase.PREPARING, "Waiting for the launcher."
            if known.preparation is not None and not seen.prepared:
                message = known.preparation.message
        return ObservedAttempt(
            job_id=seen.key.job_id,
            epoch=seen.key.epoch,
            phase=phase,
            step=step,
            launcher=None if start is None else start.launcher,
            message=message,
            certificate=known.certificate,
            preflight=known.preflight,
            exit=record,
            has_output=self._has_output(attempt, start, known),
            kept=kept,
            hosts=list(attempt.hosts()),
            held=None if record is not None else _held_sandbox(attempt),
        )

    @staticmethod
    def _has_output(attempt: Attempt, start: StartFile | None, known: InMemory) -> bool:
        """Return True if a script has output here, on another node than its first."""
        if not known.has_output and start is not None and start.script and start.position > 0:
            output = ScriptFolders(attempt).output
            known.has_output = next(plain_files(output), None) is not None
        return known.has_output

    def beat(self, seen: Sequence[AttemptFolder], observed: list[ObservedAttempt]) -> float:
        """Report everything to the API and follow its orders; return the seconds until the next
        time."""
        heartbeat = self.heartbeat(seen, observed)
        sent_at = boot_s()
        known = self.known
        try:
            answer = self.client.heartbeat(heartbeat, mark=known.mark if known else "")
        except Unreachable as error:
            if not self.is_cut_off:
                log.warning("api_unreachable", error=str(error)[:300])
            self.is_cut_off = True
            # Sooner than asked, but not all at once: a thousand nodes may have lost the same API.
            return max(self.poll_s, self.pause_s * random.uniform(*AGAIN))
        except RequestRefused as refusal:
            log.error("heartbeat_refused", status=refusal.status, detail=refusal.detail)
            return max(self.poll_s, REFUSED_PAUSE_S)
        self.pause_s = answer.pause_s
        if answer.orders is not None:
            known = self.known = KnownOrders(answer.orders, answer.mark, sent_at)
        assert known is not None, "a mark was sent"
        if self.is_cut_off:
            self.is_cut_off = False
            log.info("api_is_back")
            self.api_is_back()
        self.follow(seen, known.orders, sent_at=known.asked_at)
        self.actor.fetch_ahead(known.orders.fetch_ahead, known.orders.build_ahead)
        return max(self.poll_s, self.pause_s)

    def heartbeat(
        self, seen: Sequence[AttemptFolder], observed: list[ObservedAttempt]
    ) -> Heartbeat:
        """Return all that this node observes. Kills processes of attempts that have ended."""
        left = strays(
            self.folder.attempts, live={s.key.folder for s in seen if not s.exited or s.shim_lives}
        )
        for pid in left:
            log.warning("stray_killed", pid=pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        gpus = self.actor.look_at_gpus()
        self.actor.leave_shares([one.key for one in seen if one.shim_lives])
        if time.monotonic() - self.inventory_at > INVENTORY_EVERY_S:
            self.inventory_at = time.monotonic()
            self.inventory = take_inventory(
                gpus,
                self.slots,
                self.actor.host.sandbox,
                self.actor.sharing,
                shared_workspaces=self.actor.host.workspaces is not None,
                job_memory_bytes=self.actor.memory_bytes,
                egress=self.actor.host.egress,
            )
            self.trim_cache()
        return Heartbeat(
            incarnation=self.incarnation,
            boot_id=self.actor.boot_id,
            inventory=self.inventory.model_copy(update={"gpus": gpus}),
            telemetry=self.telemetry.measure(),
            attempts=observed,
            clean=not left,
            dirty_slots=self.slots_of(set(left.values())),
            peer_address=self.actor.peers.address,
        )

    def slots_of(self, folders: set[str]) -> list[int]:
        """Return the slots of attempts, by folder names; empty if those of one are not known."""
        orders = [Attempt(self.folder.attempts / folder).order() for folder in folders]
        known = [order.slots for order in orders if order is not None and order.slots]
        return sorted(set().union(*known)) if len(known) == len(folders) else []

    def trim_cache(self) -> None:
        """Trim the cache to its size; after a disk error it is tried again later."""
        try:
            cache.trim(self.folder, self.max_cache_bytes)
        except OSError as error:
            log.error("disk_error", action="trim_cache", error=str(error))

    def carry_on(self, seen: Sequence[AttemptFolder]) -> bool:
        """Carry every attempt one step on, without the API; return True if anything was done."""
        now = boot_s()
        steps = [next_step(one, now=now, boot_id=self.actor.boot_id) for one in seen]
        return self._act_on_all([step for step in steps if step is not None], now)

    def follow(self, seen: Sequence[AttemptFolder], orders: Orders, *, sent_at: float) -> None:
        """Do what the orders ask for; they answer a request sent at `sent_at`."""
        actions = follow(seen, orders, wiped=self.folder.wiped_epochs())
        if self._act_on_all(actions, sent_at):
            self.carry_on(self.observe())

    def _act_on_all(self, actions: Sequence[Action], sent_at: float) -> bool:
        """Do the actions; one that fails on the disk is tried again in the next round, others go
        on."""
        for action in actions:
            try:
                self.actor.act(action, sent_at=sent_at)
            except OSError as error:
                log.error("disk_error", action=type(action).__name__, error=str(error))
        return bool(actions)


def _news_of(one: ObservedAttempt) -> tuple[object, ...]:
    """Return the part of a report that does not wait for the next heartbeat."""
    return (
        *(one.job_id, one.epoch, one.phase, one.certificate is None, one.exit is None, one.kept),
        one.held is None,
    )


def _are_at_work(seen: Sequence[AttemptFolder], observed: Sequence[ObservedAttempt]) -> bool:
    """Return True if all that could be news is a change of an attempt's folder, or a shim's end."""
    return bool(seen) and all(
        folder.shim_lives and not folder.exited and one.phase is Phase.RUNNING
        for folder, one in zip(seen, observed, strict=True)
    )


def _failed(attempt: Attempt) -> tuple[Outcome, str] | None:
    held = attempt.held()
    return None if held is None else (held.outcome, held.reason)


def _held_sandbox(attempt: Attempt) -> HeldSandbox | None:
    """Return the report on a sandbox that is held, once its owner can enter it."""
    held = attempt.held() if attempt.ready_file.exists() else None
    if held is None:
        return None
    return HeldSandbox(
        outcome=held.outcome, reason=held.reason[:4000], left_s=held.until - boot_s()
    )


def may_tell_exit(attempt: Attempt) -> bool:
    """Return True once the last lines are shipped, or after EXIT_HELD_BACK_S."""
    shipped = read_model(attempt.shipped_file, ShippedPositions)
    if shipped is not None and shipped.complete:
        return True
    return time.time() - attempt.exit.stat().st_mtime > EXIT_HELD_BACK_S


def look_again_s(observed: Sequence[ObservedAttempt], poll_s: float) -> float:
    """Return the pause before the next look at the folders: short while a first step is awaited."""
    phases = {one.phase for one in observed if one.exit is None}
    if phases & {Phase.PREPARING, Phase.STARTING}:
        return STARTING_LOOK_S
    return RUNNING_LOOK_S if phases else poll_s
