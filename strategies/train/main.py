"""Train: `torchrun --standalone --nproc-per-node 2 -m strategies.train --plan P --run-dir D`.

main() and one rank's run; the loop is in loop.py.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch

from strategies.plan.catalog import MODELS
from strategies.plan.durable_files import json_bytes, write_atomically
from strategies.plan.run_directory import ExitCode, RunDirectory, RunPlan
from strategies.plan.trust.preflight_report import Report
from strategies.train.control import ControlWatch
from strategies.train.data.batches import open_windows
from strategies.train.deadline import Deadline
from strategies.train.engine import Engine, engine_for
from strategies.train.failures import report
from strategies.train.farewell import leave_artifacts
from strategies.train.fine_tuning.hub import with_model
from strategies.train.loop import train
from strategies.train.mesh import Mesh, join, leave
from strategies.train.trust.collective_digest import digest
from strategies.train.trust.preflight import trust
from strategies.train.trust.roll_call import RollCall
from strategies.train.watching.console import say
from strategies.train.watching.metrics import MetricsLog

# Modules that a run would import later; a test fails if this list is incomplete.
IMPORTED_LATE = (
    "strategies.train.engines.local_sgd",
    "strategies.train.engines.pipeline",
    "strategies.train.engines.spmd",
    "strategies.train.engines.zero",
    "numpy.ctypeslib",
    "torch._dynamo",
    "torch.nn.parallel.distributed",
    "torch.profiler._cupti_monitor",  # on CPU too: the optimizer asks it whether it is recording
    "torch.utils.serialization.config",
)

COUNTING_S = 24 * 3600.0  # a node may count a large corpus that another has counted before

# A DDP object that is freed after its process group can deadlock in torch's gloo thread (seen
# once in 150 runs); engines therefore live until the process leaves through os._exit.
kept_engines: list[Engine] = []


def main(argv: Sequence[str] | None = None) -> int:
    """Read the plan, train, and return the exit code."""
    parser = argparse.ArgumentParser(prog="strategies.train", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--run-dir", type=Path, required=True, help="where everything is written")
    arguments = parser.parse_args(argv)
    try:
        run_plan = RunPlan.model_validate_json(arguments.plan.read_bytes())
    except (OSError, ValueError) as error:
        return report(error)
    return run(run_plan, arguments.run_dir)


def run(run_plan: RunPlan, run_dir: Path, *, engine: Engine | None = None) -> int:
    """Train as one rank of a run, placed by torchrun's environment variables; return the exit code.

    The caller must then flush and end the process with os._exit. `engine` replaces the technique
    that the plan names.
    """
    directory = RunDirectory(run_dir)
    mesh = deadline = None
    try:
        for folder in (directory.path, directory.checkpoints, directory.artifacts):
            folder.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(num_threads(run_plan))
        run_plan = with_model(run_plan)
        windows = open_windows(run_plan, cache_folder(), tell=say)
        mesh = join(
            run_plan.plan,
            timeout_s=run_plan.collective_timeout_s,
            meet_s=COUNTING_S if windows.is_counted else None,
        )
        if mesh.world_size > 1:
            deadline = Deadline(mesh, directory)
            deadline.start()
            if run_plan.preflight:
                prove(run_plan, directory, mesh, deadline)
        engine = engine or engine_for(run_plan.plan)
        kept_engines.append(engine)
        control = ControlWatch(directory.control if mesh.is_first else None)
        control.catch_signals()
        saved = train(run_plan, directory, windows, engine=engine, mesh=mesh, control=control)
        if deadline is not None:
            deadline.stop()
        leave()  # from here on no rank waits for another
        if saved is not None:
            control.release_signals()
            leave_artifacts(run_plan, directory, saved, windows, mesh.device)
    except Exception as error:  # the edge of the process: record, then end
        if deadline is not None and not deadline.stopped.is_set():
            deadline.stop()
        # The process group stays: to destroy it waits for kernels of NCCL that wait for this rank.
        return report(error, None if deadline is None else digest(error, deadline.inquiry))
    finally:
        if engine is not None:
            engine.close()
    return ExitCode.FINISHED


def prove(run_plan: RunPlan, directory: RunDirectory, mesh: Mesh, deadline: Deadline) -> None:
    """Let the ranks test each other. Raises PreflightFailed, which names the rank that fails."""

    def tell(report: Report) -> None:
        if mesh.is_first:
            write_atomically(directory.preflight, json_bytes(report))
        if mesh.is_first and not report.failures:
            with MetricsLog(directory.metrics) as metrics:
                metrics.write(0, event="preflight", preflight_ms=report.seconds * 1e3)

    def use(roll: RollCall) -> None:
        deadline.preflight = roll

    trust(mesh, timeout_s=run_plan.collective_timeout_s, tell=tell, begun=use)
    deadline.preflight = None


def cache_folder() -> Path:
    """Return the user's folder in which a manual run keeps the built-in dataset."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trainyard"


def num_threads(run_plan: RunPlan) -> int:
    """Return the threads of this rank: as given, else its share of the cores.

    More threads than cores make a step five times slower (measured).
    """
    told = run_plan.threads_per_rank or int(os.environ.get("OMP_NUM_THREADS", "0"))
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return told or max(1, len(os.sched_getaffinity(0)) // local_ranks)


def preload() -> None:
    """Import all modules that a run needs, so that a process that forks ranks has them ready.

    No tensor operation happens here: a thread pool of the parent would not survive the fork.
    DistributedDataParallel alone would otherwise import torch._dynamo, which takes a second.
    """
    for module in IMPORTED_LATE:
        importlib.import_module(module)
    for model in MODELS.values():
        importlib.import_module(model.partition(":")[0])


def end_process(code: int) -> NoReturn:
    """Exit without tearing torch down, which can hang after a successful run."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end_process(main())
