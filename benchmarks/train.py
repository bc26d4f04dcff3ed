"""`make bench-train`: our loop against the same training in other loops; writes
docs/benchmarks-training.md or, on a machine with GPUs, docs/benchmarks-training-gpus.md.

Every run is a process of its own, ours and a peer's in turn: of examples/gpt-ddp.yaml on CPUs, of a
model with the shape of Llama 3.2 1B on GPUs.
"""

import argparse
import copy
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from benchmarks.ratios import Ratio, ratio
from strategies.plan.built_in.stdlib_text import prepare
from strategies.plan.hardware import Hardware
from strategies.plan.planner import plan
from strategies.plan.run_directory import RunDirectory, RunPlan
from strategies.plan.spec import TrainSpec

DOCS = Path(__file__).parents[1] / "docs"
EXAMPLE = Path(__file__).parents[1] / "examples" / "gpt-ddp.yaml"
BILLION: dict[str, Any] = {
    "model": {
        **{"name": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8},
        **{"ffn_width": 8192, "tied_embeddings": True, "rope_base": 500_000},
    },
    "data": {
        **{"dataset": "python-stdlib", "tokenizer": "characters"},
        **{"vocabulary_size": 128_256, "sequence_length": 4096},
    },
    "training": {"global_batch_size": 4, "micro_batch_size": 4, "learning_rate": 3e-4},
    "precision": "bfloat16",
    "compile": True,
}
"""Llama 3.2 1B (1.24 billion weights), a batch of 4 x 4,096 tokens for each GPU."""
SKIPPED_STEPS = 10  # caches and allocators warm up, layers are compiled
GOALS = {
    **{"plain": 1.02, "ddp": 1.02, "fsdp2": 1.0},
    **{"accelerate": 1.0, "fabric": 1.0, "deepspeed": 1.0, "torchtitan": 1.0},
}
STRATEGIES = {"plain": "single", "fsdp2": "fsdp", "torchtitan": "fsdp"}
"""Strategy of our loop against a peer; `ddp` against those that are not named."""
PACKAGES = {
    **{"accelerate": "accelerate", "fabric": "lightning-fabric"},
    **{"deepspeed": "deepspeed", "torchtitan": "torchtitan"},
}

ON_CPU = (
    "FSDP2 by hand has torchtitan's units; its own trainer (0.3.0) installs beside this torch, but "
    "sets a CUDA device on machines without one too, so it runs on GPUs only."
)
ON_GPUS = (
    "The model has the shape of Llama 3.2 1B (1.24 billion weights), its layers are compiled in "
    "every loop, and each GPU takes 4 samples of 4,096 tokens in bfloat16. The share of the peak "
    "counts the model's products, as [planning.md](planning.md) does. On one GPU our loop takes "
    "the strategy `single`."
)


@dataclass(frozen=True)
class Measured:
    """Our loop against a peer's."""

    ratio: Ratio
    """Our median step time over theirs."""
    step_s: float
    """Our median step time."""
    tokens_per_s: float
    """Tokens of a rank of ours."""
    mfu: float | None
    """Our share of the GPU's peak, in percent; None if the peak is not known."""
    difference: float
    """Largest relative difference of the losses."""


def main() -> None:
    """Measure and write the page."""
    arguments = argparse.ArgumentParser(description=main.__doc__)
    arguments.add_argument("--quick", action="store_true", help="few pairs, prints only")
    arguments.add_argument("--pairs", type=int, default=20, help="runs of each loop (20)")
    arguments.add_argument("--peers", nargs="+", choices=GOALS, help="some only; prints only")
    parsed = arguments.parse_args()
    quick, here = parsed.quick, this_machine()
    pairs, steps = (2, 30) if quick else (parsed.pairs, 50 + SKIPPED_STEPS)
    peers = parsed.peers or peers_on(here)
    names = {peer: _name(peer) for peer in peers}  # before hours of work: is each installed?
    rows = []
    for peer, name in names.items():
        sys.stderr.write(f"measuring: ours against {name}\n")
        rows.append(_row(peer, name, here, against(peer, here, pairs=pairs, steps=steps)))
        sys.stderr.write(f"{rows[-1]}\n")
    page = as_page(rows, here)
    sys.stdout.write(page)
    if not (quick or parsed.peers):
        page_of(here).write_text(page)


def this_machine() -> Hardware:
    """Return this machine's GPUs, or its cores, as the planner sees them."""
    if not torch.cuda.is_available():
        return Hardware(class_name="here", device="cpu", slots=os.cpu_count() or 1, memory_gib=8)
    return Hardware(
        class_name="here",
        device="cuda",
        slots=torch.cuda.device_count(),
        memory_gib=torch.cuda.get_device_properties(0).total_memory / (1 << 30),
        model=torch.cuda.get_device_name(),
    )


def peers_on(here: Hardware) -> list[str]:
    """Return the peers of this machine: torchtitan on GPUs only, and if it is installed."""
    is_here = here.device == "cuda" and find_spec("torchtitan") is not None
    return [peer for peer in GOALS if peer != "torchtitan" or is_here]


def against(peer: str, here: Hardware, *, pairs: int, steps: int) -> Measured:
    """Measure our loop against a peer's."""
    strategy, ranks = STRATEGIES.get(peer, "ddp"), _ranks(peer, here)
    ours, theirs, speeds, shares, difference = [], [], [], [], 0.0
    for _ in range(pairs):
        with tempfile.TemporaryDirectory(prefix="ty-bench-") as folder:
            directory = RunDirectory(Path(folder))
            planned = run_plan(strategy, here, ranks, steps)
            directory.plan.write_text(planned.model_dump_json())
            launch(ranks, "strategies.train", "--plan", str(directory.plan), "--run-dir", folder)
            lines = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
            losses = [line["loss"] for line in lines if "loss" in line]
            # A step that the probe measured has no step time.
            timed = [
                line for line in lines if "step_time_s" in line and line["step"] > SKIPPED_STEPS
            ]
            launch(ranks, "benchmarks.peers", "--peer", peer, "--run-dir", folder)
            other = json.loads((directory.path / f"{peer}.json").read_text())
        ours.append(median(line["step_time_s"] for line in timed))
        speeds.append(median(line["tps"] for line in timed))
        shares += [line["mfu"] for line in timed if line.get("mfu") is not None]
        theirs.append(median(seconds for _, seconds in other[SKIPPED_STEPS:]))
        pairs_of_losses = zip(losses, (loss for loss, _ in other), strict=True)
        difference = max(difference, *(abs(a - b) / abs(b) for a, b in pairs_of_losses))
    share = median(shares) if shares else None
    return Measured(ratio(ours, theirs), median(ours), median(speeds), share, difference)


def run_plan(strategy: str, here: Hardware, ranks: int, steps: int) -> RunPlan:
    """Return the plan of a training for a strategy, ranks and steps, on the standard library's
    text."""
    if here.device == "cpu":
        body = yaml.safe_load(EXAMPLE.read_text())
    else:
        body = copy.deepcopy(BILLION)
        body["training"]["global_batch_size"] *= ranks
    body["training"] |= {"steps": steps, "warmup_steps": 1}
    body["data"]["held_out"] = 0
    body["parallelism"] = {"strategy": strategy if ranks > 1 else "single"}
    spec = TrainSpec.model_validate(
        {key: body[key] for key in TrainSpec.model_fields if key in body}
    )
    resolved = plan(spec, nodes=1, ranks_per_node=ranks, hardware=here)
    if not resolved.runnable:
        raise SystemExit(f"The planner refuses it here: {resolved.problems[0].message}")
    text = prepare(Path(tempfile.gettempdir()) / "trainyard-bench")
    return RunPlan(spec=spec, plan=resolved, dataset_path=str(text), sample_bytes=0, saves=False)


def _ranks(peer: str, here: Hardware) -> int:
    if peer == "plain":
        return 1
    return 2 if here.device == "cpu" else here.slots


def launch(ranks: int, module: str, *arguments: str) -> None:
    """Run a module on some ranks, each with its share of the cores."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "-m", module, "--", *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{module} failed:\n{done.stderr[-4000:]}")


def _name(peer: str) -> str:
    return f"{peer} {version(PACKAGES[peer])}" if peer in PACKAGES else f"{peer} PyTorch"


def _row(peer: str, name: str, here: Hardware, found: Measured) -> str:
    cells = [name, str(_ranks(peer, here)), str(found.ratio), f"{1000 * found.step_s:.1f} ms"]
    if here.device == "cuda":
        share = "-" if found.mfu is None else f"{found.mfu:.1f} %"
        cells += [f"{found.tokens_per_s:,.0f}", share]
    return f"| {' | '.join([*cells, f'<= {GOALS[peer]:.2f}', f'{found.difference:.1e}'])} |"


def page_of(here: Hardware) -> Path:
    name = "benchmarks-training.md" if here.device == "cpu" else "benchmarks-training-gpus.md"
    return DOCS / name


def as_page(rows: list[str], here: Hardware) -> str:
    """Return the Markdown of the page."""
    head = ["theirs", "ranks", "ratio", "ours", "goal", "losses differ by"]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, PyTorch {version('torch')}"
    said = ON_CPU
    if here.device == "cuda":
        head[4:4] = ["tokens/s of a GPU", "share of its peak"]
        machine, said = f"{here.slots} x {here.model}, {machine}", ON_GPUS
    return (
        f"# Our loop against others{'' if here.device == 'cpu' else ', on GPUs'}\n\n"
        f"Written by `make bench-train` on {date.today().isoformat()}: {machine}. Ours / theirs in "
        "median step time, with the 95 % interval of the median ratio; runs in turn. Same model, "
        "first weights, samples, optimizer, clipping and learning rate; the last column is the "
        "largest relative difference between the two loss curves. Our loop also checks for NaN, "
        f"looks for requests and writes its metrics in every step. {said}\n\n"
        f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    main()
