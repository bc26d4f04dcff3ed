"""How far a run is from one rank's, and how far it may be."""

import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from strategies.plan.spec import ZERO_STAGES, Precision, TrainSpec
from tests.strategies.support.layouts import Split, Variant
from tests.strategies.support.pool import Pool
from tests.strategies.support.training_runs import Options, Run, make_run_plan

BATCH_IN_PARTS = ("training__micro_batch_size", "training__gradient_accumulation_steps")


class Departure(NamedTuple):
    """The largest relative differences between two runs, over all steps; of the last weights, as
    one vector, the relative L2 distance."""

    loss: float
    grad_norm: float
    weights: float
    eval_loss: float  # 0 where nothing is held out

    def within(self, band: "Departure") -> bool:
        return all(own <= allowed for own, allowed in zip(self, band, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.1e}" for name, value in self._asdict().items())


BANDS = {
    Precision.FLOAT32: Departure(loss=1e-6, grad_norm=1e-5, weights=1e-5, eval_loss=1e-6),
    Precision.FLOAT64: Departure(loss=1e-13, grad_norm=1e-12, weights=1e-11, eval_loss=1e-13),
}


def departure(run: Run, one: Run) -> Departure:
    """How far `run` is from `one`; what must not differ at all is asserted."""
    assert run.series("tokens_seen") == one.series("tokens_seen")
    assert run.series("lr") == one.series("lr")
    return Departure(
        loss=furthest(run, one, "loss"),
        grad_norm=furthest(run, one, "grad_norm"),
        weights=distance(run, one),
        eval_loss=furthest(run, one, "eval_loss"),
    )


def furthest(run: Run, one: Run, key: str) -> float:
    """The largest relative difference of a metric; infinite where it is not a number."""
    pairs = zip(run.series(key), one.series(key), strict=True)
    differences = [abs(found - wanted) / abs(wanted) for found, wanted in pairs]
    return max((d if math.isfinite(d) else math.inf for d in differences), default=0.0)


def distance(run: Run, one: Run) -> float:
    """Relative L2 distance of the final weights."""
    found, wanted = trained_weights(run), trained_weights(one)
    assert found.keys() == wanted.keys()
    apart = sum(float((found[name] - wanted[name]).double().square().sum()) for name in wanted)
    size = sum(float(tensor.double().square().sum()) for tensor in wanted.values())
    return math.sqrt(apart / size)


def trained_weights(run: Run) -> dict[str, Tensor]:
    """What a run has left, by name: the whole model, or its adapters."""
    adapters = run.directory.artifacts / "adapter_model.safetensors"
    whole = run.directory.artifacts / "model.safetensors"
    return load_file(adapters if adapters.exists() else whole)


class Bench:
    """Trains splits in the pool, and each once more on one rank that takes the whole batch."""

    def __init__(self, pool: Pool, dataset: Options, folder: Path) -> None:
        self.pool, self.dataset, self.folder = pool, dataset, folder
        self.twins: dict[TrainSpec, Run] = {}

    def departure(
        self,
        split: Split,
        variant: Variant,
        *,
        precision: Precision = Precision.FLOAT64,
        steps: int = 8,
        mutant: str | None = None,
        deadline_s: float = 150,
        **changes: Any,
    ) -> Departure:
        """How far the curve of a split is from that of one rank; `changes` as in Split.spec."""
        one = self.twin(split, variant, precision=precision, steps=steps, **changes)
        spec = split.spec(variant, precision=precision, steps=steps, **changes)
        run_plan = make_run_plan(spec, ranks=split.ranks, **self.dataset)
        path = self.folder / "run"
        try:
            return departure(
                self.pool.train(run_plan, path, mutant=mutant, deadline_s=deadline_s), one
            )
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def twin(
        self, split: Split, variant: Variant, *, precision: Precision, steps: int, **changes: Any
    ) -> Run:
        """The run of one rank, trained when it is first asked for."""
        model = {name: value for name, value in changes.items() if name not in BATCH_IN_PARTS}
        spec = split.alone.spec(variant.twin, precision=precision, steps=steps, **model)
        if spec not in self.twins:
            run_plan = make_run_plan(spec, **self.dataset)
            self.twins[spec] = self.pool.train(run_plan, self.folder / f"one-{len(self.twins)}")
        return self.twins[spec]


def band_of(split: Split, precision: Precision) -> Departure:
    """What a split must keep to; DeepSpeed computes in float32 whatever it is given."""
    return BANDS[Precision.FLOAT32 if split.strategy in ZERO_STAGES else precision]
