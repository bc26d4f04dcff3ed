"""out-of-memory: one rank runs out in four places; outcome, sentence and advice are right."""

from strategies.plan.trust.experiment import Fault, Place
from worker.proving.bench import Bench, spec_of
from worker.proving.finding import Finding, all_of

WITHIN_S = 10.0
EVERYWHERE: tuple[Place, ...] = ("forward", "backward")
ON_GPUS: tuple[Place, ...] = ("join", "matmul")
ADVICE = "Use a smaller micro_batch_size"


def look(bench: Bench) -> Finding:
    """Let one rank ask for too much; on GPUs also before the ranks meet, and in cuBLAS."""
    ranks = min(2, bench.ranks)
    places = EVERYWHERE + (ON_GPUS if bench.device == "cuda" and ranks > 1 else ())
    strategy = "ddp" if ranks > 1 else "single"
    ends = {}
    for place in places:
        run = bench.run(
            spec_of(training__steps=50, parallelism__strategy=strategy),
            ranks=ranks,
            fault=Fault(kind="out_of_memory", rank=ranks - 1, place=place),
        )
        ends[place] = (str(run.exit.outcome), run.exit.reason, run.judged_in_s)
    found = judge(ends, rank=ranks - 1, within_s=WITHIN_S * bench.slowness)
    left_out = [place for place in ON_GPUS if place not in places]
    if found.verdict == "passed" and left_out:
        needs = f"{' and '.join(left_out)} need 2 GPUs"
        return found._replace(sentence=f"{found.sentence} Not tried: {needs}.")
    return found


def judge(
    ends: dict[Place, tuple[str, str, float]], *, rank: int, within_s: float = WITHIN_S
) -> Finding:
    """Return whether each end says that this rank ran out of memory, and what to do."""
    wrong = []
    for place, (outcome, reason, seconds) in ends.items():
        if outcome != "out_of_memory":
            wrong.append(f"{place}: the outcome is {outcome} ({reason[:200]})")
        elif f"Rank {rank} " not in reason or ADVICE not in reason:
            wrong.append(f"{place}: the sentence lacks the rank or the advice ({reason[:200]})")
        elif seconds > within_s:
            wrong.append(f"{place}: judged after {seconds:.0f} s instead of {within_s:.0f} s")
    figures = {f"{place}_judged_s": seconds for place, (_, _, seconds) in ends.items()}
    tried = " and ".join(ends)
    return all_of(wrong, f"Out of memory in {tried} is judged as such, with advice.", figures)
