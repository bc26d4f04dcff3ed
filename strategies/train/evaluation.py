"""Evaluation of the model on held-out data, with the same numbers in every layout."""

from typing import NamedTuple

import torch

from strategies.plan.spec import ModelName
from strategies.train.data.batches import HeldOut
from strategies.train.engine import Engine
from strategies.train.mesh import Mesh
from strategies.train.models.loss import loss_sum_and_hits, token_loss_sum


class Scores(NamedTuple):
    """Scores over all held-out data."""

    loss: float
    """Nats per token, or per image."""
    accuracy: float | None
    """Share of images whose label was the likeliest; None for text."""

    def metrics(self) -> dict[str, float | None]:
        """Return the scores under the names of the metrics."""
        return {"eval_loss": self.loss, "eval_accuracy": self.accuracy}


def evaluate(engine: Engine, held_out: HeldOut, mesh: Mesh, model: ModelName) -> Scores | None:
    """Return the scores of a model of this name; None if nothing is held out."""
    if held_out.valid_tokens == 0:
        return None
    measure = loss_sum_and_hits if model.reads_images else token_loss_sum
    total = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    for batch in held_out.batches:
        share = engine.evaluate(batch, measure).flatten()
        total[: len(share)] += share
    loss, accuracy = (mesh.sum(total) / held_out.valid_tokens).tolist()
    return Scores(loss, accuracy if model.reads_images else None)
