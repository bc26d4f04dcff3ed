"""Nodes that speak the node protocol and train nothing: heartbeats, curves, logs at a real pace."""

import asyncio
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from benchmarks.course.records import Records
from benchmarks.course.wire import Answer, Line, Lost
from core.wire.messages import ORDERS_MARK, SHIP_AFTER

BEAT_S = 3.0  # core.process.settings: poll_s
GPU_GIB = 39.6
AGAIN = (0.3, 0.7)  # of a pause, until a heartbeat that failed is tried again
RESEND_S = 1.0  # after a message that was not accepted
ANSWERS, LONGEST_PAUSE_S = 10.0, 15.0  # as a node's spool pauses: worker.shipping.spool
NOT_WANTED = (404, 409, 410)
LOG_LINE = "step {step}: loss {loss:.4f}, 41,233 tokens/s, 388 ms\n"


class NotWanted(Exception):
    """Refusal of a message about an attempt that is over."""


@dataclass(frozen=True)
class Pace:
    """Speed of a node's reports and of the jobs on it."""

    beat_s: float = BEAT_S
    """Longest pause between two heartbeats; news and a doorbell cut it short."""
    beat_at_work_s: float = 1.0
    """The same while an attempt runs, for a fleet that hears no doorbells."""
    step_s: float = 0.5
    """Duration of a step, after which a line of metrics and one of output are sent."""
    hears_doorbells: bool = False
    """True if doorbells reach the fleet, so that it sends news of jobs that nobody watches only as
    often as the API asks for them."""


@dataclass
class FakeNode:
    """One node, which reports that it runs every attempt that it is ordered to run."""

    name: str
    gpus: int
    token: str
    line: Line
    records: Records
    pace: Pace = Pace()
    running: dict[tuple[str, int], "FakeAttempt"] = field(default_factory=dict)
    look: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a doorbell, or when there is news to report."""
    heard_at: float = 0.0
    """Time at which a heartbeat was last sent that the API accepted, of `time.monotonic`."""
    ordered_at: dict[tuple[str, int], float] = field(default_factory=dict)
    """Map job and epoch -> time at which the order to start it came, of `time.monotonic`."""

    def __post_init__(self) -> None:
        self._free_since: float | None = None
        self.ships_after_s = 0.0
        self._wanted_after_s = 0.0
        self._orders: dict[str, object] = {"attempts": [], "forget": []}
        self._mark = ""
        self._headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
        }
        self._inventory = inventory(self.name, self.gpus)

    async def live(self) -> None:
        """Send heartbeats, and follow the orders in their answers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self.look.clear()
                    sent_at = time.monotonic()
                    answer = await self.tell("heartbeat", self._observed())
                    if answer is not None:
                        self.heard_at = sent_at
                        self._follow(answer, group)
                    at_work = self.pace.beat_at_work_s if self.running else self.pace.beat_s
                    pause = max(at_work, self._wanted_after_s)
                    if answer is None:  # as worker.agent.agent does
                        pause = max(at_work, self._wanted_after_s * random.uniform(*AGAIN))
                    try:
                        async with asyncio.timeout(pause):
                            await self.look.wait()
                    except TimeoutError:
                        continue
        finally:
            self.line.close()

    def hear_doorbell(self) -> None:
        """Ask for orders now, and send the news of the jobs with their next steps."""
        self.look.set()
        for attempt in self.running.values():
            attempt.next_ship_at = 0.0

    async def tell(self, kind: str, message: dict[str, object]) -> dict[str, object] | None:
        """Send one message; return the answer, None if it was not accepted.

        Raises NotWanted if it is about an attempt that is over.
        """
        begun = time.perf_counter()
        body = json.dumps(message).encode()
        try:
            headers = dict(self._headers)
            if kind == "heartbeat" and self._mark:
                headers[ORDERS_MARK] = self._mark
            answer: Answer = await self.line.ask(
                "POST", f"/v1/node/{kind}", body=body, headers=headers
            )
        except (Lost, TimeoutError) as error:
            self.records.errors[f"node's {kind}: {type(error).__name__}"] += 1
            return None
        self.records.wait(f"node's {kind}", time.perf_counter() - begun)
        if answer.status in NOT_WANTED:
            raise NotWanted
        if answer.status == 204:  # its orders are the same
            self._wanted_after_s = float(answer.headers.get("beat-after", self._wanted_after_s))
            return self._orders
        if answer.status != 200:
            self.records.errors[f"node's {kind}: {answer.status}"] += 1
            return None
        self._wanted_after_s = float(answer.headers.get("beat-after", self._wanted_after_s))
        self.ships_after_s = float(answer.headers.get(SHIP_AFTER.lower(), 0.0))
        told = dict(answer.json())
        if kind == "heartbeat":
            self._orders, self._mark = told, answer.headers.get(ORDERS_MARK.lower(), "")
        return told

    def _observed(self) -> dict[str, object]:
        return {
            "incarnation": "1",
            "boot_id": f"boot-{self.name}",
            "inventory": self._inventory,
            "telemetry": {
                "cpu_pct": 12.0,
                "memory_used_gib": 40.0,
                "disk_free_gib": 900.0,
                "gpu_pct": [97.0] * self.gpus,
                "gpu_memory_used_gib": [20.0] * self.gpus,
            },
            "attempts": [attempt.observed() for attempt in self.running.values()],
            "clean": True,
            "peer_address": self.name,
        }

    def _follow(self, orders: dict[str, object], group: asyncio.TaskGroup) -> None:
        wanted, forget = orders["attempts"], orders["forget"]
        assert isinstance(wanted, list)
        assert isinstance(forget, list)
        for one in forget:
            self.running.pop((str(one["job_id"]), int(one["epoch"])), None)
        if not self.running and self._free_since is None:
            self._free_since = time.perf_counter()
        for order in wanted:
            key = str(order["job_id"]), int(order["epoch"])
            if key not in self.running:
                self.ordered_at[key] = time.monotonic()
                if self._free_since is not None:
                    self.records.wait(
                        "free node's next job", time.perf_counter() - self._free_since
                    )
                    self._free_since = None
                if any(self._shares_slots(order)):
                    self.records.errors["node was given slots twice"] += 1
                self.running[key] = FakeAttempt.ordered(self, order)
                group.create_task(self.running[key].report())
            self.running[key].hear(order)

    def _shares_slots(self, order: dict[str, Any]) -> Iterator[bool]:
        """Yield for each attempt that has not exited here: does an order give away its slots?"""
        for attempt in self.running.values():
            if not attempt.outcome:
                yield not attempt.slots.isdisjoint(order["slots"])


@dataclass
class FakeAttempt:
    """One attempt: after each step a line of metrics and a line of output, until its last step."""

    node: FakeNode
    job_id: str
    epoch: int
    slots: frozenset[int]
    steps: int
    position: int
    """Position of the node among those of the attempt."""
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at once on one node; on several, when all are ready."""
    step: int = 0
    lines_sent: int = 0
    bytes_sent: int = 0
    unsent_lines: list[dict[str, float]] = field(default_factory=list)
    unsent_output: str = ""
    next_ship_at: float = 0.0
    """Time before which nothing is sent: the API answers slowly, or nobody watches."""
    outcome: str = ""
    """Outcome; empty while it runs."""
    begun: float = field(default_factory=time.monotonic)

    @classmethod
    def ordered(cls, node: FakeNode, order: dict[str, Any]) -> "FakeAttempt":
        """Return the attempt that an order asks for."""
        return cls(
            node=node,
            job_id=str(order["job_id"]),
            epoch=int(order["epoch"]),
            slots=frozenset(order["slots"]),
            steps=order["spec"]["training"]["steps"],
            position=order["gang"]["position"] if order["gang"] else 0,
        )

    def hear(self, order: dict[str, Any]) -> None:
        """Follow an order about this attempt: to start, or to stop."""
        if order["gang"] is None or order["gang"]["start"]:
            self.may_start.set()
        if order["stop"] and not self.outcome:
            self._end(order["stop"]["reason"])

    def observed(self) -> dict[str, object]:
        """Return the attempt's entry in the heartbeat."""
        told: dict[str, object] = {"job_id": self.job_id, "epoch": self.epoch, "step": self.step}
        if not self.outcome:
            waits = "starting" if self.may_start.is_set() else "ready"
            return {**told, "phase": "running" if self.step else waits}
        record = {
            "job_id": self.job_id,
            "epoch": self.epoch,
            "boot_id": f"boot-{self.node.name}",
            "outcome": self.outcome,
            "reason": f"Trained {self.step} steps."
            if self.outcome == "succeeded"
            else "Stopped as asked.",
            "duration_s": time.monotonic() - self.begun,
        }
        return {**told, "phase": "exited", "exit": record, "kept": self._is_shipped}

    async def report(self) -> None:
        """Take the steps and send a line of metrics and one of output after each, to the end."""
        self.node.look.set()
        await self.may_start.wait()
        next_at = time.monotonic()
        while not self.outcome:
            self.step += 1
            if self.step == 1:
                self.node.look.set()  # it runs now
            if self.position == 0:  # rank 0 reports for all
                self._write()
                if time.monotonic() >= self.next_ship_at:
                    await self._ship()
            next_at = max(next_at + self.node.pace.step_s, time.monotonic())
            await asyncio.sleep(next_at - time.monotonic())
            if self.step >= self.steps and not self.outcome:
                self._end("succeeded")
        while not self._is_shipped:
            await asyncio.sleep(RESEND_S)
            await self._ship()
        self.node.look.set()

    @property
    def _is_shipped(self) -> bool:
        return not (self.unsent_lines or self.unsent_output)

    def _end(self, outcome: str) -> None:
        self.outcome = outcome
        self.may_start.set()
        self.node.look.set()

    def _write(self) -> None:
        loss = 4.2 * math.exp(-self.step / 400) + 1.1
        self.unsent_lines.append(
            {
                "step": self.step,
                "loss": loss,
                "lr": 3e-4,
                "grad_norm": 0.8,
                "tokens_per_s": 41_233.0,
                "step_time_s": 0.388,
                "time": time.time(),
            }
        )
        self.unsent_output += LOG_LINE.format(step=self.step, loss=loss)

    async def _ship(self) -> None:
        """Send what the API has not acknowledged yet, as a node's spool does."""
        begun = time.monotonic()
        try:
            await self._send_metrics()
            await self._send_log()
        except NotWanted:
            self.unsent_lines.clear()
            self.unsent_output = ""
        now = time.monotonic()
        rest_s = self.node.ships_after_s if self.node.pace.hears_doorbells else 0.0
        answer_s = (now - begun) / 2
        self.next_ship_at = now + max(rest_s, min(ANSWERS * answer_s, LONGEST_PAUSE_S))

    async def _send_metrics(self) -> None:
        lines = list(self.unsent_lines)
        body = {**self._key(), "rank": 0, "first_line": self.lines_sent, "lines": lines}
        answer = await self.node.tell("metrics", body) if lines else None
        if answer is not None:
            del self.unsent_lines[: int(str(answer["next_line"])) - self.lines_sent]
            self.lines_sent = int(str(answer["next_line"]))

    async def _send_log(self) -> None:
        content = self.unsent_output
        body = {
            **self._key(),
            "rank": 0,
            "stream": "stdout",
            "first_byte": self.bytes_sent,
            "size": len(content),
            "content": content,
        }
        answer = await self.node.tell("logs", body) if content else None
        if answer is not None:
            self.unsent_output = self.unsent_output[
                int(str(answer["next_byte"])) - self.bytes_sent :
            ]
            self.bytes_sent = int(str(answer["next_byte"]))

    def _key(self) -> dict[str, object]:
        return {"job_id": self.job_id, "epoch": self.epoch}


def enrol(
    http: httpx2.Client,
    line: Line,
    records: Records,
    *,
    name: str,
    node_class: str,
    gpus: int,
    pace: Pace = Pace(),
) -> FakeNode:
    """Enrol a node as an administrator does, whose client is `http`."""
    wanted = {"name": name, "node_class": node_class}
    made = http.post("/v1/admin/enrolments", json=wanted).raise_for_status().json()
    body = {"token": made["token"], "inventory": inventory(name, gpus)}
    joined = http.post("/v1/node/enrol", json=body).raise_for_status().json()
    return FakeNode(name, gpus, joined["node_token"], line, records, pace)


def inventory(name: str, gpus: int) -> dict[str, object]:
    """Return the inventory of a node with `gpus` GPUs."""
    model = "NVIDIA A100-SXM4-40GB" if not name.startswith("P3") else "Tesla V100-SXM2-32GB"
    found = [{"index": at, "name": model, "memory_gib": GPU_GIB} for at in range(gpus)]
    return {
        "hostname": name,
        "cores": 64,
        "memory_gib": 256.0,
        "gpus": found,
        "slots": gpus,
        "python": "3.11",
        "torch": "2.13.0",
    }
