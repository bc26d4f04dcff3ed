"""Bench of the checks: trainings that run as attempts do, and programs under torchrun.

A training is planned by the planner, started by a shim, and judged as any attempt of this node is.
"""

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

from core.process.parent_death import die_with_parent
from core.spec.spec import Launcher
from core.wire.messages import ExitRecord, Inventory
from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.hardware import Hardware
from strategies.plan.planner import Plan, plan
from strategies.plan.run_directory import RunPlan
from strategies.plan.spec import TrainSpec
from strategies.plan.trust.certificate import Certificate, Curve
from strategies.plan.trust.experiment import (
    EXPERIMENT,
    STRUCK,
    Experiment,
    Fault,
    Observations,
    observations_name,
)
from worker.agent.spawners import Spawners
from worker.gpus.node_gpus import NodeGpus
from worker.node.attempts import Attempt, NodeFolder, StartFile, read_model
from worker.node.boot import cores
from worker.proving.finding import CheckFailed, CheckSkipped, OutOfTime
from worker.proving.preflight import environment, torchrun
from worker.ranks.ending import end_tree

TRAINER = "strategies.train.main"
WATCHED = "strategies.train.proving.trainer"
LOOK_EVERY_S = 0.02
LAST_LINES = 3
MOST_SPAWNS = 3  # of a training whose launcher dies before it has started it
TORCHRUNS_OWN = re.compile(r"torch[./]distributed[./]elastic")
BUILD_S = 300.0  # a compiler needs 30 s for each file with torch's headers
CORES_TO_START = 2  # for each rank of trainings that start side by side
NO_FAULTS: Mapping[str, Fault] = {}
CPU_FACTOR = 5.0  # CPU slots are slower than GPUs, and there may be fewer cores than slots

Changes = dict[str, Any]
BASE: Changes = {
    "model": {"name": "llama", "layers": 4, "width": 64, "heads": 8, "kv_heads": 4},
    "data": {"dataset": "proof", "sequence_length": 64},
    "training": {
        "steps": 8,
        "global_batch_size": 16,
        "learning_rate": 3e-3,
        "warmup_steps": 2,
        "max_grad_norm": 0.3,
    },
    "parallelism": {"strategy": "single"},
}


def spec_of(**changes: Any) -> TrainSpec:
    """Return a small text training; `changes` are dotted fields, with __ for the dot."""
    spec: Changes = {name: dict(part) for name, part in BASE.items()}
    for dotted, value in changes.items():
        *parts, last = dotted.split("__")
        part = spec
        for name in parts:
            part = part.setdefault(name, {})
        part[last] = value
    return TrainSpec.model_validate(spec)


@dataclass(frozen=True)
class Run:
    """One training of a check and what it left."""

    attempt: Attempt
    plan: Plan

    @cached_property
    def exit(self) -> ExitRecord:
        """End of the training, as the judge saw it."""
        record = self.attempt.exit_record()
        if record is None:
            raise CheckFailed("a training left no readable exit.json")
        return record

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        with contextlib.suppress(FileNotFoundError):
            text = self.attempt.metrics.read_text()
            return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return []

    def series(self, key: str) -> list[float]:
        """Return the values of a metric, in order."""
        return [line[key] for line in self.lines if key in line]

    @property
    def curve(self) -> Curve:
        """Loss and gradient norm of each step."""
        curve = Curve()
        for line in self.lines:
            if "loss" in line:
                curve.add(line["step"], line["loss"], line.get("grad_norm"))
        return curve

    @property
    def certificate(self) -> Certificate | None:
        return read_model(self.attempt.certificate, Certificate)

    def observations(self, rank: int = 0) -> Observations:
        """Return what a watched rank saw."""
        found = read_model(self.attempt.path / observations_name(rank), Observations)
        if found is None:
            raise CheckFailed(f"rank {rank} of a training left no observations")
        return found

    @property
    def judged_in_s(self) -> float:
        """Time from the fault on purpose to the judgement."""
        struck = self.attempt.path / STRUCK
        if not struck.exists():
            raise CheckFailed(f"the fault on purpose did not happen: {self.exit.reason}")
        return self.attempt.exit.stat().st_mtime - struck.stat().st_mtime

    def said(self) -> str:
        """Return what the ranks wrote to stderr."""
        logs = sorted(self.attempt.launcher_logs.parent.glob("*/stderr.log"))
        return "\n".join(path.read_text(errors="replace") for path in logs)


@dataclass
class Bench:
    """Folder, ranks and time of the checks."""

    folder: NodeFolder
    inventory: Inventory
    device: Literal["cpu", "cuda"]
    ranks: int
    """GPUs of this node, or CPU slots."""
    spawners: Spawners
    node_gpus: NodeGpus
    ends_at: float = float("inf")
    """Time at which the check that runs must have ended, on the monotonic clock."""
    number: int = 0
    running: list[Attempt] = field(default_factory=list)
    spawns: dict[Path, int] = field(default_factory=dict)
    """Times that each training was asked for."""

    @property
    def hardware(self) -> Hardware:
        """Return this node as the planner sees it."""
        gpus = self.inventory.gpus if self.device == "cuda" else []
        return Hardware(
            class_name="here",
            device=self.device,
            slots=self.ranks,
            memory_gib=min((gpu.memory_gib for gpu in gpus), default=self.inventory.memory_gib),
            model=gpus[0].name if gpus else None,
        )

    @property
    def slowness(self) -> float:
        """Factor of all times that a check allows."""
        return CPU_FACTOR if self.device == "cpu" else 1.0

    @property
    def left_s(self) -> float:
        """Seconds left of the check. Raises OutOfTime if there are none."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left

    def require_gpu(self, why: str) -> None:
        """Raise Skipped, with the reason, on CPU slots."""
        if self.device == "cpu":
            raise CheckSkipped(why)

    def require_ranks(self, least: int) -> None:
        """Raise Skipped if there are fewer ranks."""
        if self.ranks < least:
            kind = "GPUs" if self.device == "cuda" else "CPU slots"
            raise CheckSkipped(f"It needs {least} {kind}; there are {self.ranks}.")

    def plan(self, spec: TrainSpec, *, ranks: int) -> Plan:
        return plan(spec, nodes=1, ranks_per_node=ranks, hardware=self.hardware)

    def train(self, spec: TrainSpec, *, ranks: int, **how: Any) -> Run:
        """Run a training to its end; raise Failed, with the judge's reason, if it did not
        succeed."""
        return succeeded(self.run(spec, ranks=ranks, **how))

    def run(self, spec: TrainSpec, *, ranks: int, **how: Any) -> Run:
        """Run a training to whatever end."""
        return self.wait(self.start(spec, ranks=ranks, **how))

    def run_all(
        self,
        asked: Mapping[str, TrainSpec],
        *,
        ranks: int,
        faults: Mapping[str, Fault] = NO_FAULTS,
        **how: Any,
    ) -> Iterator[tuple[str, Run]]:
        """Run trainings to whatever end, side by side; yield each as it has ended, in order.

        Most of their time is their start, which is the cores' work. So many run at a time as the
        cores can start together and the memory holds.
        """
        waiting, running = deque(asked.items()), deque[tuple[str, Run]]()
        while waiting or running:
            if waiting and self.has_room(waiting[0][1], [run for _, run in running], ranks=ranks):
                name, spec = waiting.popleft()
                run = self.start(spec, ranks=ranks, fault=faults.get(name), **how)
                running.append((name, run))
            else:
                name, run = running.popleft()
                yield name, self.wait(run)

    def has_room(self, spec: TrainSpec, running: Sequence[Run], *, ranks: int) -> bool:
        """Return whether a training may start beside others of as many ranks."""
        if not running:
            return True
        needed = sum(run.plan.needed_gib for run in running)
        fits = needed + self.plan(spec, ranks=ranks).needed_gib <= self.hardware.memory_gib
        return fits and (len(running) + 1) * ranks * CORES_TO_START <= cores()

    def start(
        self,
        spec: TrainSpec,
        *,
        ranks: int,
        fault: Fault | None = None,
        is_watched: bool = False,
        resume_from: Path | None = None,
        timeout_s: float = 60.0,
        saves: bool = True,
        text: Path | None = None,
    ) -> Run:
        """Start a training; `timeout_s` is how long its ranks wait for each other.

        Without `saves` it leaves no checkpoint, which for a large model takes longer than its
        steps. Its data are `text`, by default the short documents.

        Raises Skipped if the planner refuses it here.
        """
        found = self.plan(spec, ranks=ranks)
        if not found.runnable:
            raise CheckSkipped(f"The planner refuses it here: {found.problems[0].message}.")
        run_plan = RunPlan(
            spec=spec,
            plan=found,
            dataset_path=str(text or self.short_text),
            dataset_format="jsonl",
            resume_from=None if resume_from is None else str(resume_from),
            sample_bytes=0,
            collective_timeout_s=timeout_s,
            preflight=False,
            saves=saves,
        )
        self.number += 1
        attempt = Attempt(self.folder.attempts / f"proof-{self.number}.1")
        attempt.launcher_logs.mkdir(parents=True)
        attempt.plan.write_bytes(json_bytes(run_plan))
        experiment = Experiment(fault=fault)
        write_atomically(attempt.path / EXPERIMENT, json_bytes(experiment))
        trainer = WATCHED if is_watched or fault is not None else TRAINER
        self.running.append(attempt)
        self.launch(attempt, trainer, ranks=ranks)
        return Run(attempt, found)

    def launch(self, attempt: Attempt, trainer: str, *, ranks: int) -> None:
        """Ask for a shim of this attempt. Raises Failed if none can be had."""
        spawns = self.spawns.get(attempt.path, 0)
        if spawns == MOST_SPAWNS:
            raise CheckFailed("the process that starts trainings has died; its errors are above")
        self.spawns[attempt.path] = spawns + 1
        launcher = self.spawners.choose(Launcher.AUTO, spawns=spawns).launcher
        start = StartFile(
            job_id=attempt.key.job_id,
            epoch=attempt.key.epoch,
            node="this node",
            trainer=trainer,
            launcher=launcher,
            ranks=ranks,
            threads=max(1, cores() // ranks),
            gpus=self.gpus(ranks),
        )
        write_atomically(attempt.start_file, json_bytes(start))
        if not self.spawners.spawn(attempt.path, launcher):
            raise CheckFailed("no training could be started: the process that forks shims is gone")

    def gpus(self, ranks: int) -> list[str]:
        """Return the UUIDs of the GPUs of the first ranks; none on CPU slots."""
        return [] if self.device == "cpu" else self.node_gpus.uuids_of(range(ranks))

    def wait(self, run: Run) -> Run:
        """Wait for the end of a training; start it anew if its launcher dies first. Raises
        OutOfTime."""
        while not run.attempt.exit.exists() or run.attempt.shim_lives():
            if not run.attempt.shim_file.exists():
                self.launch_again(run.attempt)
            if self.left_s > 0:
                time.sleep(LOOK_EVERY_S)
        self.running.remove(run.attempt)
        return run

    def launch_again(self, attempt: Attempt) -> None:
        """Ask for another shim if the launcher that was to start one has died."""
        start = attempt.start()
        assert start is not None
        if not self.spawners.is_running(start.launcher):
            self.launch(attempt, start.trainer, ranks=start.ranks)

    def measure(self, module: str, *, ranks: int = 1, flag: str = "--out") -> dict[str, Any]:
        """Run `-m module` under torchrun; return the JSON that it writes to the file after `flag`.

        Raises Failed with the last lines of its output if it writes none, and OutOfTime.
        """
        self.number += 1
        out = self.folder.path / f"measured-{self.number}.json"
        command = [*torchrun(ranks), "-m", module, flag, str(out)]
        process = subprocess.Popen(
            command,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
        try:
            _, said = process.communicate(timeout=self.left_s)
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        finally:
            if process.poll() is None:
                process.terminate()  # torchrun takes its ranks along
                process.wait()
        if not out.exists():
            raise CheckFailed(f"{module} failed: {last_lines(said)}")
        found: dict[str, Any] = json.loads(out.read_bytes())
        return found

    def compile_once(self, module: str) -> None:
        """Run `-m module`, which compiles code that the node keeps. Its time is not the check's.

        If it fails, the trainings that need the code say why. Raises OutOfTime after BUILD_S.
        """
        began = time.monotonic()
        try:
            subprocess.run(
                [sys.executable, "-m", module],
                env=environment(),
                capture_output=True,
                timeout=BUILD_S,
                check=False,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        except subprocess.TimeoutExpired as error:
            raise OutOfTime from error
        self.ends_at += time.monotonic() - began

    @cached_property
    def short_text(self) -> Path:
        """Documents of many lengths, shorter than most samples; the same on every node."""
        return self.write_text("short.jsonl", documents=400, letters=(12, 400))

    @cached_property
    def long_text(self) -> Path:
        """Documents that fill samples: all tokens of a step count, as speeds need it."""
        return self.write_text("long.jsonl", documents=64, letters=(20_000, 20_000))

    def write_text(self, name: str, *, documents: int, letters: tuple[int, int]) -> Path:
        """Write documents with so many letters each, least and most; return their file."""
        chance, path = random.Random(1), self.folder.path / name
        alphabet = "abcdefgh    the and of "
        texts = [
            "".join(chance.choices(alphabet, k=chance.randint(*letters))) for _ in range(documents)
        ]
        path.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
        return path

    def clear(self) -> None:
        """End what still runs and delete the folders of all trainings."""
        for attempt in self.running:
            end_tree(attempt)
        self.running.clear()
        for attempt in self.folder.all_attempts():
            shutil.rmtree(attempt.path, ignore_errors=True)


def succeeded(run: Run) -> Run:
    """Return a training that has ended; raise Failed, with the judge's reason, if it did not
    succeed."""
    if run.exit.outcome != "succeeded":
        raise CheckFailed(f"a training ended as {run.exit.outcome}: {run.exit.reason}")
    return run


def last_lines(said: bytes) -> str:
    """Return the last lines that a program printed before torchrun's own table."""
    own = TORCHRUNS_OWN.split(said.decode(errors="replace"), maxsplit=1)[0]
    text = own.rpartition("\n")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-LAST_LINES:])[-600:] or "it printed nothing"
