"""speed: share of the GPU's peak, idle time between steps, and the steps after the probe's."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from worker.proving.bench import Bench, Run, spec_of
from worker.proving.clocks import Clocks
from worker.proving.finding import Finding, all_of

STEPS, WARM, PROBE = 50, 10, 20
LEAST_MFU = {"124M": 20.0, "1B": 25.0}  # per cent, of layers that are not compiled
MOST_IDLE = 0.02  # of the time
MOST_SLOWER = 1.05  # after the probe, over before
VOCABULARY = 50_304
ON_GPU: dict[str, dict[str, Any]] = {
    "124M": {
        "model": {"name": "gpt", "layers": 12, "width": 768, "heads": 12, "tied_embeddings": True},
        "data__sequence_length": 1024,
        "training__micro_batch_size": 16,
    },
    "1B": {
        "model": {"name": "llama", "layers": 16, "width": 2048, "heads": 32, "kv_heads": 8},
        "data__sequence_length": 2048,
        "training__micro_batch_size": 4,
        "activation_checkpointing": "selective",
    },
}
ON_CPU: dict[str, dict[str, Any]] = {"tiny": {}}


def look(bench: Bench) -> Finding:
    """Train for 50 steps on all ranks."""
    seen: dict[str, Run] = {}
    held_down: dict[str, str] = {}
    on_gpu = bench.device == "cuda"
    for name, changes in (ON_GPU if on_gpu else ON_CPU).items():
        micro = changes.get("training__micro_batch_size", 4)
        real = {
            "data__tokenizer": "characters", "data__vocabulary_size": VOCABULARY,
            "precision": "bfloat16",
        } if on_gpu else {}  # fmt: skip
        asked = spec_of(
            **{
                "training__steps": STEPS,
                "training__global_batch_size": micro * bench.ranks,
                "parallelism__strategy": "fsdp" if bench.ranks > 1 else "single",
                **real,
                **changes,
            }
        )
        with Clocks(bench.node_gpus, bench.gpus(bench.ranks)) as clocks:
            seen[name] = bench.train(
                asked, ranks=bench.ranks, is_watched=True, saves=False, text=bench.long_text
            )
        held_down[name] = clocks.held_down
    measured = {name: measures_of(run) for name, run in seen.items()}
    return judge(measured, held_down, on_gpu=on_gpu)


def measures_of(run: Run) -> dict[str, float]:
    """Return `mfu`, `idle`, `slower` and `tokens_per_s` of a run; those that are known."""
    times = {line["step"]: line["step_time_s"] for line in run.lines if "step_time_s" in line}
    before = [times[step] for step in range(WARM, PROBE) if step in times]
    after = [times[step] for step in range(PROBE + 2, STEPS + 1) if step in times]
    idle = [one.idle_s for one in run.observations().steps[WARM:] if one.idle_s is not None]
    found = {
        "idle": median(idle) / median(after),
        "slower": median(after) / median(before),
        "tokens_per_s": median(run.series("tokens_per_s")[WARM:]),
    }
    if mfu := run.series("mfu")[WARM:]:
        found["mfu"] = median(mfu)
    return found


def judge(
    measured: dict[str, dict[str, float]], held_down: dict[str, str], *, on_gpu: bool
) -> Finding:
    """Return whether each run is as fast as it should be.

    An unknown peak is not judged, nor are steps that grow longer on a GPU whose clock was held down
    (`held_down`: why, or empty), nor is a CPU, whose cores other programs share.
    """
    wrong: list[str] = []
    for name, found in measured.items() if on_gpu else ():
        least = LEAST_MFU.get(name)
        if least is not None and "mfu" in found and found["mfu"] < least:
            wrong.append(f"{name}: {found['mfu']:.0f} % of the peak instead of {least:.0f} %")
        if found["idle"] > MOST_IDLE:
            wrong.append(f"{name}: idle {100 * found['idle']:.1f} % of the time between steps")
        if found["slower"] > MOST_SLOWER and not held_down[name]:
            slower = 100 * (found["slower"] - 1)
            wrong.append(f"{name}: steps after the probe take {slower:.0f} % longer")
    figures = {
        f"{name}_{what}": value for name, found in measured.items() for what, value in found.items()
    }
    if not on_gpu:
        return all_of(wrong, f"{speeds(measured)}. CPU slots are measured, not judged.", figures)
    held = [f" {name}'s clock was held down: {why}." for name, why in held_down.items() if why]
    well = f"{speeds(measured)}; no idle time between steps, none slower after the probe."
    if held:
        well = f"{speeds(measured)}; no idle time between steps.{''.join(held)}"
    return all_of(wrong, well, figures)


def speeds(measured: dict[str, dict[str, float]]) -> str:
    """Return the speeds in a clause."""
    parts: Sequence[str] = [
        f"{name} {found['tokens_per_s']:,.0f} tokens/s"
        + (f", {found['mfu']:.0f} % of the peak" if "mfu" in found else "")
        for name, found in measured.items()
    ]
    return "; ".join(parts)
