"""Loss on the held-out text: the same number whatever the layout."""

import torch

from strategies.data import HeldOut
from strategies.engine import Engine
from strategies.mesh import Mesh


def evaluate(engine: Engine, held_out: HeldOut, mesh: Mesh) -> float | None:
    """Mean loss per token in nats; None where nothing is held out."""
    if held_out.valid_tokens == 0:
        return None
    total = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for batch in held_out.batches:
        total += engine.evaluate(batch)
    return float(mesh.sum(total).item()) / held_out.valid_tokens
