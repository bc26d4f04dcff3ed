"""Reporting of a step's numbers to the platform, for scripts that run as a job.

    from trainyard.run import log

    log(step=step, loss=loss.item(), accuracy=0.93)

It needs only Python, and does nothing outside a job. With several ranks, only rank 0's numbers are
kept. `loss`, `grad_norm` and `tokens_per_s` are shown like those of the platform's own trainings.
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
