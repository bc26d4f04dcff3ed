"""Submit to first step, and step time: the platform against plain `torchrun` of the same plan."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.ratios import Ratio, ratio
from strategies.plan.built_in.stdlib_text import prepare
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.plan.spec import TrainSpec
from tests.running import Running, running_platform, wait_for

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
SKIPPED_STEPS = 10  # caches and allocators warm up


def first_step(pairs: int) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds to the first step with the warm launcher, with torchrun started by the
    platform, and with torchrun by hand; measured in turn."""
    warm, torchrun, by_hand = [], [], []
    with running_platform(forked=False) as platform:
        _submit_and_wait(platform, steps=2, launcher="warm")  # the text is built, the node is warm
        for _ in range(pairs):
            warm.append(_submit_and_wait(platform, steps=2, launcher="warm")[0])
            torchrun.append(_submit_and_wait(platform, steps=2, launcher="torchrun")[0])
            by_hand.append(_by_hand(steps=2)[0])
    return warm, torchrun, by_hand


def step_time(pairs: int, steps: int) -> tuple[Ratio, Ratio]:
    """Return the step time under the platform / under torchrun by hand, run in turn: of the median
    step of each run, and of its mean step, in which each interruption counts."""
    ours, theirs = [], []
    with running_platform(forked=False) as platform:
        _submit_and_wait(platform, steps=2, launcher="warm")
        for _ in range(pairs):
            ours.append(_submit_and_wait(platform, steps, "auto")[1])
            # The platform is idle meanwhile, as it would be on a node of its own.
            theirs.append(_by_hand(steps)[1])
    of_medians, of_means = (
        ratio([average(one) for one in ours], [average(one) for one in theirs])
        for average in (statistics.median, statistics.fmean)
    )
    return of_medians, of_means


def _spec(steps: int) -> dict[str, object]:
    spec = yaml.safe_load(EXAMPLE.read_text())
    spec["training"] |= {"steps": steps, "warmup_steps": 1}
    spec["checkpoint"] = {"keep_last": 1}
    spec["resources"]["ranks_per_node"] = 2  # as the runs by hand
    return dict(spec)


def _submit_and_wait(platform: Running, steps: int, launcher: str) -> tuple[float, list[float]]:
    """Submit a job; return the seconds from the POST to the first step, and every step time after
    the warm-up."""
    spec = _spec(steps) | {"launcher": launcher}
    with platform.http() as client:
        submitted = time.time()
        answer = client.post("/v1/jobs", json=spec)
        answer.raise_for_status()
        job_id = answer.json()["id"]

        def finished() -> bool:
            job = client.get(f"/v1/jobs/{job_id}").json()
            assert job["state"] not in ("failed", "cancelled"), job["reason"]
            return bool(job["state"] == "succeeded")

        def exited() -> bool:
            return (metrics.parent / "exit.json").exists() or not metrics.exists()

        def run_directory() -> Path | None:
            return next((platform.data.node / "attempts").glob(f"{job_id}.*"), None)

        metrics = wait_for(run_directory, what="the run directory", every_s=0.005) / "metrics.jsonl"
        first = wait_for(lambda: _first_line(metrics), what="the first step", every_s=0.005)
        # The API is asked nothing before the end: whoever reads a job is a viewer of it, and each
        # answer is work beside the steps that are measured.
        wait_for(exited, what="the exit of the ranks", within_s=300, every_s=0.1)
        wait_for(finished, what="the end of the job", within_s=60, every_s=0.1)
        parameters = {"keys": "step_time_s", "resolution": "10000"}
        answer = client.get(f"/v1/jobs/{job_id}/metrics", params=parameters)
        [series] = answer.raise_for_status().json()["series"]
    return first - submitted, series["values"][SKIPPED_STEPS:] or series["values"]


def _by_hand(steps: int) -> tuple[float, list[float]]:
    """Run the same plan by torchrun alone; return the same two results."""
    body = _spec(steps)
    spec = TrainSpec.model_validate(
        {key: body[key] for key in TrainSpec.model_fields if key in body}
    )
    hardware = Hardware(
        class_name="here", device="cpu", slots=os.cpu_count() or 1, memory_gib=8.0, model=None
    )
    resolved = plan(spec, nodes=1, ranks_per_node=2, hardware=hardware)
    with _folder() as folder:
        run = RunDirectory(folder)
        text = prepare(Path(tempfile.gettempdir()) / "trainyard-bench")
        run.plan.write_text(
            RunPlan(spec=spec, plan=resolved, dataset_path=str(text)).model_dump_json()
        )
        environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}
        started = time.time()
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "2", "-m", "strategies.train", "--"),
                *("--plan", str(run.plan), "--run-dir", str(folder)),
            ],
            env=environment,
            check=True,
            capture_output=True,
        )
        first = _first_line(run.metrics)
        assert first is not None
        return first - started, _step_times(run.metrics)


def _first_line(metrics: Path) -> float | None:
    """Return the time of the first step's metrics, in seconds since 1970; None if not written."""
    if not metrics.exists():
        return None
    line, newline, _ = metrics.read_text().partition("\n")
    return float(json.loads(line)["time"]) if newline else None


def _step_times(metrics: Path) -> list[float]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    times = [float(record["step_time_s"]) for record in records if "step_time_s" in record]
    return times[SKIPPED_STEPS:] or times


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ty-bench-") as name:
        yield Path(name)
