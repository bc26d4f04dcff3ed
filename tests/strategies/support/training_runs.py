"""Plans to train by, warm ranks to train with, and what comes out. Not a test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from strategies.plan.durable_files import json_bytes
from strategies.plan.hardware import Hardware
from strategies.plan.known_models import as_spec, known_model
from strategies.plan.planner import plan
from strategies.plan.run_directory import Result, RunDirectory, RunPlan
from strategies.plan.spec import TrainSpec

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
HARDWARE = Hardware(class_name="cpu-2", device="cpu", slots=8, memory_gib=24)
Options = dict[str, Any]
# The proportions of an 8B: a sixteenth of its width and words, and a quarter of its layers.
OF_8B: Options = {"name": "llama", "layers": 8, "width": 256, "heads": 8, "kv_heads": 2}
WORDS_OF_8B: Options = {"data__tokenizer": "characters", "data__vocabulary_size": 8_016}


def make_spec(**changes: Any) -> TrainSpec:
    """A tiny valid spec; `changes` are dotted fields, with __ for the dot."""
    spec: Options = {
        "model": {"name": "gpt", "layers": 4, "width": 64, "heads": 4},
        "data": {"dataset": "ragged", "sequence_length": 48},
        "training": {
            "steps": 50,
            "global_batch_size": 8,
            "learning_rate": 3e-3,
            "warmup_steps": 5,
            "max_grad_norm": 0.3,
        },
        "parallelism": {"strategy": "single"},
    }
    for dotted, value in changes.items():
        *parts, last = dotted.split("__")
        part = spec
        for name in parts:
            part = part.setdefault(name, {})
        part[last] = value
    return TrainSpec.model_validate(spec)


def spec_of_model(name: str, **changes: Any) -> TrainSpec:
    """A spec that trains a known model, with its own vocabulary."""
    shape = known_model(name)
    return make_spec(
        model=as_spec(shape).model_dump(),
        data__tokenizer="characters",
        data__vocabulary_size=shape.vocabulary,
        **changes,
    )


def make_run_plan(spec: TrainSpec, *, ranks: int = 1, **fields: Any) -> RunPlan:
    """A runnable plan for `ranks` ranks of one CPU node."""
    resolved = plan(spec, nodes=1, ranks_per_node=ranks, hardware=HARDWARE)
    assert resolved.runnable, resolved.problems
    return RunPlan(spec=spec, plan=resolved, **{"sample_bytes": 0, "preflight": False, **fields})


def ragged_documents() -> str:
    """400 JSON lines of 12 to 200 letters, from a fixed recurrence."""
    lines, state = [], 1
    for _ in range(400):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        length = 12 + state % 189
        words = []
        for _ in range(length):
            state = state * 1103515245 + 12345 & 0x7FFFFFFF
            words.append("abcdefgh    the and of "[state >> 12 & 15])
        lines.append(json.dumps({"text": "".join(words)}))
    return "\n".join(lines) + "\n"


class Run:
    """One run directory and what came out of it."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)

    @property
    def lines(self) -> list[dict[str, Any]]:
        text = self.directory.metrics.read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def series(self, key: str) -> list[float]:
        return [line[key] for line in self.lines if key in line]

    @property
    def result(self) -> Result:
        return Result.model_validate_json(self.directory.result.read_bytes())


class Started:
    """Ranks under way."""

    def __init__(self, warm: "WarmRanks", pids: list[int]) -> None:
        self.warm, self.pids = warm, pids

    def wait(self) -> list[int]:
        """Exit code of each rank, once all have ended."""
        codes: list[int] = self.warm.receive()["codes"]
        return codes


class WarmRanks:
    """The process of ranks.py, and what its ranks printed."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "ranks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert self.receive() == {"ready": True}

    def receive(self) -> Options:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the warm process died"
        message: Options = json.loads(line)
        return message

    def start(
        self,
        case: str,
        *,
        ranks: int,
        deadline_s: float = 120,
        file: str = "cases.py",
        **arguments: Any,
    ) -> Started:
        """Fork the ranks of a case of `file`; those still there at the deadline are killed."""
        return Started(self, self.fork(file, case, ranks, deadline_s, arguments))

    def start_to_stay(self, file: str, case: str, *, ranks: int, **arguments: Any) -> list[int]:
        """Fork the ranks of a case that nobody waits for; their process ids.

        The ids stay theirs until this process ends, which no caller outlives.
        """
        return self.fork(file, case, ranks, None, arguments)

    def fork(
        self, file: str, case: str, ranks: int, deadline_s: float | None, arguments: Options
    ) -> list[int]:
        request = {
            "file": str(HERE / file),
            "case": case,
            "arguments": arguments,
            "ranks": ranks,
            "deadline_s": deadline_s,
            "logs": str(self.logs),
            "env": {},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        pids: list[int] = self.receive()["pids"]
        return pids

    def start_training(
        self, run_plan: RunPlan, path: Path, *, case: str = "train_run", **arguments: Any
    ) -> tuple[Run, Started]:
        """Start a run in its directory, as `case` of cases.py."""
        path.mkdir(parents=True, exist_ok=True)
        run = Run(path)
        run.directory.plan.write_bytes(json_bytes(run_plan))
        ranks = run_plan.plan.world_size
        return run, self.start(case, ranks=ranks, run_dir=str(path), **arguments)

    def train(self, run_plan: RunPlan, path: Path, **how: Any) -> Run:
        """Run to the end; every rank must leave with code 0."""
        run, started = self.start_training(run_plan, path, **how)
        codes = started.wait()
        assert codes == [0] * run_plan.plan.world_size, self.said()
        return run

    def said(self) -> str:
        """What the ranks of the last case wrote to stderr."""
        return "\n".join(f"{p}:\n{p.read_text()}" for p in sorted(self.logs.glob("*/stderr.log")))

    def error(self, rank: int) -> Options:
        """error.json of one rank of the last case."""
        record: Options = json.loads((self.logs / f"rank-{rank}" / "error.json").read_text())
        return record

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()
