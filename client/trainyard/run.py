"""For scripts that run as a job: tell the platform a step's numbers.

    from trainyard.run import log

    log(step=step, loss=loss.item(), accuracy=0.93)

Needs nothing but Python, and does nothing outside a job. Of several ranks the first one's numbers
are kept. `loss`, `grad_norm` and `tokens_per_s` are shown as those of the platform's own trainings.
"""

import json
import os

__all__ = ["log"]

_FILE = "metrics.jsonl"


def log(step: int, **values: float) -> None:
    """Record numbers of one step, counted from 1. Tensors of one element count as numbers."""
    folder = os.environ.get("TRAINYARD_RUN")
    if folder is None or os.environ.get("RANK", "0") != "0":
        return
    line = {"step": int(step)} | {name: float(value) for name, value in values.items()}
    with open(os.path.join(folder, _FILE), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
