"""How good the model is on what is held out: the same numbers whatever the layout."""

from typing import NamedTuple

import torch

from strategies.data.batches import HeldOut
from strategies.engine import Engine
from strategies.loss import loss_sum_and_hits, token_loss_sum
from strategies.parallel.mesh import Mesh
from strategies.spec import ModelName


class Scores(NamedTuple):
    """Of everything that was evaluated."""

    loss: float
    """Nats per token, or per image."""
    accuracy: float | None
    """The share of images whose label came out likeliest; None of text."""

    def metrics(self) -> dict[str, float | None]:
        """What there is to tell."""
        return {"eval_loss": self.loss, "eval_accuracy": self.accuracy}


def evaluate(engine: Engine, held_out: HeldOut, mesh: Mesh, model: ModelName) -> Scores | None:
    """The scores of a model of this name; None where nothing is held out."""
    if held_out.valid_tokens == 0:
        return None
    measure = loss_sum_and_hits if model.reads_images else token_loss_sum
    total = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    for batch in held_out.batches:
        share = engine.evaluate(batch, measure).flatten()
        total[: len(share)] += share
    loss, accuracy = (mesh.sum(total) / held_out.valid_tokens).tolist()
    return Scores(loss, accuracy if model.reads_images else None)
