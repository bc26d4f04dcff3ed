"""Nodes that speak the node protocol and train nothing: heartbeats, curves, logs at a real pace."""

import asyncio
import json
import math
import time
from dataclasses import dataclass, field

from benchmarks.course.records import Records
from benchmarks.course.wire import Answer, Line, Lost

BEAT_S = 3.0  # core.base.settings: poll_s
BEAT_AT_WORK_S = 1.0  # a doorbell of the scheduler would cut the pause short
METRICS_S = LOGS_S = 0.5
GPU_GIB = 39.6
LOG_LINE = "step {step}: loss {loss:.4f}, 41,233 tokens/s, 388 ms\n"


@dataclass
class FakeNode:
    """One node, which reports that it runs every attempt that it is ordered to run."""

    name: str
    gpus: int
    token: str
    line: Line
    records: Records
    running: dict[tuple[str, int], "FakeAttempt"] = field(default_factory=dict)

    async def live(self) -> None:
        """Send heartbeats, and follow the orders in their answers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    answer = await self.tell("heartbeat", self._observed())
                    if answer is not None:
                        self._follow(answer, group)
                    await asyncio.sleep(BEAT_AT_WORK_S if self.running else BEAT_S)
        finally:
            self.line.close()

    async def tell(self, kind: str, message: dict[str, object]) -> dict[str, object] | None:
        """Send one message; return the answer, None if it was not accepted."""
        begun = time.perf_counter()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        body = json.dumps(message).encode()
        try:
            answer: Answer = await self.line.ask(
                "POST", f"/v1/node/{kind}", body=body, headers=headers
            )
        except (Lost, TimeoutError) as error:
            self.records.errors[f"node's {kind}: {type(error).__name__}"] += 1
            return None
        self.records.wait(f"node's {kind}", time.perf_counter() - begun)
        if answer.status != 200:
            self.records.errors[f"node's {kind}: {answer.status}"] += 1
            return None
        return dict(answer.json())

    def _observed(self) -> dict[str, object]:
        return {
            "incarnation": "1",
            "boot_id": f"boot-{self.name}",
            "inventory": inventory(self.name, self.gpus),
            "telemetry": {
                "cpu_pct": 12.0,
                "memory_used_gib": 40.0,
                "disk_free_gib": 900.0,
                "gpu_pct": [97.0] * self.gpus,
                "gpu_memory_used_gib": [20.0] * self.gpus,
            },
            "attempts": [attempt.observed() for attempt in self.running.values()],
            "clean": True,
        }

    def _follow(self, orders: dict[str, object], group: asyncio.TaskGroup) -> None:
        wanted, forget = orders["attempts"], orders["forget"]
        assert isinstance(wanted, list)
        assert isinstance(forget, list)
        for order in wanted:
            key = str(order["job_id"]), int(order["epoch"])
            if key not in self.running:
                self.running[key] = FakeAttempt(self, *key)
                group.create_task(self.running[key].report())
            if order["stop"]:
                self.running[key].stop_reason = order["stop"]["reason"]
        for one in forget:
            self.running.pop((str(one["job_id"]), int(one["epoch"])), None)


@dataclass
class FakeAttempt:
    """One attempt: a step every half a second, with a line of metrics and a line of output."""

    node: FakeNode
    job_id: str
    epoch: int
    step: int = 0
    bytes_sent: int = 0
    stop_reason: str = ""
    begun: float = field(default_factory=time.monotonic)

    def observed(self) -> dict[str, object]:
        """Return the attempt's entry in the heartbeat."""
        told: dict[str, object] = {"job_id": self.job_id, "epoch": self.epoch, "step": self.step}
        if not self.stop_reason:
            return {**told, "phase": "running" if self.step else "starting"}
        record = {
            "job_id": self.job_id,
            "epoch": self.epoch,
            "boot_id": f"boot-{self.node.name}",
            "outcome": self.stop_reason,
            "reason": "Stopped as asked.",
            "duration_s": time.monotonic() - self.begun,
        }
        return {**told, "phase": "exited", "exit": record, "kept": True}

    async def report(self) -> None:
        """Send a line of metrics and one of output, twice a second each, until it is stopped."""
        next_at = time.monotonic()
        while not self.stop_reason:
            self.step += 1
            await asyncio.gather(self._send_metrics(), self._send_log())
            next_at = max(next_at + METRICS_S, time.monotonic())
            await asyncio.sleep(next_at - time.monotonic())

    async def _send_metrics(self) -> None:
        line = {
            "step": self.step,
            "loss": 4.2 * math.exp(-self.step / 400) + 1.1,
            "lr": 3e-4,
            "grad_norm": 0.8,
            "tokens_per_s": 41_233.0,
            "step_time_s": 0.388,
            "time": time.time(),
        }
        body = {**self._key(), "rank": 0, "first_line": self.step - 1, "lines": [line]}
        await self.node.tell("metrics", body)

    async def _send_log(self) -> None:
        content = LOG_LINE.format(step=self.step, loss=4.2 * math.exp(-self.step / 400) + 1.1)
        size, first = len(content), self.bytes_sent
        self.bytes_sent += size
        await self.node.tell(
            "logs",
            {
                **self._key(),
                "rank": 0,
                "stream": "stdout",
                "first_byte": first,
                "size": size,
                "content": content,
            },
        )

    def _key(self) -> dict[str, object]:
        return {"job_id": self.job_id, "epoch": self.epoch}


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
