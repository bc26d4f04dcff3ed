"""Source of a run's initial weights: random ones, or a checkpoint's with adapters beside them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from strategies.plan.run_directory import BadCheckpoint, RunPlan
from strategies.train.fine_tuning.pretrained import PretrainedWeights
from strategies.train.init import ADAPTER, Region, Seed, Source, seed_of


def source_of(run_plan: RunPlan) -> Source:
    """Return the source of a run's initial weights. Raises BadCheckpoint if it cannot be used."""
    spec = run_plan.spec
    if spec.model.checkpoint is None:
        return seed_of(spec)
    if run_plan.model_path is None:
        raise BadCheckpoint(
            f"the plan has no model_path, the folder of checkpoint {spec.model.checkpoint}"
        )
    pretrained = PretrainedWeights(Path(run_plan.model_path), spec)
    return pretrained if spec.adapter is None else AdaptersBeside(pretrained, seed_of(spec))


def with_frozen_dtype(run_plan: RunPlan) -> RunPlan:
    """Return the plan with the type of its frozen weights: the checkpoint's, if it is left open."""
    spec, adapter = run_plan.spec, run_plan.spec.adapter
    if adapter is None or adapter.frozen_dtype is not None or run_plan.model_path is None:
        return run_plan
    dtype = PretrainedWeights(Path(run_plan.model_path), spec).dtype()
    told = adapter.model_copy(update={"frozen_dtype": dtype})
    return run_plan.model_copy(update={"spec": spec.model_copy(update={"adapter": told})})


@dataclass(frozen=True)
class AdaptersBeside:
    """Source of frozen weights together with adapters, which it lacks and which are drawn."""

    frozen: Source
    drawn: Seed

    def read(self, name: str, shape: torch.Size, region: Region, *, device: torch.device) -> Tensor:
        source = self.drawn if ADAPTER.search(name) else self.frozen
        return source.read(name, shape, region, device=device)
