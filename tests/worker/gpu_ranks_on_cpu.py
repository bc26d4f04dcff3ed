"""The trainer of a node with GPUs on a machine that has none: a rank notes its GPUs, and
computes on the CPU."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from strategies.plan.run_directory import RunDirectory
from strategies.train.main import end_process, preload, run

__all__ = ["main", "preload"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train as `strategies.train.main` does; the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_ranks_on_cpu", description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    folder: Path = parser.parse_args(argv).run_dir
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    node = folder.parents[1]  # which keeps no attempt's folder for long
    (node / f"{folder.name}-{os.environ['RANK']}.devices").write_text(given)
    run_plan = RunDirectory(folder).read_plan()
    on_cpu = run_plan.plan.model_copy(update={"device": "cpu"})
    return run(run_plan.model_copy(update={"plan": on_cpu}), folder)


if __name__ == "__main__":
    end_process(main())
