"""stuck-rank: one rank hangs, is killed or is stopped; the judge names it in time."""

from strategies.plan.trust.experiment import Fault, Kind
from worker.proving.bench import Bench, Run, spec_of
from worker.proving.finding import Finding, all_of

TIMEOUT_S = 5.0  # of the ranks, for each other
WITHIN_S = 3 * TIMEOUT_S + 10  # the timeout, naming the rank, ending the others
EXPECTED: dict[Kind, str] = {"hang": "stalled", "kill": "killed", "stop": "stalled"}


def look(bench: Bench) -> Finding:
    """Let the last rank fail in its third step in three ways."""
    bench.require_ranks(2)
    ranks = min(4, bench.ranks)
    asked = spec_of(training__steps=50, parallelism__strategy="ddp")
    found = bench.run_all(
        dict.fromkeys(EXPECTED, asked),
        ranks=ranks,
        faults={kind: Fault(kind=kind, rank=ranks - 1) for kind in EXPECTED},
        timeout_s=TIMEOUT_S,
    )
    runs = dict(found)
    ends = {kind: end_of(runs[kind]) for kind in EXPECTED}
    return judge(ends, rank=ranks - 1, within_s=WITHIN_S * bench.slowness)


def end_of(run: Run) -> tuple[str, int | None, float]:
    """Return outcome, culprit and the seconds until both were known."""
    return str(run.exit.outcome), run.exit.culprit_rank, run.judged_in_s


def judge(
    ends: dict[Kind, tuple[str, int | None, float]], *, rank: int, within_s: float = WITHIN_S
) -> Finding:
    """Return whether each end has the right outcome and culprit, in time."""
    wrong = []
    for kind, (outcome, culprit, seconds) in ends.items():
        if outcome != EXPECTED[kind]:
            wrong.append(f"{kind}: the outcome is {outcome} instead of {EXPECTED[kind]}")
        elif culprit != rank:
            wrong.append(f"{kind}: rank {culprit} is named instead of rank {rank}")
        elif seconds > within_s:
            wrong.append(f"{kind}: judged after {seconds:.0f} s instead of {within_s:.0f} s")
    figures = {f"{kind}_judged_s": seconds for kind, (_, _, seconds) in ends.items()}
    return all_of(wrong, f"Rank {rank} is named each time it hangs, is killed or stopped.", figures)
