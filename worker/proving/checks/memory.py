"""memory: twelve trainings weighed against their plans, and what a rank takes before its model."""

from collections.abc import Sequence
from typing import Any

from strategies.plan.spec import TrainSpec
from strategies.plan.trust.accuracy import weighed
from worker.proving.bench import Bench, Run, spec_of, succeeded
from worker.proving.finding import Finding, all_of

BAND = 0.10
LLAMA = {"name": "llama", "layers": 4, "width": 128, "heads": 8, "kv_heads": 4}
BIG = {"name": "llama", "layers": 8, "width": 2048, "heads": 16, "kv_heads": 8}
GPT = {"name": "gpt", "layers": 4, "width": 128, "heads": 8}
BIG_GPT = {"name": "gpt", "layers": 8, "width": 2048, "heads": 16}
VOCABULARY = 128_256
TOKENS = {"cuda": 2048, "cpu": 128}


def cases(device: str) -> dict[str, dict[str, Any]]:
    """Return the twelve trainings, as changes to a spec."""
    llama, gpt = (BIG, BIG_GPT) if device == "cuda" else (LLAMA, GPT)
    fsdp, half = {"strategy": "fsdp"}, {"precision": "bfloat16"}
    real: dict[str, Any] = {}
    if device == "cuda":
        real = {"data__tokenizer": "characters", "data__vocabulary_size": VOCABULARY}
    alone: dict[str, Any] = {"model": llama, **real}
    return {
        "llama": {**alone, **half},
        "llama in float32": alone,
        "llama, selective": {**alone, **half, "activation_checkpointing": "selective"},
        "llama, full": {**alone, **half, "activation_checkpointing": "full"},
        "llama, small vocabulary": {"model": llama, **half},
        "gpt": {"model": gpt, **real, **half},
        "gpt, tied": {"model": {**gpt, "tied_embeddings": True}, **real, **half},
        "ddp": {**alone, **half, "parallelism": {"strategy": "ddp"}},
        "fsdp": {**alone, **half, "parallelism": fsdp},
        "fsdp, full": {**alone, **half, "parallelism": fsdp, "activation_checkpointing": "full"},
        "tensor": {**alone, **half, "parallelism": {"strategy": "tensor"}},
        "zero2": {**alone, **half, "parallelism": {"strategy": "zero2"}},
    }


def look(bench: Bench) -> Finding:
    """Weigh each training, then a rank without one."""
    errors: dict[str, tuple[float, float | None]] = {}
    too_large: list[str] = []
    for ranks in range(1, 1 + min(2, bench.ranks)):
        asked: dict[str, TrainSpec] = {}
        for name, changes in cases(bench.device).items():
            if ranks != (2 if "parallelism" in changes else 1):
                continue
            spec = spec_of(
                **{
                    "training__steps": 4,
                    "training__global_batch_size": 4 * ranks,
                    "data__sequence_length": TOKENS[bench.device],
                    **changes,
                }
            )
            if bench.plan(spec, ranks=ranks).fits:
                asked[name] = spec
            else:
                too_large.append(name)
        is_watched = bench.device == "cuda"
        for name, run in bench.run_all(asked, ranks=ranks, is_watched=is_watched, saves=False):
            errors[name] = error_of(succeeded(run), asked[name].model.name)
    constants = bench.measure("strategies.train.proving.constants", ranks=min(2, bench.ranks))
    return judge(errors, constants, too_large)


def error_of(run: Run, model: Any) -> tuple[float, float | None]:
    """Return planned over measured memory, less 1; and reserved over planned, if it is known."""
    result = run.exit.result
    found = weighed(run.plan, model, [] if result is None else result.peak_gib)
    if found is None:
        return float("nan"), None
    reserved = None
    if run.plan.device == "cuda":
        seen = [run.observations(rank).reserved_gib for rank in range(run.plan.world_size)]
        most = max((one for one in seen if one is not None), default=0.0)
        reserved = most / (found.exact + found.estimated) - 1
    return found.error, reserved


def judge(
    errors: dict[str, tuple[float, float | None]],
    constants: dict[str, float | None],
    too_large: Sequence[str] = (),
) -> Finding:
    """Return whether every plan is within BAND of what was allocated and covers the reserve."""
    wrong = []
    for name, (error, reserved) in errors.items():
        if not abs(error) <= BAND:
            wrong.append(f"{name}: the plan is {error:+.0%} of what was allocated")
        if reserved is not None and reserved > BAND:
            wrong.append(f"{name}: {reserved:+.0%} was reserved beyond the plan")
    figures = {f"{name.replace(' ', '_')}_error": error for name, (error, _) in errors.items()}
    figures |= {name: value for name, value in constants.items() if value is not None}
    figures = {name: value for name, value in figures.items() if value == value}
    worst = max((abs(error) for error, _ in errors.values()), default=0.0)
    well = (
        f"{len(errors)} plans are within {worst:.0%} of what was allocated; a rank takes "
        f"{constants['process_gib']:.2f} GiB before its model."
    )
    if too_large:
        well += f" Too large for this GPU, so not weighed: {', '.join(too_large)}."
    return all_of(wrong, well, figures)
