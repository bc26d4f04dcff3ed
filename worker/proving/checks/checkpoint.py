"""checkpoint: the pause and the speed of saving, resuming on 1 and on all ranks, SIGTERM."""

from strategies.plan.run_directory import finished_checkpoints, read_manifest
from strategies.plan.trust.certificate import compare, promise_of
from strategies.plan.trust.experiment import Fault
from worker.proving.bench import Bench, Run, spec_of
from worker.proving.finding import Finding, all_of

STEPS, EVERY, TERMINATED_AT = 12, 4, 7
MOST_PAUSE_S = 2.0  # of a model of some MB, on any disk: the copy alone pauses the training
WIDE = {"name": "llama", "layers": 4, "width": 256, "heads": 8, "kv_heads": 4}


def look(bench: Bench) -> Finding:
    """Train and save; resume half-way on one and on all ranks; stop another run by SIGTERM."""
    ranks = min(4, bench.ranks)
    strategy = "fsdp" if ranks > 1 else "single"
    asked = spec_of(
        model=WIDE, training__steps=STEPS, checkpoint={"every_steps": EVERY, "keep_last": 3},
        parallelism__strategy=strategy,
    )  # fmt: skip
    alone = asked.model_copy(update={"parallelism": spec_of().parallelism})
    whole = bench.train(asked, ranks=ranks)
    saved = {path.name: path for path in finished_checkpoints(whole.attempt.checkpoints)}
    middle = saved[f"step-{2 * EVERY:06d}"]
    num_bytes = sum(file.size for file in read_manifest(middle).files)
    differing = {
        "on 1 rank": difference(whole, bench.train(alone, ranks=1, resume_from=middle)),
    }
    if ranks > 1:
        again = bench.train(asked, ranks=ranks, resume_from=middle)
        differing[f"on {ranks} ranks"] = difference(whole, again)
    ended = bench.run(asked, ranks=ranks, fault=Fault(kind="terminate", rank=ranks - 1,
                                                      step=TERMINATED_AT))  # fmt: skip
    stopped_at = None if ended.exit.result is None else ended.exit.result.step
    return judge(
        pause_s=max(whole.series("ckpt_stage_s")),
        most_pause_s=MOST_PAUSE_S * bench.slowness,
        save_s=min(whole.series("ckpt_save_s")),
        num_bytes=num_bytes,
        differing=differing,
        saved_at=stopped_at if finished_checkpoints(ended.attempt.checkpoints) else None,
    )


def difference(whole: Run, resumed: Run) -> str:
    """Return how the resumed curve differs from the whole one; empty if it is the same."""
    spec = spec_of(parallelism__strategy=whole.plan.strategy)
    promise = promise_of(spec, whole.plan)
    if not whole.curve.loss.keys() & resumed.curve.loss.keys():
        return "no step in common"
    found = compare(resumed.curve, whole.curve, promise, promise)
    return "" if found.verdict == "pass" else f"the loss differs by {found.loss.largest}"


def judge(
    *,
    pause_s: float,
    most_pause_s: float = MOST_PAUSE_S,
    save_s: float,
    num_bytes: int,
    differing: dict[str, str],
    saved_at: int | None,
) -> Finding:
    """Return whether saving is short, resumed curves are the same, and SIGTERM saves at once."""
    wrong = [f"resumed {where}: {what}" for where, what in differing.items() if what]
    if pause_s > most_pause_s:
        wrong.append(f"training paused {pause_s:.1f} s to save {num_bytes / 1e6:.0f} MB")
    if saved_at not in (TERMINATED_AT, TERMINATED_AT + 1):
        wrong.append(f"SIGTERM in step {TERMINATED_AT} saved {saved_at or 'nothing'}")
    figures = {
        "pause_ms": 1e3 * pause_s,
        "saved_mb_per_s": num_bytes / 1e6 / max(save_s, 1e-9),
        "saved_mb": num_bytes / 1e6,
    }
    well = (
        f"Saving pauses {1e3 * pause_s:.0f} ms; resumed curves are the same "
        f"{' and '.join(differing)}; SIGTERM saves the step."
    )
    return all_of(wrong, well, figures)
