"""compile: graphs are made in the first steps only, without breaks or operators left out."""

import re

from strategies.plan.spec import ActivationCheckpointing
from strategies.plan.trust.experiment import Observations
from worker.proving.bench import Bench, spec_of, succeeded
from worker.proving.finding import Finding, all_of

STEPS, WARM = 20, 2
# What Inductor says of operators that it hands to eager kernels.
LEFT_OUT = re.compile(r"does not support code generation for|[Ff]all(ing)? ?back to eager")


def look(bench: Bench) -> Finding:
    """Compile a run for each way of checkpointing activations, with evaluations in between."""
    ranks = min(2, bench.ranks)
    strategy = "ddp" if ranks > 1 else "single"
    asked = {
        f"checkpointing {how}": spec_of(
            compile=True, training__steps=STEPS, training__eval_every_steps=STEPS // 2,
            parallelism__strategy=strategy, activation_checkpointing=how,
        )
        for how in ActivationCheckpointing
    }  # fmt: skip
    ended = bench.run_all(asked, ranks=ranks, is_watched=True)
    return judge({name: (run.observations(), run.said()) for name, run in ended if succeeded(run)})


def judge(seen: dict[str, tuple[Observations, str]]) -> Finding:
    """Return whether no graph was made after step 2 but one for evaluations, and none broke."""
    wrong, figures = [], {}
    for name, (found, said) in seen.items():
        steps = found.steps
        early = steps[WARM].graphs if len(steps) > WARM else 0
        # Layers are compiled once more for evaluations, which keep no gradients.
        late = found.graphs - early
        figures[f"{name.replace(' ', '_')}_graphs"] = float(found.graphs)
        if early == 0:
            wrong.append(f"{name}: nothing was compiled")
        elif late > early:
            wrong.append(f"{name}: {late} graphs were compiled after step {WARM}")
        if steps and steps[-1].breaks:
            wrong.append(f"{name}: a graph breaks at {steps[-1].breaks} places")
        if told := LEFT_OUT.search(said):
            wrong.append(f"{name}: {said[told.start() - 60 : told.end() + 60].strip()!r}")
    return all_of(wrong, f"No recompilation after step {WARM}, no break, no fallback.", figures)
