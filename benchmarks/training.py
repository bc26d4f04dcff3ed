"""Submit to first step, and step time: the platform against plain `torchrun` of the same plan."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx2
import psutil
import yaml

from benchmarks.ratios import Ratio, ratio
from strategies.plan.built_in.stdlib_text import prepare
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.plan.spec import TrainSpec
from tests.running import Running, running_platform, wait_for
from worker.ranks.launch import huge_pages

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
ENDLESS = 1_000_000
TURN_S, GET_GOING_S = 5.0, 0.5
WARM_TURNS, TURNS = 1, 2  # in the first caches warm up; starts differ more than turns do
RANKS = 2
OURS, PLAIN, ALIKE = range(3)  # a job, torchrun by hand, torchrun with a job's huge pages


class Turn(NamedTuple):
    """Part of a turn after its start."""

    begin: float
    """Seconds since 1970."""
    end: float
    waited: float
    """Share of it in which a rank could go on and had no core, of both ranks the mean."""


class StepTimes(NamedTuple):
    """Step times of one training, in seconds, and the share of time that its ranks waited."""

    steps: list[float]
    waited: float


class Training(NamedTuple):
    """Training at work."""

    metrics: Path
    processes: Callable[[], list[psutil.Process]]
    """All of its processes now, of a job the platform's, too."""


class StepRatios(NamedTuple):
    """Step time under the platform / under torchrun by hand."""

    medians: Ratio
    """Ratio of the median steps."""
    means: Ratio
    """Ratio of the mean steps, in which each interruption counts."""
    alike: Ratio
    """Ratio of the median steps, torchrun by hand using huge pages as a job's ranks do."""
    waits: Ratio
    """Ratio of steps that differ by nothing but the time that the ranks wait for a core, as the
    kernel counts it."""


def first_step(pairs: int) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds to the first step with the warm launcher, with torchrun started by the
    platform, and with torchrun by hand; measured in turn."""
    warm, torchrun, by_hand = [], [], []
    with running_platform(forked=False) as platform:
        _seconds_to_first_step(platform, "warm")  # the text is built, the node is warm
        for _ in range(pairs):
            warm.append(_seconds_to_first_step(platform, "warm"))
            torchrun.append(_seconds_to_first_step(platform, "torchrun"))
            by_hand.append(_seconds_to_first_step_by_hand())
    return warm, torchrun, by_hand


def step_time(rounds: int) -> StepRatios:
    """Compare a job with the same training by torchrun alone, in `rounds` of new starts.

    The trainings of a round take turns of a few seconds, so that all meet the same speed of the
    cores. While one is at work all processes of the others stand still, the platform's own
    included. Which of them starts first, and which has the first turn, alternates.
    """
    with running_platform(forked=False) as platform:
        found = [_steps_in_turns(platform, first=number) for number in range(rounds)]

    def compare(measure: Callable[[StepTimes], float], theirs: int) -> Ratio:
        return ratio([measure(one[OURS]) for one in found], [measure(one[theirs]) for one in found])

    def median(one: StepTimes) -> float:
        return statistics.median(one.steps)

    return StepRatios(
        medians=compare(median, PLAIN),
        means=compare(lambda one: statistics.fmean(one.steps), PLAIN),
        alike=compare(median, ALIKE),
        waits=compare(lambda one: 1 + one.waited, PLAIN),
    )


def _steps_in_turns(platform: Running, *, first: int) -> list[StepTimes]:
    """Measure a job, the same training by torchrun alone, and by torchrun with huge pages; they
    start in this order, from the one at `first`, counted around, on."""
    kinds = (partial(_job, platform), partial(_alone, {}), partial(_alone, huge_pages()))
    order = [(first + each) % len(kinds) for each in range(len(kinds))]
    with ExitStack() as stack:
        trainings = {which: stack.enter_context(kinds[which]()) for which in order}
        # From here on the API is asked nothing: whoever reads a job is a viewer of it, and each
        # answer is work beside the steps that are measured.
        for training in trainings.values():
            _suspend(training.processes())
        rounds = [
            {which: _take_turn(trainings[which].processes()) for which in order}
            for _ in range(WARM_TURNS + TURNS)
        ]
        return [
            _step_times(trainings[which].metrics, [turns[which] for turns in rounds[WARM_TURNS:]])
            for which in range(len(kinds))
        ]


@contextmanager
def _job(platform: Running) -> Iterator[Training]:
    """Run an endless job; yield it after its first step."""
    with platform.http() as client:
        job_id, metrics = _submit(platform, client, _spec(ENDLESS))
        wait_for(partial(_first_line, metrics), what="the first step", every_s=0.1)
        yield Training(metrics, partial(_platform, platform))
        for process in _platform(platform):
            process.resume()
        client.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()

        def ended() -> bool:
            return bool(client.get(f"/v1/jobs/{job_id}").json()["is_final"])

        wait_for(ended, what="the end of the job", every_s=0.1)


@contextmanager
def _alone(environment: Mapping[str, str]) -> Iterator[Training]:
    """Run the same training by torchrun alone; yield it after its first step."""
    with _by_hand(ENDLESS, environment) as (process, metrics):
        wait_for(partial(_first_line, metrics), what="the first step", every_s=0.1)
        yield Training(metrics, partial(_family, process.pid))


def _take_turn(family: Sequence[psutil.Process]) -> Turn:
    """Let the processes work for a turn."""
    for process in family:
        process.resume()
    time.sleep(GET_GOING_S)
    begin, before = time.time(), _computed_and_waited(family)
    time.sleep(TURN_S)
    end, after = time.time(), _computed_and_waited(family)
    _suspend(family)
    spent = sorted(
        (after[pid][0] - computed, after[pid][1] - waited)
        for pid, (computed, waited) in before.items()
        if pid in after
    )
    # The ranks are those that compute: a shim has their working directory, too.
    waited_s = statistics.fmean(waited for _, waited in spent[-RANKS:])
    return Turn(begin, end, waited_s / (end - begin))


def _computed_and_waited(family: Iterable[psutil.Process]) -> dict[int, tuple[float, float]]:
    """Map pid -> seconds on a core, and seconds of waiting for one, of its main thread so far."""
    found = {}
    for process in family:
        with suppress(OSError):
            counted = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text()
            computed, waited, _ = map(int, counted.split())
            found[process.pid] = computed / 1e9, waited / 1e9
    return found


def _family(pid: int) -> list[psutil.Process]:
    """Return a process with all that it has started."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def _platform(platform: Running) -> list[psutil.Process]:
    """Return all processes of a platform, and the ranks of its jobs."""
    return list({*_family(platform.up_pid()), *platform.ranks()})


def _suspend(family: Iterable[psutil.Process]) -> None:
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def _step_times(metrics: Path, turns: Sequence[Turn]) -> StepTimes:
    """Return the times of the steps that began and ended in one of the turns."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [(one["time"], one["step_time_s"]) for one in records if "step_time_s" in one]
    within = [
        duration
        for turn in turns
        for ended, duration in steps
        if turn.begin < ended - duration and ended < turn.end
    ]
    return StepTimes(within, statistics.fmean(turn.waited for turn in turns))


def _spec(steps: int) -> dict[str, object]:
    spec = yaml.safe_load(EXAMPLE.read_text())
    spec["training"] |= {"steps": steps, "warmup_steps": 1}
    spec["checkpoint"] = {"keep_last": 1}
    spec["resources"]["ranks_per_node"] = RANKS  # as the runs by hand
    return dict(spec)


def _submit(platform: Running, client: httpx2.Client, spec: dict[str, object]) -> tuple[str, Path]:
    """Submit a job; return its id and its file of metrics, once it has a folder."""
    job_id: str = client.post("/v1/jobs", json=spec).raise_for_status().json()["id"]

    def run_directory() -> Path | None:
        return next((platform.data.node / "attempts").glob(f"{job_id}.*"), None)

    folder = wait_for(run_directory, what="the run directory", every_s=0.005)
    return job_id, RunDirectory(folder).metrics


def _seconds_to_first_step(platform: Running, launcher: str) -> float:
    """Return the seconds from the submission of a short job to its first step; wait for its end."""
    with platform.http() as client:
        submitted = time.time()
        job_id, metrics = _submit(platform, client, _spec(steps=2) | {"launcher": launcher})
        first = wait_for(lambda: _first_line(metrics), what="the first step", every_s=0.005)

        def finished() -> bool:
            job = client.get(f"/v1/jobs/{job_id}").json()
            assert job["state"] not in ("failed", "cancelled"), job["reason"]
            return bool(job["state"] == "succeeded")

        wait_for(finished, what="the end of the job", every_s=0.1)
    return first - submitted


def _seconds_to_first_step_by_hand() -> float:
    started = time.time()
    with _by_hand(2, {}) as (process, metrics):
        assert process.wait() == 0
        first = _first_line(metrics)
    assert first is not None
    return first - started


@contextmanager
def _by_hand(
    steps: int, environment: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Run the same plan by torchrun alone; yield its process and its file of metrics."""
    body = _spec(steps)
    spec = TrainSpec.model_validate(
        {key: body[key] for key in TrainSpec.model_fields if key in body}
    )
    hardware = Hardware(
        class_name="here", device="cpu", slots=os.cpu_count() or 1, memory_gib=8.0, model=None
    )
    resolved = plan(spec, nodes=1, ranks_per_node=RANKS, hardware=hardware)
    with tempfile.TemporaryDirectory(prefix="ty-bench-") as name:
        run = RunDirectory(Path(name))
        text = prepare(Path(tempfile.gettempdir()) / "trainyard-bench")
        run.plan.write_text(
            RunPlan(spec=spec, plan=resolved, dataset_path=str(text)).model_dump_json()
        )
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(RANKS), "-m", "strategies.train", "--"),
                *("--plan", str(run.plan), "--run-dir", name),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2)),
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process, run.metrics
        finally:
            for each in _family(process.pid) if process.poll() is None else ():
                each.kill()
            process.wait()


def _first_line(metrics: Path) -> float | None:
    """Return the time of the first step's metrics, in seconds since 1970; None if not written."""
    if not metrics.exists():
        return None
    line, newline, _ = metrics.read_text().partition("\n")
    return float(json.loads(line)["time"]) if newline else None
