"""precision: deterministic runs have the same bits, and TF32 stays in its band."""

from strategies.plan.spec import Float32Matmul, Precision, TrainSpec
from strategies.plan.trust.certificate import Comparison, compare, promise_of, told
from worker.proving.bench import Bench, Run, spec_of, succeeded
from worker.proving.finding import Finding, all_of

STEPS = 8
PRECISIONS = (Precision.FLOAT32, Precision.BFLOAT16)


def look(bench: Bench) -> Finding:
    """Train twice with deterministic kernels in each precision; in TF32 and in exact float32."""
    asked: dict[str, TrainSpec] = {
        f"{precision}, {which}": spec_of(
            training__steps=STEPS, precision=precision, deterministic=True
        )
        for precision in PRECISIONS
        for which in ("first", "second")
    }
    if bench.device == "cuda":
        asked |= {
            str(how): spec_of(training__steps=STEPS, float32_matmul=how) for how in Float32Matmul
        }
    runs = {name: succeeded(run) for name, run in bench.run_all(asked, ranks=1, saves=False)}
    differing = {
        str(precision): bits_apart(runs[f"{precision}, first"], runs[f"{precision}, second"])
        for precision in PRECISIONS
    }
    if bench.device == "cpu":
        return judge(differing, tf32=None)
    ours, theirs = runs[Float32Matmul.TF32], runs[Float32Matmul.EXACT]
    promises = [promise_of(asked[how], runs[how].plan) for how in Float32Matmul]
    return judge(differing, tf32=compare(ours.curve, theirs.curve, promises[0], promises[1]))


def bits_apart(one: Run, other: Run) -> int:
    """Return the number of losses and gradient norms whose bits differ between two runs."""
    return sum(
        ours != theirs
        for key in ("loss", "grad_norm")
        for ours, theirs in zip(one.series(key), other.series(key), strict=True)
    )


def judge(differing: dict[str, int], *, tf32: Comparison | None) -> Finding:
    """Return whether no deterministic run differs from its twin, and TF32 is in its band."""
    wrong = [
        f"{precision}: {count} numbers of two deterministic runs differ"
        for precision, count in differing.items()
        if count
    ]
    figures: dict[str, float] = {}
    same = f"Two deterministic runs have the same bits in {' and '.join(differing)}"
    if tf32 is None:
        return all_of(wrong, f"{same}. TF32 needs a GPU.", figures)
    if tf32.verdict != "pass":
        wrong.append(f"TF32 leaves its band of exact float32: {told('loss', tf32.loss)}")
    figures["loss_tf32_largest"] = tf32.loss.largest or 0.0
    return all_of(wrong, f"{same}; TF32 stays in its band of exact float32.", figures)
