"""`make bench-train`: our loop against the same training in other loops; writes
docs/benchmarks-training.md.

Every run is a process of its own, ours and a peer's in turn, on the plan of examples/gpt-ddp.yaml.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path

import yaml

from benchmarks.ratios import Ratio, ratio
from strategies.plan.built_in.stdlib_text import prepare
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.plan.spec import TrainSpec

EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks-training.md"
SKIPPED_STEPS = 10  # caches and allocators warm up
GOALS = {
    **{"plain": 1.02, "ddp": 1.02, "fsdp2": 1.0},
    **{"accelerate": 1.0, "fabric": 1.0, "deepspeed": 1.0},
}
STRATEGIES = {"plain": "single", "fsdp2": "fsdp"}
"""Strategy of our loop against a peer; `ddp` against those that are not named."""
PACKAGES = {"accelerate": "accelerate", "fabric": "lightning-fabric", "deepspeed": "deepspeed"}


def main() -> None:
    """Measure and write the page."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--quick", action="store_true", help="few pairs, prints only")
    arguments.add_argument("--pairs", type=int, default=20, help="runs of each loop (20)")
    parsed = arguments.parse_args()
    quick = parsed.quick
    pairs, steps = (2, 30) if quick else (parsed.pairs, 50 + SKIPPED_STEPS)
    names = {peer: _name(peer) for peer in GOALS}  # before hours of work: is each installed?
    rows = []
    for peer, name in names.items():
        sys.stderr.write(f"measuring: ours against {name}\n")
        rows.append(_row(peer, name, *against(peer, pairs=pairs, steps=steps)))
        sys.stderr.write(f"{rows[-1]}\n")
    page = as_page(rows)
    sys.stdout.write(page)
    if not quick:
        PAGE.write_text(page)


def against(peer: str, *, pairs: int, steps: int) -> tuple[Ratio, float, float]:
    """Return our median step time / theirs, ours in ms, and the largest relative difference of the
    losses."""
    strategy = STRATEGIES.get(peer, "ddp")
    ranks, ours, theirs, difference = _ranks(peer), [], [], 0.0
    for _ in range(pairs):
        with tempfile.TemporaryDirectory(prefix="ty-bench-") as folder:
            directory = RunDirectory(Path(folder))
            directory.plan.write_text(run_plan(strategy, ranks, steps).model_dump_json())
            launch(ranks, "strategies.train", "--plan", str(directory.plan), "--run-dir", folder)
            lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
            losses = [line["loss"] for line in lines if "loss" in line]
            # A step that the probe measured has no step time.
            timed = [line for line in lines if "step_time_s" in line]
            launch(ranks, "benchmarks.peers", "--peer", peer, "--run-dir", folder)
            other = json.loads((directory.path / f"{peer}.json").read_text())
        ours.append(
            statistics.median(line["step_time_s"] for line in timed if line["step"] > SKIPPED_STEPS)
        )
        theirs.append(statistics.median(seconds for _, seconds in other[SKIPPED_STEPS:]))
        pairs_of_losses = zip(losses, (loss for loss, _ in other), strict=True)
        difference = max(difference, *(abs(a - b) / abs(b) for a, b in pairs_of_losses))
    return ratio(ours, theirs), 1000 * statistics.median(ours), difference


def run_plan(strategy: str, ranks: int, steps: int) -> RunPlan:
    """Return the example's plan for a strategy, ranks and steps, on the standard library's text."""
    body = yaml.safe_load(EXAMPLE.read_text())
    body["training"] |= {"steps": steps, "warmup_steps": 1}
    body["data"]["held_out"] = 0
    body["parallelism"] = {"strategy": strategy}
    spec = TrainSpec.model_validate(
        {key: body[key] for key in TrainSpec.model_fields if key in body}
    )
    here = Hardware(class_name="here", device="cpu", slots=os.cpu_count() or 1, memory_gib=8)
    resolved = plan(spec, nodes=1, ranks_per_node=ranks, hardware=here)
    text = prepare(Path(tempfile.gettempdir()) / "trainyard-bench")
    return RunPlan(spec=spec, plan=resolved, dataset_path=str(text), sample_bytes=0)


def _ranks(peer: str) -> int:
    return 1 if peer == "plain" else 2


def launch(ranks: int, module: str, *arguments: str) -> None:
    """Run a module on some ranks, each with its share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "-m", module, "--", *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        check=True,
        capture_output=True,
    )


def _name(peer: str) -> str:
    return f"{peer} {version(PACKAGES[peer])}" if peer in PACKAGES else f"{peer} PyTorch"


def _row(peer: str, name: str, measured: Ratio, own_ms: float, difference: float) -> str:
    return (
        f"| {name} | {_ranks(peer)} | {measured} | {own_ms:.1f} ms | <= {GOALS[peer]:.2f} | "
        f"{difference:.1e} |"
    )


def as_page(rows: list[str]) -> str:
    """Return the Markdown of docs/benchmarks-training.md."""
    return (
        "# Our loop against others\n\n"
        f"Written by `make bench-train` on {date.today().isoformat()}: {os.cpu_count()} cores, "
        f"{platform.machine()}, PyTorch {version('torch')}. Ours / theirs in median step time, "
        "with the 95 % interval of the median ratio; runs in turn. Same model, first weights, "
        "samples, optimizer, clipping and learning rate; the last column is the largest relative "
        "difference between the two loss curves. Our loop also checks for NaN, looks "
        "for requests and writes its metrics in every step. FSDP2 by hand has torchtitan's units; "
        "its own trainer (0.3.0) installs beside this torch, but sets a CUDA device on machines "
        "without one too, so it runs on GPUs only.\n\n"
        "| theirs | ranks | ratio | ours | goal | losses differ by |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    main()
